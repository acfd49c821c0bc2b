//! Making a sandbox and starting the agent in it, with its files and its memory.

use super::{AGENT, Actor, Done, Hands};
use crate::{
    Error, Result, ladder,
    ladder::Origin,
    ladder::Others,
    live::{Fallback, Live, Recipe},
    logs::{Level, Logs},
    pool::Rooms,
    state::{Phase, State},
};
use ash_driver::{Driver, Ear, Heard, Launch, Memory, Remembered, Say};
use ash_model::{Fact, Incarnation, Problem, Saved, Seq, TurnId};
use ash_sandbox::{Inside, Link, Record, Records, Remote, Spec, Start, What};
use ash_snapshot::{Folder, Links, RelPath, Taken, TreeId};
use ash_store::{EventQuery, Lease, Session, Version};
use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;
use uuid::Uuid;

/// How long an agent may take to answer its greeting.
const GREETING: Duration = Duration::from_secs(60);
/// 50 MB are a very long conversation, for which Claude Code takes 400 MB of memory.
const LONGEST_TRANSCRIPT: u64 = 128 << 20;
/// A longer line is no entry.
const LONGEST_ENTRY: u64 = 32 << 20;

/// A sandbox whose agent answers, and how it came to be.
pub(super) struct Woken {
    hands: Hands,
    tree: Tree,
    remembered: Option<Remembered>,
    ear: Ear,
    began: Instant,
}

/// The files that a sandbox begins with.
struct Tree {
    origin: Origin,
    uid: Option<u32>,
    fallback: Option<Fallback>,
}

/// Everything a start needs; it runs beside the actor.
struct Waking {
    rooms: Arc<Rooms>,
    session: Session,
    state: State,
    lease: Lease,
    live: Live,
    tree: Option<Option<u32>>,
    logs: Arc<Logs>,
}

impl Actor {
    pub(super) fn start_wake(&mut self) {
        let waking = Waking {
            rooms: self.rooms.clone(),
            session: self.session.clone(),
            state: self.state.clone(),
            lease: self.lease.clone(),
            live: self.live.clone(),
            tree: self.tree,
            logs: self.logs.clone(),
        };
        self.effect = Some(tokio::spawn(async move { Done::Woke(Box::new(waking.wake().await)) }));
    }

    pub(super) async fn woke(&mut self, woken: Result<Woken>) -> Result<()> {
        match woken {
            Ok(woken) => self.greet(woken).await,
            Err(error) => self.stay_down(error).await,
        }
    }

    async fn greet(&mut self, woken: Woken) -> Result<()> {
        let Woken { hands, tree: Tree { origin, uid, fallback }, remembered, ear, began } = woken;
        self.tree = Some(uid);
        self.touch_later();
        let others = Others { salvage: self.salvage, fallback: fallback.as_ref() };
        let receipt = (self.state.resuming || fallback.is_some())
            .then(|| ladder::receipt(&self.state, origin, remembered.as_ref(), others));
        if let Some(Fallback { instead_of, used, why }) = &fallback {
            tracing::error!(session = %self.session.id, damaged = instead_of, used, why, "a checkpoint is damaged; the session goes on with an older one");
        }
        let mut facts = vec![Fact::Awake { incarnation: hands.incarnation }];
        facts.extend(receipt.clone().map(|receipt| Fact::Resumed { receipt }));
        let position = (hands.incarnation, hands.position);
        if let Err(error) = self.commit(facts, Vec::new(), Some(position), None).await {
            // Nobody knows of this sandbox: the next try makes another.
            self.leaving = Some(hands);
            return Err(error);
        }
        self.hands = Some(hands);
        self.ear = ear;
        self.salvage = None;
        if let Some(receipt) = &receipt {
            self.rooms.watch.resumed(receipt, began.elapsed());
            self.log_resume(receipt);
        }
        for reply in self.resuming.drain(..) {
            reply.send(Ok(super::Answer { receipt: receipt.clone(), ..super::Answer::default() })).ok();
        }
        Ok(())
    }

    async fn stay_down(&mut self, error: Error) -> Result<()> {
        let problem = error.problem();
        tracing::warn!(session = %self.session.id, error = %problem.error, "the session could not be started");
        self.note(vec![Fact::Failed { problem: problem.clone() }]).await?;
        let mut replies = self.resuming.drain(..);
        // The first to ask gets the error itself, with its kind; the others its words.
        if let Some(first) = replies.next() {
            first.send(Err(error)).ok();
        }
        replies.for_each(|reply| drop(reply.send(Err(Error::Failed(problem.clone())))));
        Ok(())
    }

    /// Keeps what is on disk and cannot be trusted, before anything takes its place.
    pub(super) fn start_salvage(&mut self) {
        let (rooms, live, tenant) = (self.rooms.clone(), self.live.clone(), self.session.tenant.clone());
        self.effect = Some(tokio::spawn(async move {
            let salvaged = blocking(move || {
                ash_sandbox::reap(&live.run())?;
                live.salvage(&*rooms.repo(&tenant)?, &rooms.uids)
            });
            Done::Salvaged(salvaged.await)
        }));
    }

    pub(super) async fn salvaged(&mut self, salvaged: Result<Option<Taken>>) -> Result<()> {
        match salvaged {
            Ok(Some(taken)) if self.is_known(&taken).await? => {}
            Ok(Some(taken)) => {
                let saved = Saved { salvage: true, ..self.describe(&taken, ash_model::Consistency::Live) };
                let row = self.checkpoint_row(&saved, &taken, 1);
                let number = saved.number;
                self.commit(vec![Fact::Saved(saved)], Vec::new(), None, Some(row)).await?;
                self.salvage = Some(number);
            }
            Ok(None) => {}
            Err(error) => {
                self.give_up_closing(&error);
                self.give_up_rewinding(&error).await?;
                self.answer_failed_writers(&error);
                return if self.state.status == ash_model::Status::Starting {
                    self.stay_down(error).await
                } else {
                    Ok(())
                };
            }
        }
        let live = self.live.clone();
        blocking(move || live.forget_old()).await
    }

    pub(super) fn describe(&self, taken: &Taken, consistency: ash_model::Consistency) -> Saved {
        Saved {
            number: self.state.last_checkpoint + 1,
            turn: None,
            tree: taken.tree.as_str().to_owned(),
            consistency,
            files: taken.files,
            bytes: taken.bytes,
            skipped: taken
                .skipped
                .iter()
                .take(100)
                .map(|skipped| String::from_utf8_lossy(&skipped.path).into_owned())
                .collect(),
            salvage: false,
            mid_turn: false,
        }
    }
}

impl Waking {
    async fn wake(mut self) -> Result<Woken> {
        let began = Instant::now();
        if self.state.resuming {
            // Options may have been changed since the keeper came.
            self.session = self.rooms.store.session(self.session.no).await?.ok_or(Error::NotFound)?;
        }
        let version = self.version().await?;
        let driver = ash_driver::driver(version.runtime);
        let program = self.rooms.settings.program(version.runtime)?.map(Path::to_owned);
        let room = self.rooms.admit()?;
        self.clear().await?;
        let tree = self.tree(&version).await?;
        let spec = self.spec(tree.uid, program.as_deref());
        let (remote, mut records) = self.launch(&spec).await?.split();
        let began_well = self.start((&remote, &mut records), driver.as_ref(), &version, program).await;
        let (remembered, position, ear) = match began_well {
            Ok(ready) => ready,
            Err(error) => {
                remote.end().await.ok();
                return Err(error);
            }
        };
        let hands = Hands { incarnation: spec.incarnation, remote, records, position, _room: room };
        Ok(Woken { hands, tree, remembered, ear, began })
    }

    /// Only so many walls are built at once; what an agent does with its time holds nobody up.
    async fn launch(&self, spec: &Spec) -> Result<Link> {
        let _turn = self.rooms.wakes.acquire().await.map_err(|_| Error::Stopping)?;
        Ok(self.rooms.backend.launch(spec).await?)
    }

    async fn version(&self) -> Result<Version> {
        let Session { tenant, agent, version, .. } = &self.session;
        let found = self.rooms.store.version(tenant, agent, *version).await?;
        found.ok_or_else(|| Error::NoAgent(agent.to_string()))
    }

    /// Whatever an earlier shim left must be gone before its tree is used again.
    async fn clear(&self) -> Result<()> {
        let run = self.live.run();
        blocking(move || {
            ash_sandbox::reap(&run)?;
            crate::live::make_dir(&run)
        })
        .await
    }

    async fn tree(&self, version: &Version) -> Result<Tree> {
        if let Some(uid) = self.tree {
            // Somebody died after the older tree was there, and before that was said.
            let fallback = self.live.stamp().and_then(|stamp| stamp.fallback);
            let fallback = fallback.filter(|fallback| Some(fallback.instead_of) == self.state.checkpoint);
            let origin = if fallback.is_some() { Origin::Checkpoint } else { Origin::Live };
            return Ok(Tree { origin, uid, fallback });
        }
        let (recipe, origin) =
            recipe(&self.rooms, &self.session, &self.state, &self.lease, Some(version)).await?;
        match (make_tree(&self.rooms, &self.session, &self.live, recipe).await, self.state.checkpoint) {
            (Err(error), Some(number)) if is_damage(&error) => self.older(number, error.to_string()).await,
            (made, _) => Ok(Tree { origin, uid: made?, fallback: None }),
        }
    }

    /// The newest checkpoint before a damaged one that is whole. What the session went back from comes last.
    async fn older(&self, number: u64, why: String) -> Result<Tree> {
        let store = &self.rooms.store;
        let left = left_behind(&store.facts(self.session.no).await?);
        let mut found = store.checkpoints(self.session.workspace, Some(number), u32::MAX).await?;
        found.retain(|checkpoint| !checkpoint.salvage && checkpoint.removed.is_none());
        found.sort_by_key(|checkpoint| {
            left.iter().any(|(from, to)| *from < checkpoint.seq && checkpoint.seq < *to)
        });
        for checkpoint in found {
            let fallback = Fallback { instead_of: number, used: checkpoint.number, why: why.clone() };
            let recipe = recipe_of(&self.rooms, &self.state, &self.lease, &checkpoint.tree)?;
            let recipe = Recipe { fallback: Some(fallback.clone()), ..recipe };
            match make_tree(&self.rooms, &self.session, &self.live, recipe).await {
                Err(error) if is_damage(&error) => {}
                made => return Ok(Tree { origin: Origin::Checkpoint, uid: made?, fallback: Some(fallback) }),
            }
        }
        Err(Error::NothingWhole { number, why })
    }

    fn spec(&self, uid: Option<u32>, program: Option<&Path>) -> Spec {
        Spec {
            incarnation: Incarnation::fresh(),
            epoch: self.lease.epoch,
            run_dir: self.live.run(),
            workspace: self.live.workspace(),
            home: self.live.home(),
            uid,
            limits: self.rooms.settings.limits.clone(),
            readonly: program.and_then(Path::parent).map(Path::to_owned).into_iter().collect(),
            orphan_ttl: self.rooms.settings.orphan_ttl,
        }
    }

    async fn start(
        &self,
        (remote, records): (&Remote, &mut Records),
        driver: &dyn Driver,
        version: &Version,
        program: Option<PathBuf>,
    ) -> Result<(Option<Remembered>, u64, Ear)> {
        let inside = self.rooms.inside(&self.live);
        let (memory, looked) = self.memory(driver, &inside).await?;
        let launch = Launch {
            workspace: inside.workspace.clone(),
            home: inside.home.clone(),
            exe: inside.exe.clone(),
            program: program.unwrap_or_else(|| inside.exe.clone()),
            model_socket: inside.model_socket.clone(),
            memory,
            cut: self.state.current().is_some_and(|turn| turn.phase == Phase::Cut),
            options: self.session.options.clone(),
        };
        let command = driver.launch(&launch);
        let mut env = self.rooms.base_env(&self.session, &inside);
        env.extend(command.env);
        env.extend(version.env.expose());
        env.extend(self.rooms.store.env(self.session.no).await?.expose());
        let start =
            Start { process: AGENT, argv: command.argv, env, cwd: inside.workspace, raw: false, stdin: true };
        remote.egress(self.rooms.settings.egress.clone()).await?;
        remote.start(start).await?;
        remote
            .input(
                AGENT,
                1,
                driver.tell(&Say::Hello { system_prompt: self.session.options.system_prompt.clone() }),
            )
            .await?;
        let ready = self.listen(records, driver);
        let (said, position, ear) = tokio::time::timeout(GREETING, ready)
            .await
            .map_err(|_| failed("agent_silent", "The agent did not answer its greeting within 60 s"))??;
        Ok((looked.or(said), position, ear))
    }

    async fn told(&self) -> Result<Vec<TurnId>> {
        let (mut events, mut after) = (Vec::new(), 0);
        loop {
            let query = EventQuery { after, limit: 1000, kinds: ladder::TOLD.to_vec() };
            let more = self.rooms.store.events(self.session.no, &query).await?;
            let Some(last) = more.last() else { return Ok(ladder::told(&events)) };
            after = last.seq;
            events.extend(more);
        }
    }

    /// Which conversation the agent takes up, and what of it is there, where we have to look ourselves.
    async fn memory(&self, driver: &dyn Driver, inside: &Inside) -> Result<(Memory, Option<Remembered>)> {
        let id = self.session.native_id;
        let memory = ladder::memory(&self.state, id);
        let from = match memory {
            Memory::Fresh { .. } => return Ok((memory, None)),
            Memory::Own { id } => id,
            Memory::Fork { from, .. } => from,
        };
        let Some(place) = driver.transcript(&inside.workspace, from) else { return Ok((memory, None)) };
        let told = self.told().await?;
        let home = self.live.home();
        let driver = ash_driver::driver(self.session.runtime);
        let found = blocking(move || look_at_transcript(driver.as_ref(), &home, &place, &told)).await?;
        // Asked for a conversation that it cannot read it would not start.
        let memory = if found.found { memory } else { Memory::Fresh { id } };
        Ok((memory, Some(found)))
    }

    async fn listen(
        &self,
        records: &mut Records,
        driver: &dyn Driver,
    ) -> Result<(Option<Remembered>, u64, Ear)> {
        let mut ear = Ear::default();
        while let Some(Record { offset, what, .. }) = records.next().await {
            match what {
                What::Line(line) => {
                    if let Some(Heard::Ready { resumed }) = driver
                        .hear(&mut ear, &line)
                        .into_iter()
                        .find(|heard| matches!(heard, Heard::Ready { .. }))
                    {
                        return Ok((resumed, offset, ear));
                    }
                }
                What::Err(line) => self.logs.add(Level::Stderr, &line, self.rooms.clock()),
                What::StartFailed { why } => {
                    return Err(failed("agent_failed", &format!("The agent could not be started: {why}")));
                }
                What::Exit(exit) => {
                    return Err(failed(
                        "agent_failed",
                        &format!("The agent ended before it answered ({exit}); see the session's logs"),
                    ));
                }
                What::Gone { how, .. } => {
                    return Err(failed(
                        "sandbox_failed",
                        &format!("The sandbox ended before its agent answered ({how})"),
                    ));
                }
                What::Started { .. } | What::Tail(_) | What::TooLong | What::Chunk(_) | What::ErrChunk(_) => {
                }
            }
        }
        Err(failed("sandbox_failed", "The sandbox ended before its agent answered"))
    }
}

/// What an agent keeps of its conversation is written by whoever is inside, so it may be anything and of any size.
/// What is no conversation is put aside, not lost: in its place it would keep the agent from starting.
fn look_at_transcript(driver: &dyn Driver, home: &Path, place: &str, told: &[TurnId]) -> Result<Remembered> {
    let home = Folder::open(home)?;
    let path = RelPath::parse(place).map_err(ash_snapshot::Error::from)?;
    let file = home.open_file(&path, Links::Refuse).ok().filter(|(_, is)| is.size <= LONGEST_TRANSCRIPT);
    let found = match file {
        Some((file, _)) => {
            let mut reader = BufReader::new(file.take(LONGEST_TRANSCRIPT));
            driver.remembered(&mut std::iter::from_fn(|| line(&mut reader)), told)
        }
        None => Remembered { found: false, turns: 0, damaged: 0 },
    };
    let name = place.rsplit('/').next().unwrap_or(place);
    if !found.found {
        match home.put_aside(&path, &format!("{name}.{}", Uuid::new_v4())) {
            Ok(false) => {}
            Ok(true) => tracing::warn!(transcript = place, "what is no conversation was put aside"),
            // A folder on the way is none: the agent sees for itself.
            Err(error) => tracing::warn!(transcript = place, %error, "what is no conversation stays"),
        }
    }
    Ok(found)
}

/// The next line. One that is too long is cut, and what is left of it are lines of their own: nonsense, both.
fn line(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let read = reader.by_ref().take(LONGEST_ENTRY).read_until(b'\n', &mut line).ok()?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    (read > 0).then_some(line)
}

/// What the tree is made from: the newest checkpoint, else the agent's own files.
pub(super) async fn recipe(
    rooms: &Rooms,
    session: &Session,
    state: &State,
    lease: &Lease,
    version: Option<&Version>,
) -> Result<(Recipe, Origin)> {
    let checkpoint = match state.checkpoint {
        Some(number) => rooms.store.checkpoint(session.workspace, number).await?,
        None => None,
    };
    let (tree, origin) = match (checkpoint, version) {
        (Some(checkpoint), _) => (checkpoint.tree, Origin::Checkpoint),
        (None, Some(version)) => (version.tree.clone(), Origin::Fresh),
        (None, None) => return Err(Error::NoWorkspace),
    };
    let recipe = recipe_of(rooms, state, lease, &tree)?;
    Ok((Recipe { fresh: origin == Origin::Fresh, ..recipe }, origin))
}

/// To make what a checkpoint holds.
pub(super) fn recipe_of(rooms: &Rooms, state: &State, lease: &Lease, tree: &str) -> Result<Recipe> {
    let tree = TreeId::parse(tree).map_err(|_| Error::NoWorkspace)?;
    let (epoch, boot, rewound) = (lease.epoch, rooms.settings.boot.clone(), state.rewound);
    Ok(Recipe { epoch, boot, tree, fresh: false, rewound, fallback: None })
}

fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Snapshot(ash_snapshot::Error::Damaged { .. }))
}

/// The stretches of the log that rewinds took out of it.
fn left_behind(facts: &[ash_model::Event]) -> Vec<(Seq, Seq)> {
    let (mut left, mut counts) = (Vec::new(), Seq::MAX);
    for event in facts.iter().rev() {
        if let Fact::Rewound(rewound) = &event.fact
            && event.seq <= counts
        {
            left.push((rewound.seq, event.seq));
            counts = rewound.seq;
        }
    }
    left
}

pub(super) async fn make_tree(
    rooms: &Arc<Rooms>,
    session: &Session,
    live: &Live,
    recipe: Recipe,
) -> Result<Option<u32>> {
    let _turn = rooms.restores.acquire().await.map_err(|_| Error::Stopping)?;
    let (rooms, live, tenant) = (rooms.clone(), live.clone(), session.tenant.clone());
    blocking(move || live.make(&recipe, &*rooms.repo(&tenant)?, &rooms.uids)).await
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Gone)?
}

fn failed(code: &str, error: &str) -> Error {
    Error::Failed(Problem::new(code, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::{Event, Rewound, Then, Timestamp};

    #[test]
    fn what_a_rewind_took_back_is_not_left_behind() {
        let rewound = |seq, to_seq| {
            let fact = Fact::Rewound(Rewound { to: 1, from: None, seq: to_seq, then: Then::default() });
            Event { seq, turn: None, at: Timestamp(0), fact }
        };
        assert_eq!(left_behind(&[rewound(20, 5), rewound(30, 25)]), [(25, 30), (5, 20)]);
        // Forward again to what lies between the two.
        assert_eq!(left_behind(&[rewound(20, 5), rewound(30, 12)]), [(12, 30)]);
    }
}
