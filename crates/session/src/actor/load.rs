//! Taking over a session: claim it, read its log, find out what is left of its sandbox, and draw the conclusions.

use super::{Actor, Done, Execs, Gauge, Hands, Idle, Purpose, Reply, Request, tree};
use crate::{
    Error, Result, blocking,
    common::{self, Common, Pen, Waiting, Walls},
    files::{FileSource, TreeState},
    live::{Live, Shape},
    logs::Logs,
    pool::{MoodCell, Passage},
    rooms::Rooms,
    state::{Budget, Found, State},
    witness,
};
use ash_driver::Ear;
use ash_model::{Cursor, Dialect, Epoch, Fact, Incarnation, JournalPosition, OnInterrupted, SessionNo};
use ash_sandbox::Egress;
use ash_store::{EventQuery, Lease, Session};
use std::{collections::VecDeque, sync::Arc};
use tokio::{sync::mpsc, time::Instant};

/// Where the files are, and for a writer the pen.
pub(crate) type Sourced = (FileSource, Option<Pen>);

/// What an actor shares with those who talk to it.
pub(crate) struct Seat {
    pub(crate) logs: Arc<Logs>,
    pub(crate) mood: Arc<MoodCell>,
    pub(crate) inbox: mpsc::Receiver<Request>,
}

impl Actor {
    /// For a session that was made a moment ago: nobody had it before. Its workspace may have been somebody's, if it has
    /// a name.
    pub(crate) async fn newborn(
        rooms: Arc<Rooms>,
        session: Session,
        state: State,
        (seat, passage, epoch): (Seat, Passage, Epoch),
    ) -> Result<Actor> {
        let common = rooms.common(session.workspace);
        if session.slug.is_none() {
            let lease = common.of_new(session.workspace, epoch);
            return Ok(Actor { passage, ..Actor::with(rooms, session, state, (lease, common), seat) });
        }
        let _floor = common.floor().await;
        let (lease, first) = common.claim(&rooms, session.workspace).await?;
        let mut actor = Actor::with(rooms, session, state, (lease, common.clone()), seat);
        actor.passage = passage;
        actor.look_around(first).await?;
        Ok(actor)
    }

    /// For a session that somebody had before, who may have died at any line.
    pub(crate) async fn load(rooms: Arc<Rooms>, session: Session, seat: Seat) -> Result<Actor> {
        let session = {
            let common = rooms.common(session.workspace);
            let _floor = common.floor().await;
            let known = session.last_seq;
            let session = Box::pin(witness::reconcile(&rooms, session)).await?;
            if session.last_seq != known {
                common.forget_lease();
            }
            session
        };
        let common = rooms.common(session.workspace);
        let _floor = common.floor().await;
        let (lease, first) = common.claim(&rooms, session.workspace).await?;
        let session = rooms.store.session(session.no).await?.ok_or(Error::NotFound)?;
        let events = rooms.store.facts(session.no).await?;
        let base = session.base.map_or(0, |(_, seq)| seq);
        let mut state = State::new(base).replay(&events);
        state.adopt(&session.card);
        let rewound = if session.slug.is_some() { common.back() } else { state.rewound };
        if first || session.slug.is_none() {
            common.forget_tree_before(rewound);
        }
        let mut actor = Actor::with(rooms, session, state, (lease, common.clone()), seat);
        actor.state.last_seq = actor.session.last_seq;
        actor.settle_queue();
        actor.deltas = actor.count_deltas().await?;
        actor.listen_again().await?;
        actor.take_over(first).await?;
        actor.note_when_begun().await?;
        actor.hear_of_backs().await?;
        Ok(actor)
    }

    fn with(
        rooms: Arc<Rooms>,
        session: Session,
        mut state: State,
        (lease, common): (Lease, Arc<Common>),
        seat: Seat,
    ) -> Actor {
        state.budget = Budget::of(&session.options);
        let live = common.live.clone();
        let driver = Arc::from(ash_driver::driver(session.runtime));
        let Seat { logs, mood, inbox } = seat;
        Actor {
            rooms,
            session,
            state,
            live,
            common,
            driver,
            ear: Ear::default(),
            hands: None,
            passage: Passage::default(),
            logs,
            mood,
            inbox,
            deltas: 0,
            execs: Execs::new(),
            commands: Vec::new(),
            lease,
            dirty: None,
            captured: Instant::now(),
            unpacked: 0,
            wants_capture: false,
            backoff: None,
            effect: None,
            lost_uid: None,
            halt: Arc::default(),
            used_early: Arc::default(),
            leaving: None,
            pausing: Vec::new(),
            resuming: Vec::new(),
            forking: Vec::new(),
            rewinding: VecDeque::new(),
            writing: Vec::new(),
            changes: VecDeque::new(),
            closing: None,
            unwritten: None,
            idle_since: Instant::now(),
            idle: Idle::new(),
            later: Vec::new(),
            patience: None,
            held_since: None,
            last_own: None,
            far_wait: None,
            gauge: Gauge::new(),
        }
    }

    async fn count_deltas(&self) -> Result<u64> {
        let mut after = Cursor::event(self.state.last_seq);
        loop {
            let items = self.rooms.store.read(self.session.no, after, 1000).await?;
            match items.last() {
                Some(last) => after = last.at,
                None => return Ok(after.delta),
            }
        }
    }

    /// What the running turn has said so far, for a driver that has to remember it.
    async fn listen_again(&mut self) -> Result<()> {
        let Some(turn) = self.state.current() else { return Ok(()) };
        let mut after = turn.seq;
        match turn.own {
            true => self.ear.expect_own(turn.id),
            false => self.ear.expect(turn.id),
        }
        loop {
            let query = EventQuery { after, limit: 1000, kinds: vec!["said"] };
            let events = self.rooms.store.events(self.session.no, &query).await?;
            let Some(last) = events.last() else { return Ok(()) };
            after = last.seq;
            for event in &events {
                if let Fact::Said { line } = &event.fact {
                    self.driver.hear(&mut self.ear, line.as_bytes());
                }
            }
        }
    }

    async fn take_over(&mut self, first: bool) -> Result<()> {
        let found = self.look_around(first).await?;
        let on_interrupted = self.session.options.on_interrupted.unwrap_or(OnInterrupted::Continue);
        let facts = self.state.bereaved(found, on_interrupted);
        if !facts.is_empty() {
            self.note(facts).await?;
        }
        self.lose_patience_later();
        Ok(())
    }

    /// What is left of the sandbox, with all that it still said. `first`: nobody here has looked after the workspace before.
    async fn look_around(&mut self, first: bool) -> Result<Found> {
        if first && self.live.has_scraps() {
            let live = self.live.clone();
            blocking(move || live.erase_scraps()).await?;
        }
        if first {
            let (live, tree) = (self.live.clone(), self.tree());
            blocking(move || live.settle_uploads(tree)).await?;
        }
        let found = match self.common.walls() {
            Some(walls) => self.step_in(walls).await?,
            None if first => self.find_sandbox().await?,
            None => Found::Dead,
        };
        if !matches!(found, Found::Alive(_))
            && let Some(awake) = self.state.awake.clone()
        {
            self.hear_the_dead(awake.incarnation).await?;
        }
        if found == Found::Mute {
            let run = self.live.run();
            blocking(move || Ok(ash_sandbox::reap(&run)?)).await?;
        }
        // Whatever happened meanwhile, no checkpoint of ours has it.
        if first && self.tree().is_some() && !self.is_ephemeral() {
            self.dirty = Some(Instant::now());
        }
        Ok(found)
    }

    /// A shim that outlived the last server is taken over; any other is ended.
    async fn find_sandbox(&mut self) -> Result<Found> {
        let room = self.rooms.pool.found(self.session.workspace, &self.session.tenant);
        let knocked = match ash_sandbox::knock(&self.live.run(), self.lease.epoch).await {
            Ok(Some(knocked)) => knocked,
            Ok(None) => return Ok(Found::Dead),
            // It does not answer as it should: nothing can be done with it.
            Err(error) => {
                tracing::warn!(session = %self.session.id, %error, "a sandbox that outlived its server is ended");
                return Ok(Found::Mute);
            }
        };
        let incarnation = knocked.hello.incarnation;
        let heard = self.rooms.store.positions(incarnation).await?;
        let known = self.is_shared() || heard.iter().any(|(no, _)| *no == self.session.no);
        let strong = self.rooms.settings.is_strong(&knocked.hello);
        if !strong {
            tracing::warn!(session = %self.session.id, "a sandbox that outlived its server has weaker walls than are required now: it is ended");
        }
        let usable = strong && known && !heard.is_empty() && self.tree().is_some();
        if !usable {
            knocked.end().await.ok();
            return Ok(Found::Dead);
        }
        let from = heard.iter().map(|(_, heard)| heard.position).min().unwrap_or(0);
        let numbers =
            |(_, heard): &(SessionNo, JournalPosition)| common::numbers(heard.process, self.lease.epoch);
        let (hello, remote, records) = knocked.follow_each(from, heard.iter().map(numbers).collect()).await?;
        for process in &hello.running {
            // Whoever started it has lost the connection with the last server.
            if !heard.iter().any(|(_, heard)| heard.process == *process) {
                remote.signal(*process, 9).await.ok();
            }
        }
        // The server's key may be another one now. A shim of an older server has no way out, and needs none; a key that a
        // client brought is in the shim alone.
        if self.session.options.own_provider.is_none() {
            remote.egress(self.way_out().await?).await.ok();
        }
        let walls = Walls::new(incarnation, remote, room);
        for ((no, heard), records) in heard.into_iter().zip(records) {
            walls.ack(no, heard.position).await;
            let last_in = match hello.last_ins.is_empty() {
                true => hello.last_in,
                false => hello.last_ins.get(&heard.process).copied().unwrap_or(0),
            };
            let runs = hello.running.contains(&heard.process);
            self.common.expect(no, Waiting { heard, records, last_in, runs });
        }
        self.common.set_walls(Some(walls.clone()));
        self.step_in(walls).await
    }

    /// Into a sandbox that was taken over, if the session was at work in it.
    async fn step_in(&mut self, walls: Arc<Walls>) -> Result<Found> {
        let no = self.session.no;
        let Some(Waiting { heard, records, last_in, runs }) = self.common.waiting(no) else {
            return Ok(Found::Dead);
        };
        let incarnation = walls.incarnation;
        // Somebody may have heard of its end and died before saying so.
        if !runs || self.state.awake.as_ref().is_none_or(|awake| awake.incarnation != incarnation) {
            walls.remote.signal(heard.process, 9).await.ok();
            if self.common.leave(no, incarnation) {
                walls.remote.end().await.ok();
                self.common.set_walls(None);
            }
            return Ok(Found::Dead);
        }
        let (process, position) = (heard.process, heard.position);
        let remote = walls.remote.clone();
        let hands =
            Hands { incarnation, remote, process, records, position, exited: false, allowed: None, walls };
        self.take_hands(hands);
        self.allow(None).await;
        for (input, say) in self.state.untold(last_in) {
            self.tell(input, &say).await;
        }
        Ok(Found::Alive(incarnation))
    }

    pub(super) fn take_hands(&mut self, hands: Hands) {
        self.execs.begin(common::first_command(hands.process, self.lease.epoch));
        self.gauge.begin();
        self.hands = Some(hands);
        // Before anybody is answered: whoever hears that it is there counts it.
        self.mood.set(self.mood_now(), self.can_go(), self.idle.since);
    }

    pub(super) async fn way_out(&self) -> Result<Option<Egress>> {
        let Session { tenant, agent, version, runtime, options, .. } = &self.session;
        // Of an agent that was deleted meanwhile the turn goes on, as it began.
        let version = self.rooms.store.version(tenant, agent, *version).await?;
        let usual = version.and_then(|version| version.provider);
        // Without a key there is no way, whoever was asked for.
        let provider = self.rooms.settings.provider(options, usual).unwrap_or(Some(Dialect::Anthropic));
        self.rooms.way_out(&self.session, *runtime, provider)
    }

    /// What a dead shim wrote down after we last listened: a turn may have come to its end in it.
    async fn hear_the_dead(&mut self, incarnation: Incarnation) -> Result<()> {
        let heard = self.rooms.store.positions(incarnation).await?;
        let own = heard.into_iter().find(|(no, _)| *no == self.session.no).map(|(_, heard)| heard);
        // The log of a session that came back from a witness says itself how much of the journal it has.
        let adopted = self.state.adopted.as_ref().and_then(|adopted| adopted.heard);
        let adopted = adopted.filter(|heard| heard.incarnation == incarnation);
        let Some(JournalPosition { process, position, .. }) = own.or(adopted) else {
            tracing::warn!(session = %self.session.id, "how much of the journal of a dead sandbox is in the log is not known: nothing of it is heard again");
            return Ok(());
        };
        let run = self.live.run();
        let left = blocking(move || Ok(ash_sandbox::drain(&run, incarnation, position)?)).await;
        match left {
            // Who died is plain; only what was said counts.
            Ok(records) => self.digest_of(incarnation, process, records).await.map(|_| ()),
            Err(error) => {
                tracing::warn!(session = %self.session.id, %error, "the journal of a dead sandbox could not be read");
                Ok(())
            }
        }
    }

    /// Where the files are now, for somebody who reads; for a writer a tree is made if there is none.
    pub(super) fn files(&mut self, purpose: Purpose, reply: Reply<Sourced>) {
        match (purpose, self.tree()) {
            (Purpose::Read, Some(uid)) if self.live.shape() == Shape::Whole => {
                reply.send(Ok((self.live_source(uid), None))).ok();
            }
            (Purpose::Read, _) => self.answer_reader(reply),
            (Purpose::Write, _) => self.writing.push(reply),
        }
    }

    fn live_source(&self, uid: Option<u32>) -> FileSource {
        // A sandbox that every session has left is about to end.
        let state = if self.common.is_inhabited() { TreeState::InSandbox } else { TreeState::Kept };
        FileSource::Live { workspace: self.live.workspace(), uid, state }
    }

    fn answer_reader(&self, reply: Reply<Sourced>) {
        let (rooms, session, state, lease) =
            (self.rooms.clone(), self.session.clone(), self.state.clone(), self.lease.clone());
        tokio::spawn(async move {
            let version = rooms.store.version(&session.tenant, &session.agent, session.version).await;
            let found = match version {
                Ok(version) => tree::recipe(&rooms, &session, &state, &lease, version.as_ref()).await,
                Err(error) => Err(error.into()),
            };
            reply.send(found.map(|(recipe, _)| (FileSource::Checkpoint { tree: recipe.tree }, None))).ok();
        });
    }

    /// Writers wait until nothing long is under way, then get a tree. True: one is being made.
    pub(super) fn answer_writers(&mut self) -> bool {
        // During a rewind they wait for the tree that comes: what they wrote into the one that goes would be lost.
        if self.writing.is_empty() || !self.rewinding.is_empty() {
            return false;
        }
        if self.live.has_leftovers(self.tree().is_some()) {
            self.start_salvage();
            return true;
        }
        while let Some(reply) = self.writing.pop() {
            // Without a pen somebody is about to put another tree in place, and has the floor, which this waits for.
            let (Some(uid), Some(pen)) = (self.tree(), self.common.try_pen()) else {
                self.writing.push(reply);
                self.start_furnish();
                return true;
            };
            self.touch();
            self.idle = Idle::new();
            let marked = self.live.mark_dirty();
            reply.send(marked.map(|()| (self.live_source(uid), Some(pen)))).ok();
        }
        false
    }

    /// Makes a tree without a sandbox.
    pub(super) fn start_furnish(&mut self) {
        let (rooms, session, state, lease, live) = (
            self.rooms.clone(),
            self.session.clone(),
            self.state.clone(),
            self.lease.clone(),
            self.live.clone(),
        );
        let common = self.common.clone();
        self.effect = Some(tokio::spawn(async move {
            let _floor = common.floor().await;
            match common.tree() {
                // Somebody else was faster.
                Some(uid) => Done::Furnished(Ok(uid)),
                None => Done::Furnished(furnish(&rooms, &session, &state, &lease, &live).await),
            }
        }));
    }

    pub(super) async fn furnished(&mut self, made: Result<Option<u32>>) -> Result<()> {
        match made {
            Ok(uid) => self.common.set_tree(Some(uid)),
            Err(error) => {
                self.answer_failed_writers(&error);
                self.give_up_rewinding(&error).await?;
            }
        }
        Ok(())
    }

    pub(super) fn answer_failed_writers(&mut self, error: &Error) {
        self.writing.drain(..).for_each(|reply| drop(reply.send(Err(error.shared()))));
    }
}

async fn furnish(
    rooms: &Arc<Rooms>,
    session: &Session,
    state: &State,
    lease: &Lease,
    live: &Live,
) -> Result<Option<u32>> {
    let version = rooms.store.version(&session.tenant, &session.agent, session.version).await?;
    let (recipe, _) = tree::recipe(rooms, session, state, lease, version.as_ref()).await?;
    tree::make_tree(rooms, session, live, recipe).await
}
