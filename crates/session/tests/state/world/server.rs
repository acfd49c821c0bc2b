//! What dies with the server: what the actor does with a wish, and what it does by itself.

use super::World;
use ash_model::{EventSeq, Fact, SessionStatus, TurnId};
use ash_session::machine::{LogStep, LogState, StateCommand, TurnPhase};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Wake(Begun),
    Save(Option<TurnId>),
    Midway(TurnId),
    Prepare,
    Sleep,
}

/// What a start knows of the options that the agent is started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Begun {
    pub(super) knew: EventSeq,
    /// How often they had been changed.
    pub(super) changes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Close {
    Stop,
    Release,
    End,
    Shutdown,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Closing {
    pub(super) how: Close,
    pub(super) late: bool,
    pub(super) captured: bool,
}

/// What dies with the server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) state: LogState,
    pub(super) effect: Option<Effect>,
    pub(super) leaving: bool,
    pub(super) closing: Option<Closing>,
    pub(super) pausing: bool,
    pub(super) rewinding: Option<StateCommand>,
    pub(super) prepared: bool,
    pub(super) wants_capture: bool,
    pub(super) tree: bool,
    pub(super) dirty: bool,
    pub(super) save_failed: bool,
    /// The connection to the shim.
    pub(super) hands: bool,
}

impl Server {
    pub(super) fn new(state: LogState) -> Server {
        Server {
            state,
            effect: None,
            leaving: false,
            closing: None,
            pausing: false,
            rewinding: None,
            prepared: false,
            wants_capture: false,
            tree: false,
            dirty: false,
            save_failed: false,
            hands: false,
        }
    }

    pub(super) fn save(&mut self, turn: Option<TurnId>) {
        self.dirty = false;
        self.wants_capture = false;
        self.effect = Some(Effect::Save(turn));
    }

    pub(super) fn sleep(&mut self) {
        if std::mem::take(&mut self.hands) {
            self.dirty = true;
            self.leaving = true;
        }
    }
}

impl World {
    pub(super) fn wish(&mut self, wish: &StateCommand) {
        let Some(server) = &self.server else { return };
        if server.closing.is_some_and(|closing| refuses(closing.how, wish)) {
            return;
        }
        let decided = server.state.decide(wish);
        self.check_decision(wish, &decided);
        let Ok(facts) = decided else { return };
        match wish {
            StateCommand::Withdraw { .. } | StateCommand::Reorder { .. } | StateCommand::Resume => {
                self.note(facts)
            }
            StateCommand::Prompt { .. } | StateCommand::Interrupt => self.note_and_tell(facts),
            StateCommand::Answer { .. } => {
                if server.hands {
                    self.note_and_tell(facts);
                }
            }
            StateCommand::Pause => {
                if let Some(server) = &mut self.server {
                    server.pausing = true;
                    server.wants_capture = true;
                }
            }
            StateCommand::Rewind { .. } => {
                if let Some(server) = &mut self.server {
                    server.rewinding = Some(wish.clone());
                    server.prepared = false;
                }
            }
            StateCommand::Stop | StateCommand::End if facts.is_empty() => {}
            StateCommand::Stop => self.close(Close::Stop),
            StateCommand::Release { .. } => self.close(Close::Release),
            StateCommand::End => self.close(Close::End),
        }
    }

    pub(super) fn note_and_tell(&mut self, facts: Vec<Fact>) {
        let last = self.state().awake.as_ref().map_or(0, |awake| awake.next_input - 1);
        self.note(facts);
        for (input, say) in self.state().undelivered_inputs(last) {
            self.tell(input, say);
            if self.server.is_none() {
                return;
            }
        }
    }

    pub(super) fn close(&mut self, how: Close) {
        if let Some(server) = &mut self.server {
            server.closing = Some(Closing { how, late: false, captured: false });
        }
    }

    pub(super) fn capture(&mut self) {
        let Some(server) = &mut self.server else { return };
        server.dirty = true;
        let free = server.effect.is_none() && server.closing.is_none();
        if free && server.state.is_at_rest() && server.tree && server.state.next_step() == LogStep::Wait {
            server.save(None);
        }
    }

    pub(super) fn midway(&mut self) {
        let Some(server) = &mut self.server else { return };
        let free = server.effect.is_none() && server.closing.is_none() && server.rewinding.is_none();
        let running = server.state.current().filter(|turn| matches!(turn.phase, TurnPhase::Running { .. }));
        if let Some(turn) = running.filter(|_| free && server.hands && server.tree) {
            server.effect = Some(Effect::Midway(turn.id));
            server.dirty = true;
        }
    }

    pub(super) fn drive(&mut self) {
        for _ in 0..100 {
            let Some(server) = &mut self.server else { return };
            let overdue = if server.hands { server.state.overdue(self.now) } else { Vec::new() };
            if !overdue.is_empty() {
                self.note_and_tell(overdue);
                continue;
            }
            if server.effect.is_some() {
                return;
            }
            if std::mem::take(&mut server.leaving) {
                server.effect = Some(Effect::Sleep);
                return;
            }
            if server.closing.is_some() {
                self.drive_closing();
                if self.server.as_ref().is_some_and(|server| server.leaving || server.closing.is_none()) {
                    continue;
                }
                return;
            }
            if server.rewinding.is_some() && self.drive_rewinding() {
                continue;
            }
            let Some(server) = &mut self.server else { return };
            if server.pausing {
                self.pause();
                continue;
            }
            match server.state.next_step() {
                LogStep::Wait => return,
                LogStep::Wake => {
                    let begun = Begun { knew: server.state.last_options_change, changes: self.told.changes };
                    server.effect = Some(Effect::Wake(begun));
                }
                LogStep::Save { turn } if server.tree => server.save(Some(turn)),
                LogStep::Save { turn } => self.could_not_save(Some(turn)),
                LogStep::Sleep => server.sleep(),
                LogStep::Commit { facts } => self.note_and_tell(facts),
                LogStep::Tell { fact, input, say } => {
                    self.note(vec![fact]);
                    self.tell(input, say);
                }
            }
        }
        panic!("the actor would spin for ever: {:?}", self.state());
    }

    fn drive_rewinding(&mut self) -> bool {
        let Some(server) = &mut self.server else { return false };
        let Some(wish) = &server.rewinding else { return false };
        let Ok(facts) = server.state.decide(wish) else {
            server.rewinding = None;
            return true;
        };
        if server.state.status == SessionStatus::Starting {
            return false;
        }
        let asleep = server.state.awake.as_ref().map(|awake| awake.incarnation);
        if server.hands {
            server.sleep();
        } else if asleep.is_some() {
            let facts = server.state.sleep_facts();
            self.note(facts);
        } else if server.tree && server.dirty {
            server.save(None);
        } else if server.tree && !server.prepared {
            server.effect = Some(Effect::Prepare);
        } else {
            server.rewinding = None;
            self.note(facts);
        }
        true
    }

    fn pause(&mut self) {
        let Some(server) = &mut self.server else { return };
        if server.wants_capture && server.state.is_at_rest() && server.tree {
            server.save(None);
            return;
        }
        server.pausing = false;
        if let Ok(facts) = server.state.decide(&StateCommand::Pause) {
            self.note(facts);
        }
    }

    fn drive_closing(&mut self) {
        let Some(Server { state, closing: Some(closing), hands, .. }) = &mut self.server else { return };
        let phase = state.current().map(|turn| &turn.phase);
        let running = *hands && matches!(phase, Some(TurnPhase::Running { .. }));
        let saving = matches!(phase, Some(TurnPhase::Saving { .. }));
        let turn = state.current().map(|turn| turn.id);
        if closing.captured {
            return self.conclude();
        }
        if running && !closing.late {
            if closing.how != Close::Shutdown {
                let facts = state.decide(&StateCommand::Interrupt).unwrap_or_default();
                self.note_and_tell(facts);
            }
            return;
        }
        let late = closing.late;
        let Some(server) = &mut self.server else { return };
        if saving && !late {
            server.save(turn);
        } else if server.hands {
            server.sleep();
        } else {
            server.closing.as_mut().expect("seen above").captured = true;
            if server.tree && server.dirty {
                server.save(None);
            } else {
                self.conclude();
            }
        }
    }

    fn conclude(&mut self) {
        let Some(server) = &mut self.server else { return };
        let Some(closing) = server.closing.take() else { return };
        let unsafe_files = server.dirty && server.tree && server.save_failed;
        let wish = match closing.how {
            Close::Shutdown => {
                let facts = server.state.shut_down();
                self.note(facts);
                self.server = None;
                return;
            }
            Close::Stop => StateCommand::Stop,
            Close::Release => StateCommand::Release { by_force: true },
            Close::End => StateCommand::End,
        };
        if unsafe_files {
            return;
        }
        if let Ok(facts) = server.state.decide(&wish) {
            let ends = closing.how == Close::End;
            self.note(facts);
            if let Some(server) = self.server.as_mut().filter(|_| ends) {
                server.tree = false;
                server.dirty = false;
            }
        }
    }
}

fn refuses(closing: Close, wish: &StateCommand) -> bool {
    closing == Close::Shutdown || *wish != StateCommand::End
}
