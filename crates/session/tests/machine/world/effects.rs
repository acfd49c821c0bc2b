//! The outcomes of effects, good or bad.

use super::{Luck, World, shim::Shim};
use ash_model::{
    CaptureConsistency, Fact, Incarnation, Problem, Receipt, ResumePath, ResumeSource, SavedCheckpoint, Tier,
    TreeOrigin,
};
use ash_session::machine::{CaptureOccasion, CaptureUnderWay, Effect, RemoteWait};

impl World {
    pub(super) fn settle(&mut self, luck: Luck) {
        let Some(machine) = &mut self.machine else { return };
        let Some(effect) = machine.finish_effect() else {
            if let Some(wait) = machine.runtime.remote_wait.take() {
                self.remote_wait_ended(wait, luck);
            }
            return;
        };
        match (effect, luck) {
            (Effect::Start { options_seen }, Luck::Good) => self.woke(options_seen),
            (Effect::Start { .. }, Luck::Bad) => self.start_failed(),
            (Effect::Capture(CaptureUnderWay { occasion, .. }), Luck::Good) => self.captured(occasion),
            (Effect::Capture(CaptureUnderWay { occasion, .. }), Luck::Bad) => self.capture_failed(occasion),
            (Effect::PrepareRewind, Luck::Good) => {
                self.machine_mut().rewind_prepared();
            }
            (Effect::PrepareRewind, Luck::Bad) => self.refuse_rewind(),
            (Effect::MakeTree, Luck::Good) => self.disk.tree = true,
            (Effect::MakeTree, Luck::Bad) => {
                self.refuse_writers();
                self.refuse_rewinds();
            }
            (Effect::Salvage, luck) => self.salvaged(luck),
            (Effect::EndSandbox, Luck::Good | Luck::Bad) => self.slept(),
        }
    }

    fn woke(&mut self, options_seen: u64) {
        assert!(!self.shim.as_ref().is_some_and(|shim| shim.alive), "two sandboxes for one workspace");
        let incarnation = Incarnation(self.next_fresh());
        let resuming = self.state().resuming;
        self.shim = Some(Shim { changes: self.changes_at_start, ..Shim::new(incarnation) });
        self.disk.tree = true;
        let now = self.now.instant;
        self.machine_mut().runtime.touch_later(now);
        let resumed = resuming.then(|| Fact::Resumed { receipt: cold(), head: None });
        let awake = self.machine().awake_fact(incarnation, None, options_seen, 0);
        self.note([awake].into_iter().chain(resumed).collect());
        self.machine_mut().runtime.connect(now);
        self.answer_resumers();
    }

    fn answer_resumers(&mut self) {
        let waiters = std::mem::take(&mut self.machine_mut().runtime.waiting.resuming);
        self.answer_all(waiters);
    }

    fn start_failed(&mut self) {
        // A start that was told to halt commits nothing: the closing does.
        if self.machine().halted_by().is_none() {
            let problem = Problem::new("agent_failed", "It did not start");
            let facts = self.machine().facts_of_failed_start(problem, false);
            self.note(facts);
        }
        self.answer_resumers();
    }

    fn captured(&mut self, occasion: CaptureOccasion) {
        let number = self.state().last_checkpoint + 1;
        let record = self.machine().capture_record(occasion, saved(number));
        self.note(record.facts.clone());
        self.machine_mut().capture_recorded(&record);
    }

    pub(super) fn capture_failed(&mut self, occasion: CaptureOccasion) {
        let now = self.now.instant;
        let facts = self.machine_mut().capture_failed(occasion, "no", now);
        if facts.is_empty() {
            return;
        }
        self.note(facts);
        if self.disk.broken {
            return self.lose_tree();
        }
        let waiters = self.waiters_of_files();
        self.answer_all(waiters);
        self.refuse_rewinds();
    }

    fn remote_wait_ended(&mut self, wait: RemoteWait, luck: Luck) {
        let trouble = match luck {
            Luck::Good => None,
            Luck::Bad => Some(Problem::new("not_remote", "The object store does not have it")),
        };
        let end = self.machine().remote_wait_ended(wait, trouble);
        self.note(end.into_iter().collect());
    }

    fn refuse_writers(&mut self) {
        let writers = std::mem::take(&mut self.machine_mut().runtime.waiting.writing);
        self.answer_all(writers);
    }

    fn salvaged(&mut self, luck: Luck) {
        if luck == Luck::Good {
            self.disk.leftovers = false;
            let number = self.state().last_checkpoint + 1;
            return self.note(vec![Fact::Saved(SavedCheckpoint { salvage: true, ..saved(number) })]);
        }
        let waiters = self.machine_mut().give_up_end();
        self.answer_all(waiters);
        self.refuse_rewinds();
        self.refuse_writers();
        if self.state().status == ash_model::SessionStatus::Starting {
            self.start_failed();
        }
    }

    fn slept(&mut self) {
        self.shim = None;
        if !self.machine().runtime.is_shutting_down() {
            let facts = self.state().sleep_facts();
            self.note(facts);
        }
    }
}

fn saved(number: u64) -> SavedCheckpoint {
    SavedCheckpoint {
        number,
        turn: None,
        tree: "tree".into(),
        consistency: CaptureConsistency::Frozen,
        files: 1,
        bytes: 1,
        skipped: Vec::new(),
        unsaved: Vec::new(),
        unsaved_more: 0,
        salvage: false,
        mid_turn: false,
        concurrent_turns: Vec::new(),
        rewound_to: None,
    }
}

fn cold() -> Receipt {
    Receipt {
        path: ResumePath::Cold,
        source: ResumeSource::Local,
        from: TreeOrigin::Live,
        tier: Tier::Native,
        checkpoint: None,
        verified: true,
        lost: Vec::new(),
        compared: None,
        repaired: Vec::new(),
        salvage: None,
        adopted: None,
    }
}
