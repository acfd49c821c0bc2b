//! What comes of the work that goes on beside the actor.

use super::{
    Luck, World,
    server::{Begun, Close, Effect},
    shim::Shim,
};
use ash_model::{
    CaptureConsistency, Fact, Incarnation, Problem, Receipt, ResumePath, ResumeSource, SavedCheckpoint, Tier,
    TreeOrigin, TurnId,
};
use ash_session::machine::TurnPhase;

impl World {
    pub(super) fn settle(&mut self, luck: Luck) {
        let Some(effect) = self.server.as_mut().and_then(|server| server.effect.take()) else { return };
        match (effect, luck) {
            (Effect::Wake(begun), Luck::Good) => self.woke(begun),
            (Effect::Wake(_), Luck::Bad) => {
                self.note(vec![Fact::Failed { problem: Problem::new("agent_failed", "It did not start") }]);
            }
            (Effect::Save(turn), Luck::Good) => self.saved(turn),
            (Effect::Save(turn), Luck::Bad) => self.could_not_save(turn),
            (Effect::Midway(turn), Luck::Good) => self.saved_midway(turn),
            (Effect::Midway(_), Luck::Bad) => {}
            (Effect::Prepare, Luck::Good) => {
                if let Some(server) = &mut self.server {
                    server.prepared = true;
                }
            }
            (Effect::Prepare, Luck::Bad) => {
                if let Some(server) = &mut self.server {
                    server.rewinding = None;
                }
            }
            (Effect::Sleep, Luck::Good | Luck::Bad) => self.slept(),
        }
    }

    fn woke(&mut self, begun: Begun) {
        assert!(!self.shim.as_ref().is_some_and(|shim| shim.alive), "two sandboxes for one workspace");
        let incarnation = Incarnation(self.next_fresh());
        let resuming = self.state().resuming;
        self.shim = Some(Shim { changes: begun.changes, ..Shim::new(incarnation) });
        if let Some(server) = &mut self.server {
            server.tree = true;
            server.dirty = true;
            server.hands = true;
        }
        let resumed = resuming.then(|| Fact::Resumed { receipt: cold(), head: None });
        let awake = self.state().awake_fact(incarnation, None, begun.knew);
        self.note([awake].into_iter().chain(resumed).collect());
    }

    fn saved(&mut self, turn: Option<TurnId>) {
        let number = self.state().last_checkpoint + 1;
        if let Some(server) = &mut self.server {
            server.save_failed = false;
        }
        let under_way = self.state().current().filter(|turn| match turn.phase {
            TurnPhase::Running { .. } | TurnPhase::Cut => true,
            TurnPhase::Queued | TurnPhase::Saving { .. } | TurnPhase::Joined { .. } => false,
        });
        let midway = under_way.map(|turn| turn.id).filter(|_| turn.is_none());
        let saved = SavedCheckpoint { turn: turn.or(midway), mid_turn: midway.is_some(), ..saved(number) };
        let end = self.end_of(turn, Some(number));
        self.note([Fact::Saved(saved)].into_iter().chain(end).collect());
    }

    fn saved_midway(&mut self, turn: TurnId) {
        let number = self.state().last_checkpoint + 1;
        self.note(vec![Fact::Saved(SavedCheckpoint { turn: Some(turn), mid_turn: true, ..saved(number) })]);
    }

    pub(super) fn could_not_save(&mut self, turn: Option<TurnId>) {
        if let Some(server) = &mut self.server {
            server.save_failed = true;
            server.dirty = true;
            server.pausing = false;
            server.rewinding = None;
        }
        let end = self.end_of(turn, None);
        self.note([Fact::SaveFailed { turn, error: "no".into() }].into_iter().chain(end).collect());
    }

    fn end_of(&self, turn: Option<TurnId>, checkpoint: Option<u64>) -> Option<Fact> {
        let current = self.state().current().filter(|current| Some(current.id) == turn)?;
        match &current.phase {
            TurnPhase::Saving { how, problem, .. } => {
                Some(Fact::Finished { turn: current.id, outcome: *how, checkpoint, problem: problem.clone() })
            }
            TurnPhase::Queued | TurnPhase::Running { .. } | TurnPhase::Cut | TurnPhase::Joined { .. } => None,
        }
    }

    fn slept(&mut self) {
        self.shim = None;
        let Some(server) = &self.server else { return };
        let incarnation = server.state.awake.as_ref().map(|awake| awake.incarnation);
        let shutting = server.closing.is_some_and(|closing| closing.how == Close::Shutdown);
        if incarnation.is_some() && !shutting {
            let facts = server.state.sleep_facts();
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
