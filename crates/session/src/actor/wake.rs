//! Making a sandbox and starting the agent in it, with its files and its memory.

use super::{Actor, Done, Hands, recall::Rung, save::Shot, tree::Tree};
use crate::{
    Error, Result, artifacts, bounds,
    common::{self, Common, Floor, Walls},
    ladder,
    ladder::{Origin, Others, Recalled},
    live::{Fallback, Live},
    logs::{Level, Logs},
    pool::{Inbuilt, Room},
    rooms::Rooms,
    state::{Phase, State},
};
use ash_driver::{Driver, Ear, Heard, Launch, Memory, Remembered, Say};
use ash_model::{Bounds, Compared, Consistency, Dialect, Fact, Incarnation, Problem, Saved, TakenBack, Tier};
use ash_sandbox::{Inside, Link, Record, Records, Spec, Start, What};
use ash_snapshot::{Folder, Owner, Taken, TreeId};
use ash_store::{Lease, Session, Version};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// How long an agent may take to answer its greeting.
const GREETING: Duration = Duration::from_secs(60);
const SEALED: &str =
    "environment variables: they were sealed with another seal.key; bring them again with `env`";
/// How long the end of a sandbox may come after that of a process in it.
const A_MOMENT: Duration = Duration::from_millis(500);

/// A sandbox whose agent answers, and how it came to be.
pub(super) struct Woken {
    hands: Hands,
    tree: Tree,
    recalled: Recalled,
    /// Of others who took the files back while it slept.
    backs: Vec<TakenBack>,
    /// What did not work before it, from the top of the ladder.
    failed: Vec<Fact>,
    head: Option<String>,
    compared: Option<(Compared, Vec<String>)>,
    ear: Ear,
    began: Instant,
}

/// An agent that has answered.
struct Started {
    part: Part,
    position: u64,
    recalled: Recalled,
    ear: Ear,
}

/// A session's part of a sandbox.
struct Part {
    walls: Arc<Walls>,
    process: u16,
    records: Records,
}

/// Which program is started, and how.
struct Way<'w> {
    driver: &'w dyn Driver,
    version: &'w Version,
    program: Option<PathBuf>,
    provider: Option<Dialect>,
}

/// Everything a start needs; it runs beside the actor.
pub(super) struct Waking {
    pub(super) rooms: Arc<Rooms>,
    pub(super) session: Session,
    pub(super) state: State,
    pub(super) lease: Lease,
    pub(super) live: Live,
    pub(super) common: Arc<Common>,
    pub(super) tree: Option<Option<u32>>,
    pub(super) logs: Arc<Logs>,
    /// Somebody wants the session to stop: what would take long is not waited for.
    pub(super) halt: Arc<Notify>,
    /// Its environment cannot be opened here: it was sealed on another machine.
    sealed: bool,
    /// Until the sandbox is there.
    floor: Option<Floor>,
    /// For the sandbox, as long as it is not there.
    room: Option<Room>,
    /// A sandbox that was made in advance.
    prepared: Option<(Arc<Walls>, Records)>,
}

impl Actor {
    pub(super) fn start_wake(&mut self) {
        // Another one than that of the last start, which may have been told.
        self.halt = Arc::default();
        let waking = Waking {
            rooms: self.rooms.clone(),
            session: self.session.clone(),
            state: self.state.clone(),
            lease: self.lease.clone(),
            live: self.live.clone(),
            common: self.common.clone(),
            tree: None,
            logs: self.logs.clone(),
            halt: self.halt.clone(),
            sealed: false,
            floor: None,
            room: self.room.take(),
            prepared: None,
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
        let Woken {
            hands,
            tree: Tree { origin, uid, fallback },
            recalled,
            backs,
            failed,
            head,
            compared,
            ear,
            began,
        } = woken;
        self.common.set_tree(Some(uid));
        self.touch_later();
        let others =
            Others { salvage: self.salvage, fallback: fallback.as_ref(), compared: compared.as_ref() };
        // Whoever had a conversation gets a receipt for it, however this start came about.
        let receipt = (self.state.resuming || fallback.is_some() || self.state.told > 0)
            .then(|| ladder::receipt(&self.state, origin, &recalled, others));
        if let Some(Fallback { instead_of, used, why }) = &fallback {
            tracing::error!(session = %self.session.id, damaged = instead_of, used, why, "a checkpoint is damaged; the session goes on with an older one");
        }
        let mut facts: Vec<Fact> = backs.into_iter().map(Fact::TakenBack).chain(failed).collect();
        facts.push(Fact::Awake { incarnation: hands.incarnation, kept: recalled.kept });
        facts.extend(self.state.heard_again(&recalled.prompts));
        facts.extend(receipt.clone().map(|receipt| Fact::Resumed { receipt, head }));
        let heard = ash_store::Heard {
            incarnation: hands.incarnation,
            process: hands.process,
            position: hands.position,
        };
        if let Err(error) = self.commit(facts, Vec::new(), Some(heard), None).await {
            // Nobody knows of this sandbox: the next try makes another.
            self.leaving = Some(hands);
            return Err(error);
        }
        hands.walls.ack(self.session.no, hands.position).await;
        self.take_hands(hands);
        self.ear = ear;
        self.salvage = None;
        if let Err(error) = self.live.note_mended(self.session.native_id, None) {
            // Then the next receipt says it again.
            tracing::warn!(session = %self.session.id, %error, "the stamp still says that the memory was mended");
        }
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
        if matches!(error, Error::Setup(_) | Error::Halted) && self.tree().is_some() {
            // What its scripts have done until then.
            self.touch();
        }
        // Whoever told it to stop says what became of it.
        if !(matches!(error, Error::Halted) && self.closing.is_some()) {
            // What a script printed is the tenant's own, not the operator's.
            let told = if matches!(error, Error::Setup(_)) { &problem.code } else { &problem.error };
            tracing::warn!(session = %self.session.id, error = %told, "the session could not be started");
            self.note(vec![Fact::Failed { problem: problem.clone() }]).await?;
        }
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
        let common = self.common.clone();
        self.effect = Some(tokio::spawn(async move {
            let _floor = common.floor().await;
            // Somebody else was faster, who may have made another tree, or deleted the workspace.
            if common.walls().is_some() || !live.has_leftovers(common.tree().is_some()) {
                return Done::Salvaged(Ok(None));
            }
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
                let number = self.next_number();
                let shot = Shot { number, taken, consistency: Consistency::Live, beside: Vec::new() };
                let saved = Saved { salvage: true, ..self.describe(&shot) };
                let row = self.checkpoint_row(&saved, &shot.taken, 1);
                self.commit(vec![Fact::Saved(saved)], Vec::new(), None, Some(row)).await?;
                self.common.set_newest(number);
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

    pub(super) fn describe(&self, Shot { number, taken, consistency, beside }: &Shot) -> Saved {
        Saved {
            number: *number,
            turn: None,
            tree: taken.tree.as_str().to_owned(),
            consistency: *consistency,
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
            beside: beside.clone(),
            back: None,
        }
    }
}

impl Waking {
    async fn wake(mut self) -> Result<Woken> {
        let woken = self.start_all().await;
        // A sandbox that was made in advance, and that it did not come to use.
        let unused = self.prepared.take().or_else(|| self.common.take_prepared());
        if let Some((walls, _)) = unused.filter(|_| woken.is_err()) {
            walls.remote.end().await.ok();
            drop(walls);
            self.clear().await?;
        }
        woken
    }

    async fn start_all(&mut self) -> Result<Woken> {
        let began = Instant::now();
        if self.state.resuming {
            // Options may have been changed since the keeper came.
            self.session = self.rooms.store.session(self.session.no).await?.ok_or(Error::NotFound)?;
        }
        let version = self.version().await?;
        self.rooms.permits(&version.needs, self.session.options.limits, version.limits)?;
        let driver = ash_driver::driver(version.runtime);
        let options = &self.session.options;
        let program = self.rooms.settings.program(version.runtime, options)?.map(Path::to_owned);
        let provider = self.rooms.settings.provider(options, version.provider)?;
        // Before anything is built: without its key it would only fail later.
        self.rooms.way_out(&self.session, version.runtime, provider)?;
        self.prepared = self.common.take_prepared();
        if self.prepared.is_none() && self.walls().is_none() {
            // Before the floor: who makes way may be of this workspace.
            self.reserve().await?;
        }
        self.floor = Some(self.unless_halted(self.free_floor()).await?);
        let tree = match (self.walls(), &self.prepared) {
            (Some(_), _) => Tree { origin: Origin::Live, uid: self.common.tree().flatten(), fallback: None },
            (None, Some(_)) => {
                Tree { origin: Origin::Fresh, uid: self.common.tree().flatten(), fallback: None }
            }
            (None, None) => {
                self.clear().await?;
                self.tree = self.common.tree();
                if let Some(uid) = self.tree.take_if(|_| !self.live.is_there()) {
                    tracing::warn!(session = %self.session.id, "the files were removed from outside; the last checkpoint has them");
                    self.rooms.uids.give_back(uid);
                    self.common.set_tree(None);
                }
                self.tree(&version).await?
            }
        };
        self.tree = Some(tree.uid);
        self.common.set_tree(self.tree);
        self.fits(&version).await?;
        let way = Way { driver: driver.as_ref(), version: &version, program, provider };
        self.lay_out().await;
        // Where the files are gone with their workspace, so is the agent's own memory: it is told.
        let passing = self.session.slug.is_some() || self.session.options.ephemeral == Some(true);
        let told = passing && tree.origin == Origin::Fresh && self.state.told > 0;
        let rungs: &[Rung] =
            if told { &[Rung::History] } else { &[Rung::Found, Rung::Rebuilt, Rung::History] };
        let (started, failed) = self.descend(&way, rungs).await?;
        // From here on nobody takes them back: it is at work.
        let backs = self.rooms.backs_since(&self.session, self.state.backs).await?;
        let head = self.head(way.driver, &tree, &started.recalled, &backs).await?;
        let compared = self.compared(&tree).await?;
        let Started { part: Part { walls, process, records }, position, recalled, ear } = started;
        let (incarnation, remote) = (walls.incarnation, walls.remote.clone());
        let hands = Hands { incarnation, remote, process, records, position, exited: false, walls };
        Ok(Woken { hands, tree, recalled, backs, failed, head, compared, ear, began })
    }

    /// The folder that its agent is told of is there. Where something that the agent made is in the way, it is not.
    async fn lay_out(&self) {
        let (home, uid) = (self.live.home(), self.tree.flatten());
        let whose = (self.session.native_id, self.state.unborn);
        let owner = uid.map(|uid| Owner { uid, gid: uid });
        let made = blocking(move || artifacts::lay_out(&Folder::open(&home)?, whose, owner)).await;
        if let Err(error) = made {
            tracing::warn!(session = %self.session.id, %error, "the session has no folder of its own");
        }
    }

    /// What the checkpoint that the session goes on from says of it.
    async fn compared(&self, tree: &Tree) -> Result<Option<(Compared, Vec<String>)>> {
        let number = tree.fallback.as_ref().map(|fallback| fallback.used).or(self.state.checkpoint);
        let Some(number) = number.filter(|_| self.state.resuming) else { return Ok(None) };
        let Some(checkpoint) = self.rooms.store.checkpoint(self.session.workspace, number).await? else {
            return Ok(None);
        };
        let Ok(tree) = TreeId::parse(&checkpoint.tree) else { return Ok(None) };
        let repo = self.rooms.repo(&self.session.tenant)?;
        Ok(Some(crate::luggage::compare(&self.rooms, repo, &self.session, &tree).await?))
    }

    /// Down the ladder until the agent starts. If it does not even start without a memory, its memory is not at fault
    /// and stays as it was.
    async fn descend(&mut self, way: &Way<'_>, rungs: &[Rung]) -> Result<(Started, Vec<Fact>)> {
        let (mut failed, mut tried) = (Vec::new(), Vec::new());
        let before = self.live.mended(self.session.native_id);
        for rung in rungs.iter().copied() {
            let inside = self.rooms.inside(&self.live);
            let recalled = self.recall(rung, (way.driver, &inside), before.as_ref()).await?;
            match self.try_start(way, inside, recalled.clone()).await {
                Ok(started) => return Ok((started, failed)),
                Err(error) if is_about_memory(&error) && !matches!(recalled.memory, Memory::Fresh { .. }) => {
                    let reason = error.problem().error;
                    tracing::warn!(session = %self.session.id, tier = ?recalled.tier, reason, "the agent did not start with its memory");
                    failed.push(Fact::ResumeFailed { tier: recalled.tier, reason });
                    tried.push(recalled);
                }
                Err(error) => {
                    for tried in tried.iter().chain([&recalled]).rev() {
                        self.take_back(tried).await;
                    }
                    self.live.note_mended(self.session.native_id, before)?;
                    return Err(error);
                }
            }
        }
        Err(failed_to_start())
    }

    async fn try_start(&mut self, way: &Way<'_>, inside: Inside, recalled: Recalled) -> Result<Started> {
        let in_advance = self.prepared.is_some();
        match self.try_start_once(way, inside.clone(), recalled.clone()).await {
            // It died between the look at it and the start of its agent: that is nobody's fault.
            Err(error) if in_advance && is_about_sandbox(&error) => {
                tracing::warn!(session = %self.session.id, error = %error.problem().error, "a sandbox that was made in advance could not be used; another one is made");
                self.try_start_once(way, inside, recalled).await
            }
            tried => tried,
        }
    }

    async fn try_start_once(&mut self, way: &Way<'_>, inside: Inside, recalled: Recalled) -> Result<Started> {
        let mut part = self.enter(way).await?;
        match self.start(&mut part, way, inside, &recalled).await {
            Ok((said, position, ear)) => {
                let found = recalled.found.or(said);
                let forgot = self.state.told > 0 && found.as_ref().is_some_and(Remembered::is_nothing);
                let tier = if forgot { Tier::History } else { recalled.tier };
                let mut lost = recalled.lost;
                lost.extend(self.sealed.then(|| SEALED.to_owned()));
                let recalled = Recalled { found, tier, lost, ..recalled };
                Ok(Started { part, position, recalled, ear })
            }
            Err(error) => {
                self.withdraw(part).await?;
                Err(error)
            }
        }
    }

    /// The sandbox in which others are at work already.
    fn walls(&self) -> Option<Arc<Walls>> {
        self.common.walls().filter(|_| self.session.slug.is_some())
    }

    /// The floor, when a sandbox is there, or nobody is left who has not read what a dead one still said.
    async fn free_floor(&self) -> Floor {
        loop {
            let floor = self.common.floor().await;
            if self.walls().is_some() || self.common.is_left(self.session.no) {
                return floor;
            }
            drop(floor);
            self.common.until_left(self.session.no).await;
        }
    }

    /// A place for its sandbox. Who wanted it has brought one; whoever comes back by itself waits until there is one.
    async fn reserve(&mut self) -> Result<()> {
        if self.room.is_none() {
            let rooms = self.rooms.clone();
            self.room = Some(self.unless_halted(rooms.pool.room(None)).await??);
        }
        Ok(())
    }

    /// Into the sandbox that is there, or into a new one.
    async fn enter(&mut self, way: &Way<'_>) -> Result<Part> {
        if self.prepared.is_none() && self.walls().is_none() && self.room.is_none() {
            // Without the floor: whoever has the place that it waits for may wait for that.
            self.floor = None;
            self.reserve().await?;
        }
        let floor = match self.floor.take() {
            Some(floor) => floor,
            None => self.unless_halted(self.free_floor()).await?,
        };
        let (no, shared) = (self.session.no, self.session.slug.is_some());
        let walls = match (self.walls(), self.prepared.take()) {
            (Some(walls), _) => {
                // Somebody else was faster, and it is his that counts.
                self.room = None;
                (walls, None)
            }
            (None, Some((walls, mut records))) => {
                self.set_up(&walls, &mut records, way.version).await?;
                self.common.set_walls(Some(walls.clone()));
                (walls, Some(records))
            }
            (None, None) => {
                self.clear().await?;
                let room = self.room.take().ok_or(Error::Gone)?;
                let spec = self.spec(self.tree.flatten(), way);
                let (remote, mut records) = self.launch(&spec).await?.split();
                let walls = Walls::new(spec.incarnation, remote, room);
                self.set_up(&walls, &mut records, way.version).await?;
                self.common.set_walls(Some(walls.clone()));
                (walls, Some(records))
            }
        };
        let part = match walls {
            (walls, Some(records)) if !shared => Part { walls, process: common::AGENT, records },
            // Whoever heard everything until now goes when somebody else listens: the link ends with the last one.
            (walls, _everything) => {
                let process = self.common.free_number().ok_or(Error::Crowded)?;
                let records = walls.remote.listen(common::numbers(process, self.lease.epoch));
                Part { walls, process, records }
            }
        };
        self.common.enter(no, part.walls.incarnation, part.process);
        drop(floor);
        Ok(part)
    }

    /// Out of it again: the agent did not start.
    async fn withdraw(&self, part: Part) -> Result<()> {
        let _floor = self.common.floor().await;
        let Part { walls, process, .. } = part;
        if !self.common.leave(self.session.no, walls.incarnation) {
            walls.remote.signal(process, 9).await.ok();
            return Ok(());
        }
        walls.remote.end().await.ok();
        self.common.set_walls(None);
        drop(walls);
        self.clear().await
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
    pub(super) async fn clear(&self) -> Result<()> {
        let run = self.live.run();
        blocking(move || {
            ash_sandbox::reap(&run)?;
            crate::live::make_dir(&run)
        })
        .await
    }

    pub(super) fn bounds(&self, version: &Version) -> Bounds {
        bounds::merged(&self.rooms, self.session.options.limits, version.limits)
    }

    /// A session whose files took too much does not start before they take less, or may take more.
    async fn fits(&self, version: &Version) -> Result<()> {
        let was_full = self.state.problem.as_ref().is_some_and(|problem| problem.code == "disk_limit");
        let Some(most) = bounds::of_disk(&self.bounds(version)).filter(|_| was_full) else { return Ok(()) };
        let live = self.live.clone();
        let weight = blocking(move || bounds::weigh(&live, most)).await?;
        let reached = bounds::reached(None, weight, most);
        reached.map_or(Ok(()), |reached| Err(Error::Failed(reached.problem())))
    }

    fn spec(&self, uid: Option<u32>, way: &Way<'_>) -> Spec {
        let program = way.program.as_deref();
        let Inbuilt { limits, readonly, image, user_namespaces } =
            Inbuilt::of(&self.rooms, way.version, &self.session.options, program);
        Spec {
            incarnation: Incarnation::fresh(),
            epoch: self.lease.epoch,
            run_dir: self.live.run(),
            workspace: self.live.workspace(),
            home: self.live.home(),
            uid,
            limits,
            readonly,
            image,
            user_namespaces,
            orphan_ttl: self.rooms.settings.orphan_ttl,
        }
    }

    /// What the session's caller put into it. It stays as it is, for whoever brings the key of its seal.
    pub(super) async fn own_env(&mut self) -> Result<BTreeMap<String, String>> {
        match self.rooms.store.env(self.session.no).await {
            Ok(env) => Ok(env.expose()),
            Err(ash_store::Error::Sealed) => {
                self.sealed = true;
                Ok(BTreeMap::new())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn start(
        &mut self,
        Part { walls, process, records }: &mut Part,
        Way { driver, version, program, provider }: &Way<'_>,
        inside: Inside,
        recalled: &Recalled,
    ) -> Result<(Option<Remembered>, u64, Ear)> {
        let launch = Launch {
            workspace: inside.workspace.clone(),
            home: inside.home.clone(),
            exe: inside.exe.clone(),
            program: program.clone().unwrap_or_else(|| inside.exe.clone()),
            model_socket: inside.model_socket.clone(),
            provider: *provider,
            memory: recalled.memory,
            cut: self.state.current().is_some_and(|turn| turn.phase == Phase::Cut),
            options: self.session.options.clone(),
        };
        let command = driver.launch(&launch);
        let cwd = self.furnish(*driver, &inside).await?;
        let mut env = self.rooms.base_env(&self.session, &inside);
        env.extend(command.env);
        env.extend(version.env.expose());
        env.extend(self.own_env().await?);
        let (remote, process) = (&walls.remote, *process);
        let start = Start { process, argv: command.argv, env, cwd, raw: false, stdin: true };
        remote.egress(self.rooms.way_out(&self.session, version.runtime, *provider)?).await?;
        remote.start(start).await?;
        remote
            .input(
                process,
                1,
                driver.tell(&Say::Hello {
                    system_prompt: self.session.options.system_prompt.clone(),
                    append_system_prompt: self.session.options.append_system_prompt.clone(),
                }),
            )
            .await?;
        tokio::time::timeout(GREETING, self.listen((process, records), *driver))
            .await
            .map_err(|_| failed("agent_silent", "The agent did not answer its greeting within 60 s"))?
    }

    async fn listen(
        &self,
        (process, records): (u16, &mut Records),
        driver: &dyn Driver,
    ) -> Result<(Option<Remembered>, u64, Ear)> {
        let mut ear = Ear::default();
        while let Some(Record { offset, what, process: whose }) = records.next().await {
            if whose != process && !matches!(what, What::Gone { .. }) {
                continue;
            }
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
                // Somebody else's agent may have brought it down a moment ago.
                What::StartFailed { why } if why.contains("the sandbox is gone") => {
                    return Err(failed("sandbox_failed", "The sandbox ended before its agent was started"));
                }
                What::StartFailed { why } => {
                    return Err(failed("agent_failed", &format!("The agent could not be started: {why}")));
                }
                What::Exit(_) if self.is_gone(records).await => {
                    return Err(failed("sandbox_failed", "The sandbox ended before its agent answered"));
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

    /// Whether the agent ended because everything did, which is said a moment later.
    async fn is_gone(&self, records: &mut Records) -> bool {
        let gone = async {
            while let Some(record) = records.next().await {
                if matches!(record.what, What::Gone { .. }) {
                    return true;
                }
            }
            true
        };
        self.session.slug.is_some() && tokio::time::timeout(A_MOMENT, gone).await.unwrap_or(false)
    }
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Gone)?
}

/// The agent itself gave up, not what is around it.
fn is_about_memory(error: &Error) -> bool {
    matches!(error, Error::Failed(problem) if matches!(problem.code.as_str(), "agent_failed" | "agent_silent"))
}

fn is_about_sandbox(error: &Error) -> bool {
    match error {
        Error::Failed(problem) => problem.code == "sandbox_failed",
        Error::Sandbox(_) => true,
        _ => false,
    }
}

fn failed_to_start() -> Error {
    failed("agent_failed", "The agent could not be started; see the session's logs")
}

fn failed(code: &str, error: &str) -> Error {
    Error::Failed(Problem::new(code, error))
}
