//! Receiving the records of the sandbox. The meaning of a batch and the journal position become durable together; only
//! then may the shim forget the records.

use super::{RETRY_DELAY, SessionActor, client_tool::number_inputs};
use crate::{
    Error, Result,
    agent_logs::LogLineSource,
    machine::{UsageContext, UsageMeter},
};
use ash_driver::{AgentEvent, UsageReport};
use ash_model::{Death, Fact, Incarnation, JournalPosition, MessageDelta, TokenUsage, TurnId};
use ash_sandbox::{JournalPayload, JournalRecord, ModelUsage};
use std::{sync::PoisonError, time::Instant};

/// How many records share one commit.
const BATCH: usize = 256;
/// How many bytes share one commit: lines may be long, and are in memory more than once on their way.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// How much of the journal may stay unacknowledged for lines that mean nothing.
const MAX_UNCOMMITTED_BYTES: u64 = 1 << 20;

/// Records that wait for disk space.
pub(super) struct UnwrittenRecords {
    meaning: InterpretedRecords,
    place: JournalPosition,
}

#[derive(Default)]
pub(super) struct InterpretedRecords {
    pub(super) facts: Vec<Fact>,
    deltas: Vec<MessageDelta>,
    death: Option<Death>,
    /// The turn whose end is among the facts.
    pub(super) rested: Option<TurnId>,
    /// Which settings the agent accepts, by number, or why it refuses them.
    pub(super) set: Vec<(u64, Option<String>)>,
    /// The meter including the usage among the facts, if there is any.
    meter: Option<UsageMeter>,
}

impl InterpretedRecords {
    fn is_nothing(&self) -> bool {
        self.facts.is_empty() && self.deltas.is_empty() && self.death.is_none() && self.set.is_empty()
    }
}

impl SessionActor {
    pub(super) async fn on_record(&mut self, record: Option<JournalRecord>) -> Result<()> {
        let Some(record) = record else { return self.on_shim_closed().await };
        let mut bytes = weight(&record);
        let mut batch = vec![record];
        while batch.len() < BATCH
            && bytes < MAX_BATCH_BYTES
            && let Some(conn) = &mut self.link.conn
            && let Some(record) = conn.records.ready()
        {
            bytes += weight(&record);
            batch.push(record);
        }
        self.process_records(batch).await
    }

    /// The connection is closed: the last records of the shim are read from its journal.
    async fn on_shim_closed(&mut self) -> Result<()> {
        let Some(conn) = &self.link.conn else { return Ok(()) };
        let (run, incarnation, position) = (self.ctx.live.run(), conn.incarnation, conn.position);
        let left = tokio::task::spawn_blocking(move || ash_sandbox::drain(&run, incarnation, position)).await;
        if let Ok(Ok(records)) = left {
            self.process_records(records).await?;
        }
        if self.link.conn.is_some() {
            self.on_sandbox_death(Death::Sandbox { how: "its shim was killed".to_owned() }).await?;
        }
        Ok(())
    }

    async fn process_records(&mut self, batch: Vec<JournalRecord>) -> Result<()> {
        let Some(conn) = &self.link.conn else { return Ok(()) };
        let (incarnation, process, heard) = (conn.incarnation, conn.process, conn.position);
        // In a sandbox that was taken over, other sessions may have read less of the journal than this one.
        let batch = batch.into_iter().filter(|record| record.offset > heard).collect();
        match self.commit_records(incarnation, process, batch).await? {
            Some(death) => self.on_sandbox_death(death).await,
            None => Ok(()),
        }
    }

    /// Commits what the records mean; answers whether the agent or the sandbox died in them.
    pub(super) async fn commit_records(
        &mut self,
        incarnation: Incarnation,
        process: u16,
        batch: Vec<JournalRecord>,
    ) -> Result<Option<Death>> {
        let Some(position) = batch.last().map(|record| record.offset) else { return Ok(None) };
        let mut meaning = InterpretedRecords::default();
        for record in batch {
            self.interpret_record(process, record, &mut meaning);
        }
        self.write(meaning, JournalPosition { incarnation, process, position }).await
    }

    /// The session has let go of a sandbox whose death is in the log: only the usage of its last answers is still missing.
    pub(super) async fn commit_usage_records(&mut self, said: Vec<JournalRecord>) -> Result<()> {
        let usage = said.into_iter().filter_map(|record| match record.payload {
            JournalPayload::Usage(usage) => Some(usage),
            _ => None,
        });
        self.commit_facts(self.facts_of_usage(usage)).await
    }

    pub(super) fn facts_of_early_usage(&self) -> Vec<Fact> {
        let early =
            std::mem::take(&mut *self.link.startup_usage.lock().unwrap_or_else(PoisonError::into_inner));
        self.facts_of_usage(early)
    }

    fn facts_of_usage(&self, usage: impl IntoIterator<Item = ModelUsage>) -> Vec<Fact> {
        let mut meaning = InterpretedRecords::default();
        usage.into_iter().for_each(|usage| self.record_usage(routed(usage), &mut meaning));
        meaning.facts
    }

    /// Records that could not be written for want of space are kept, and tried again; the agent waits meanwhile.
    pub(super) async fn retry_write(&mut self) -> Result<()> {
        let Some(UnwrittenRecords { meaning, place }) = self.link.unwritten.take() else { return Ok(()) };
        match self.write(meaning, place).await? {
            Some(death) => self.on_sandbox_death(death).await,
            None => Ok(()),
        }
    }

    /// Commits the facts and the journal position, then lets the shim forget the records.
    async fn write(
        &mut self,
        mut meaning: InterpretedRecords,
        place: JournalPosition,
    ) -> Result<Option<Death>> {
        let next_input = self.machine.log.awake.as_ref().map_or(1, |awake| awake.next_input);
        // Only now: records that waited for space may come after inputs of others.
        let has_inputs = number_inputs(&mut meaning.facts, next_input);
        if self.can_defer_commit(&meaning, place) {
            self.note_background_work();
            self.execs.answer();
            return Ok(None);
        }
        let deltas = meaning
            .deltas
            .last()
            .filter(|d| d.seq == self.machine.log.last_seq + meaning.facts.len() as u64)
            .map(|d| d.index);
        match self.commit(meaning.facts.clone(), meaning.deltas.clone(), Some(place), None).await {
            Err(Error::Store(ash_store::Error::Full)) => {
                tracing::error!(session = %self.ctx.session.id, "the disk is full: the agent waits until there is space");
                self.link.unwritten = Some(UnwrittenRecords { meaning, place });
                self.machine.runtime.write_retry = Some(Instant::now() + RETRY_DELAY);
                return Ok(None);
            }
            committed => committed?,
        }
        if has_inputs {
            self.tell_since(next_input - 1).await;
        }
        self.link.deltas = deltas.unwrap_or(self.link.deltas);
        if let Some(conn) = self.link.conn.as_mut().filter(|conn| conn.incarnation == place.incarnation) {
            let bytes = place.position.saturating_sub(conn.position);
            conn.position = place.position;
            conn.sandbox.ack(self.ctx.session.no, place.position).await;
            self.machine.runtime.capture.add_log_bytes(bytes, meaning.facts.len());
        }
        self.note_background_work();
        self.execs.answer();
        for (input, refused) in meaning.set {
            self.on_setting_answer(input, refused);
        }
        if meaning.rested.is_some() {
            self.machine.runtime.agent.interrupt_deadline = None;
        }
        Ok(meaning.death)
    }

    /// Records that mean nothing are acknowledged with the next commit: reading them again has no effect. But they
    /// cannot wait for ever, because the shim keeps them meanwhile.
    fn can_defer_commit(&self, meaning: &InterpretedRecords, place: JournalPosition) -> bool {
        let conn = self.link.conn.as_ref().filter(|conn| conn.incarnation == place.incarnation);
        meaning.is_nothing()
            && conn.is_some_and(|conn| place.position < conn.position + MAX_UNCOMMITTED_BYTES)
    }

    /// `agent`: the number of the agent's process.
    fn interpret_record(&mut self, agent: u16, record: JournalRecord, meaning: &mut InterpretedRecords) {
        let now = self.ctx.services.clock();
        match (record.process, record.payload) {
            (process, JournalPayload::StdoutLine(line) | JournalPayload::StdoutTail(line))
                if process == agent =>
            {
                self.interpret_line(&line, meaning);
            }
            (process, JournalPayload::StderrLine(line)) if process == agent => {
                self.ctx.logs.add(LogLineSource::Stderr, &line, now)
            }
            (process, JournalPayload::Exit(exit)) if process == agent => {
                self.link.conn.iter_mut().for_each(|conn| conn.exited = true);
                self.ctx.logs.add(LogLineSource::System, format!("agent ended: {exit}").as_bytes(), now);
                meaning.death.get_or_insert(match exit.oom {
                    true => Death::OutOfMemory,
                    false => Death::Agent { how: exit.to_string() },
                });
            }
            (process, JournalPayload::LineTooLong) if process == agent => {
                meaning.death = Some(Death::LineTooLong)
            }
            (process, JournalPayload::StartFailed { why }) if process == agent => {
                meaning.death = Some(Death::Agent { how: why });
            }
            (_, JournalPayload::SandboxGone { how, oom }) => {
                self.link.conn.iter().for_each(|conn| conn.sandbox.set_gone());
                self.ctx.logs.add(LogLineSource::System, format!("sandbox ended: {how}").as_bytes(), now);
                let death = if oom { Death::OutOfMemory } else { Death::Sandbox { how } };
                meaning.death.get_or_insert(death);
            }
            (process, JournalPayload::Started { .. }) if process == agent => {}
            (process, JournalPayload::Usage(usage)) if process == agent => {
                self.record_usage(routed(usage), meaning)
            }
            (process, what) => self.execs.hear(process, what),
        }
    }

    fn interpret_line(&mut self, line: &[u8], meaning: &mut InterpretedRecords) {
        if let Some(report) = self.ctx.driver.reported_usage(line) {
            self.record_usage(report, meaning);
        }
        for heard in self.ctx.driver.parse_line(&mut self.link.tracker, line) {
            match heard {
                AgentEvent::Ready { .. } => {}
                AgentEvent::PermissionRequested { .. }
                | AgentEvent::ToolRequested { .. }
                | AgentEvent::ToolServerAsked { .. }
                | AgentEvent::RequestWithdrawn { .. }
                | AgentEvent::SettingAnswered { .. } => {
                    self.understand_request(heard, line.len(), meaning);
                }
                AgentEvent::Delta { line } => {
                    let delta = self.next_delta(meaning, line);
                    meaning.deltas.push(delta);
                }
                AgentEvent::Message { line } => meaning.facts.push(Fact::Said { line }),
                // There may be no later turn whose capture would hold the change.
                AgentEvent::MemoryCompacted => self.touch(),
                AgentEvent::Steered { turn } => {
                    meaning.facts.extend(self.machine.log.steering_acknowledged(turn))
                }
                AgentEvent::TurnEnded { turn, how, text, usage, problem } => {
                    let running = self.machine.log.is_running(turn);
                    if running && meaning.rested.is_none() {
                        let meter = meaning.meter.as_ref().unwrap_or(&self.machine.log.meter);
                        let usage = counted(meter, usage);
                        meaning.rested = Some(turn);
                        meaning.facts.push(Fact::Rested { turn, outcome: how, text, usage, problem });
                    }
                }
            }
        }
    }

    fn record_usage(&self, report: UsageReport, meaning: &mut InterpretedRecords) {
        let current = self.machine.log.current();
        let (turn, attempt) = (current.map(|turn| turn.id), current.map_or(0, |turn| turn.attempt));
        let when = UsageContext { turn, attempt, prices: &self.ctx.services.settings.prices };
        let meter = meaning.meter.get_or_insert_with(|| self.machine.log.meter.clone());
        for used in meter.account(report, when) {
            meter.apply(&used);
            meaning.facts.push(Fact::Used(used));
        }
    }

    fn next_delta(&self, meaning: &InterpretedRecords, line: String) -> MessageDelta {
        let seq = self.machine.log.last_seq + meaning.facts.len() as u64;
        let n = match meaning.deltas.last() {
            Some(last) if last.seq == seq => last.index + 1,
            _ if meaning.facts.is_empty() => self.link.deltas + 1,
            _ => 1,
        };
        MessageDelta { seq, index: n, turn: self.machine.log.current().map(|turn| turn.id), line }
    }

    /// The agent or its sandbox is dead: the log says so first, then the actor clears up.
    pub(super) async fn on_sandbox_death(&mut self, death: Death) -> Result<()> {
        let facts = self.machine.log.died(&death);
        tracing::warn!(session = %self.ctx.session.id, ?death, "the sandbox is gone");
        self.commit_facts(facts).await?;
        self.machine.runtime.agent.interrupt_deadline = None;
        self.execs.fail(&death.problem());
        self.touch();
        self.leave_sandbox();
        Ok(())
    }
}

/// The shim trusts the service's figures; the server clamps them, because a client may have named the service.
fn routed(ModelUsage { message, model, usage, torn: _ }: ModelUsage) -> UsageReport {
    UsageReport::Routed { id: message, model, usage: usage.clamped() }
}

/// The usage of a turn is what the meter counted: a result covers one attempt, and no helpers.
pub(super) fn counted(meter: &UsageMeter, said: TokenUsage) -> TokenUsage {
    if meter.turn.usage.is_zero() { said } else { meter.turn.usage }
}

fn weight(record: &JournalRecord) -> usize {
    match &record.payload {
        JournalPayload::StdoutLine(bytes)
        | JournalPayload::StdoutTail(bytes)
        | JournalPayload::StderrLine(bytes)
        | JournalPayload::StdoutChunk(bytes)
        | JournalPayload::StderrChunk(bytes) => bytes.len(),
        JournalPayload::Started { .. }
        | JournalPayload::StartFailed { .. }
        | JournalPayload::Exit(_)
        | JournalPayload::SandboxGone { .. }
        | JournalPayload::Usage(_)
        | JournalPayload::LineTooLong => 0,
    }
}
