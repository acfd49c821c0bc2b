//! Listening to the sandbox. What a batch of records means and how far the journal is read become durable
//! together; only then may the shim forget it.

use super::{Actor, BREATH};
use crate::{
    Error, Result,
    logs::Level,
    state::{Meanwhile, Meter},
};
use ash_driver::{Heard, Report};
use ash_model::{Death, Delta, Fact, Incarnation, JournalPosition, TurnId, Usage};
use ash_sandbox::{ModelUsage, Record, What};
use std::sync::PoisonError;
use tokio::time::Instant;

/// How many records share one commit.
const BATCH: usize = 256;
/// And how many bytes: lines may be long, and are in memory more than once on their way.
const MOST_BYTES: usize = 4 << 20;

/// How much of the journal is kept for lines that mean nothing.
const FORGETTABLE: u64 = 1 << 20;

/// Something heard that waits for space.
pub(super) struct Unwritten {
    meaning: Meaning,
    place: JournalPosition,
    pub(super) again: Instant,
}

#[derive(Default)]
pub(super) struct Meaning {
    pub(super) facts: Vec<Fact>,
    deltas: Vec<Delta>,
    death: Option<Death>,
    /// The turn whose end is among the facts.
    pub(super) rested: Option<TurnId>,
    /// Which settings the agent goes on with, by number, or why not.
    pub(super) set: Vec<(u64, Option<String>)>,
    /// What was used with all that is among the facts, if anything is.
    meter: Option<Meter>,
}

impl Meaning {
    fn is_nothing(&self) -> bool {
        self.facts.is_empty() && self.deltas.is_empty() && self.death.is_none() && self.set.is_empty()
    }
}

impl Actor {
    pub(super) async fn hear(&mut self, record: Option<Record>) -> Result<()> {
        let Some(record) = record else { return self.lost_the_shim().await };
        let mut bytes = weight(&record);
        let mut batch = vec![record];
        while batch.len() < BATCH
            && bytes < MOST_BYTES
            && let Some(hands) = &mut self.hands
            && let Some(record) = hands.records.ready()
        {
            bytes += weight(&record);
            batch.push(record);
        }
        self.digest(batch).await
    }

    /// The connection is closed: what the shim still wrote down is read from its journal.
    async fn lost_the_shim(&mut self) -> Result<()> {
        let Some(hands) = &self.hands else { return Ok(()) };
        let (run, incarnation, position) = (self.live.run(), hands.incarnation, hands.position);
        let left = tokio::task::spawn_blocking(move || ash_sandbox::drain(&run, incarnation, position)).await;
        if let Ok(Ok(records)) = left {
            self.digest(records).await?;
        }
        if self.hands.is_some() {
            self.mourn(Death::Sandbox { how: "its shim was killed".to_owned() }).await?;
        }
        Ok(())
    }

    async fn digest(&mut self, batch: Vec<Record>) -> Result<()> {
        let Some(hands) = &self.hands else { return Ok(()) };
        let (incarnation, process, heard) = (hands.incarnation, hands.process, hands.position);
        // In a sandbox that was taken over the others may have heard less.
        let batch = batch.into_iter().filter(|record| record.offset > heard).collect();
        match self.digest_of(incarnation, process, batch).await? {
            Some(death) => self.mourn(death).await,
            None => Ok(()),
        }
    }

    /// Commits what the records mean; answers whether somebody died in them.
    pub(super) async fn digest_of(
        &mut self,
        incarnation: Incarnation,
        process: u16,
        batch: Vec<Record>,
    ) -> Result<Option<Death>> {
        let Some(position) = batch.last().map(|record| record.offset) else { return Ok(None) };
        let mut meaning = Meaning::default();
        for record in batch {
            self.understand(process, record, &mut meaning);
        }
        self.write(meaning, JournalPosition { incarnation, process, position }).await
    }

    /// The session has let go of a sandbox whose death is noted: what its last answers used is left to say.
    pub(super) async fn digest_usage(&mut self, said: Vec<Record>) -> Result<()> {
        let usage = said.into_iter().filter_map(|record| match record.what {
            What::Usage(usage) => Some(usage),
            _ => None,
        });
        let facts = self.facts_of_usage(usage);
        if facts.is_empty() { Ok(()) } else { self.note(facts).await }
    }

    pub(super) fn facts_of_early_usage(&self) -> Vec<Fact> {
        let early = std::mem::take(&mut *self.used_early.lock().unwrap_or_else(PoisonError::into_inner));
        self.facts_of_usage(early)
    }

    fn facts_of_usage(&self, usage: impl IntoIterator<Item = ModelUsage>) -> Vec<Fact> {
        let mut meaning = Meaning::default();
        usage.into_iter().for_each(|usage| self.account(routed(usage), &mut meaning));
        meaning.facts
    }

    /// What could not be written for lack of space is kept, and tried again; the agent waits meanwhile.
    pub(super) async fn write_again(&mut self) -> Result<()> {
        let Some(unwritten) = self.unwritten.take_if(|unwritten| unwritten.again <= Instant::now()) else {
            return Ok(());
        };
        let Unwritten { meaning, place, .. } = unwritten;
        match self.write(meaning, place).await? {
            Some(death) => self.mourn(death).await,
            None => Ok(()),
        }
    }

    /// Commits what was heard and how far the journal is used up, then lets the shim forget it.
    async fn write(&mut self, meaning: Meaning, place: JournalPosition) -> Result<Option<Death>> {
        if self.may_wait(&meaning, place) {
            self.note_held();
            self.execs.answer();
            return Ok(None);
        }
        let deltas = meaning
            .deltas
            .last()
            .filter(|d| d.seq == self.state.last_seq + meaning.facts.len() as u64)
            .map(|d| d.n);
        match self.commit(meaning.facts.clone(), meaning.deltas.clone(), Some(place), None).await {
            Err(Error::Store(ash_store::Error::Full)) => {
                tracing::error!(session = %self.session.id, "the disk is full: the agent waits until there is space");
                self.unwritten = Some(Unwritten { meaning, place, again: Instant::now() + BREATH });
                return Ok(None);
            }
            committed => committed?,
        }
        self.deltas = deltas.unwrap_or(self.deltas);
        if let Some(hands) = self.hands.as_mut().filter(|hands| hands.incarnation == place.incarnation) {
            let bytes = place.position.saturating_sub(hands.position);
            hands.position = place.position;
            hands.walls.ack(self.session.no, place.position).await;
            self.said(bytes, meaning.facts.len());
        }
        self.note_held();
        self.execs.answer();
        for (input, refused) in meaning.set {
            self.was_set(input, refused);
        }
        if meaning.rested.is_some() {
            self.patience = None;
        }
        Ok(meaning.death)
    }

    /// What means nothing is used up with what comes next: to hear it again would mean nothing again. But not for
    /// ever, since the shim keeps it meanwhile.
    fn may_wait(&self, meaning: &Meaning, place: JournalPosition) -> bool {
        let hands = self.hands.as_ref().filter(|hands| hands.incarnation == place.incarnation);
        meaning.is_nothing() && hands.is_some_and(|hands| place.position < hands.position + FORGETTABLE)
    }

    /// `agent`: the number of the agent's process.
    fn understand(&mut self, agent: u16, record: Record, meaning: &mut Meaning) {
        let now = self.rooms.clock();
        match (record.process, record.what) {
            (process, What::Line(line) | What::Tail(line)) if process == agent => {
                self.understand_line(&line, meaning);
            }
            (process, What::Err(line)) if process == agent => self.logs.add(Level::Stderr, &line, now),
            (process, What::Exit(exit)) if process == agent => {
                self.hands.iter_mut().for_each(|hands| hands.exited = true);
                self.logs.add(Level::System, format!("agent ended: {exit}").as_bytes(), now);
                meaning.death.get_or_insert(match exit.oom {
                    true => Death::OutOfMemory,
                    false => Death::Agent { how: exit.to_string() },
                });
            }
            (process, What::TooLong) if process == agent => meaning.death = Some(Death::LineTooLong),
            (process, What::StartFailed { why }) if process == agent => {
                meaning.death = Some(Death::Agent { how: why });
            }
            (_, What::Gone { how, oom }) => {
                self.hands.iter().for_each(|hands| hands.walls.set_gone());
                self.logs.add(Level::System, format!("sandbox ended: {how}").as_bytes(), now);
                let death = if oom { Death::OutOfMemory } else { Death::Sandbox { how } };
                meaning.death.get_or_insert(death);
            }
            (process, What::Started { .. }) if process == agent => {}
            (process, What::Usage(usage)) if process == agent => self.account(routed(usage), meaning),
            (process, what) => self.execs.hear(process, what),
        }
    }

    fn understand_line(&mut self, line: &[u8], meaning: &mut Meaning) {
        if let Some(report) = self.driver.used(line) {
            self.account(report, meaning);
        }
        for heard in self.driver.hear(&mut self.ear, line) {
            match heard {
                Heard::Ready { .. } => {}
                Heard::Asked { .. } | Heard::Withdrawn { .. } | Heard::Set { .. } => {
                    self.understand_request(heard, line.len(), meaning);
                }
                Heard::Delta { line } => {
                    let delta = self.next_delta(meaning, line);
                    meaning.deltas.push(delta);
                }
                Heard::Message { line } => {
                    // Its memory is another one, and perhaps no turn comes whose capture would hold that.
                    if line.contains("\"compact_boundary\"") {
                        self.touch();
                    }
                    meaning.facts.push(Fact::Said { line });
                }
                Heard::Steered { turn } => meaning.facts.extend(self.state.heard(turn)),
                Heard::Rested { turn, how, text, usage, problem } => {
                    let running = self.state.is_running(turn);
                    if running && meaning.rested.is_none() {
                        let meter = meaning.meter.as_ref().unwrap_or(&self.state.meter);
                        let usage = counted(meter, usage);
                        meaning.rested = Some(turn);
                        meaning.facts.push(Fact::Rested { turn, how, text, usage, problem });
                    }
                }
            }
        }
    }

    fn account(&self, report: Report, meaning: &mut Meaning) {
        let current = self.state.current();
        let (turn, attempt) = (current.map(|turn| turn.id), current.map_or(0, |turn| turn.attempt));
        let when = Meanwhile { turn, attempt, prices: &self.rooms.settings.prices };
        let meter = meaning.meter.get_or_insert_with(|| self.state.meter.clone());
        for used in meter.account(report, when) {
            meter.apply(&used);
            meaning.facts.push(Fact::Used(used));
        }
    }

    fn next_delta(&self, meaning: &Meaning, line: String) -> Delta {
        let seq = self.state.last_seq + meaning.facts.len() as u64;
        let n = match meaning.deltas.last() {
            Some(last) if last.seq == seq => last.n + 1,
            _ if meaning.facts.is_empty() => self.deltas + 1,
            _ => 1,
        };
        Delta { seq, n, turn: self.state.current().map(|turn| turn.id), line }
    }

    /// The agent or its sandbox is dead: say so at once, then clear up behind it.
    pub(super) async fn mourn(&mut self, death: Death) -> Result<()> {
        let facts = self.state.died(&death);
        tracing::warn!(session = %self.session.id, ?death, "the sandbox is gone");
        self.note(facts).await?;
        self.patience = None;
        self.execs.fail(&death.problem());
        self.touch();
        self.start_sleep();
        Ok(())
    }
}

/// The shim believes the service; we do not believe the one whom a client names.
fn routed(ModelUsage { message, model, usage, torn: _ }: ModelUsage) -> Report {
    Report::Routed { id: message, model, usage: usage.believed() }
}

/// What a turn used is what was counted: a result knows of one attempt, and of no helpers.
pub(super) fn counted(meter: &Meter, said: Usage) -> Usage {
    if meter.turn.usage.is_nothing() { said } else { meter.turn.usage }
}

fn weight(record: &Record) -> usize {
    match &record.what {
        What::Line(bytes)
        | What::Tail(bytes)
        | What::Err(bytes)
        | What::Chunk(bytes)
        | What::ErrChunk(bytes) => bytes.len(),
        What::Started { .. }
        | What::StartFailed { .. }
        | What::Exit(_)
        | What::Gone { .. }
        | What::Usage(_)
        | What::TooLong => 0,
    }
}
