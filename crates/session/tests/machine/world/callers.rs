//! The requests of callers, as the actor's mailbox handles them.

use super::{CLOSING, RestartNeed, World};
use ash_model::{LiveSetting, SessionStatus};
use ash_session::machine::{
    Admittance, Evictability, LockRequest, OvertakenClosing, PendingChange, Reception, SessionClosing,
    StateCommand, WaiterId,
};
use std::{collections::VecDeque, time::Duration};

/// How long a lock lasts without being used.
const TTL: Duration = Duration::from_millis(1500);

impl World {
    pub(super) fn next_caller(&mut self, change: Option<RestartNeed>) -> WaiterId {
        self.fresh += 1;
        let waiter = WaiterId(u64::try_from(self.fresh).expect("a short test"));
        self.callers.insert(waiter, change);
        waiter
    }

    pub(super) fn answer(&mut self, waiter: WaiterId) {
        assert!(self.callers.remove(&waiter).is_some(), "a caller is answered twice");
    }

    pub(super) fn answer_all(&mut self, waiters: Vec<WaiterId>) {
        waiters.into_iter().for_each(|waiter| self.answer(waiter));
    }

    pub(super) fn ask(&mut self, command: StateCommand) {
        if self.machine.is_none() {
            return;
        }
        let waiter = self.next_caller(None);
        self.handle_command(&command, waiter);
    }

    pub(super) fn handle_command(&mut self, command: &StateCommand, waiter: WaiterId) {
        match self.machine_mut().admit(command, waiter) {
            Admittance::Open => {}
            Admittance::Joined | Admittance::Deferred => return,
            Admittance::Refused(_) => return self.answer(waiter),
        }
        if matches!(command, StateCommand::Resume | StateCommand::Prompt { .. }) && self.disk.broken {
            self.lose_tree();
        }
        let decided = self.state().decide(command);
        self.check_decision(command, &decided);
        let Ok(facts) = decided else { return self.answer(waiter) };
        let facts = self.machine().without_tree(command, facts);
        let now = self.now.instant;
        match self.machine_mut().receive(command, waiter, facts, now) {
            Reception::Queue { facts } => {
                self.queue(facts);
                self.answer_if_here(waiter);
            }
            Reception::Commit { facts } => {
                self.note(facts);
                self.answer(waiter);
            }
            Reception::Interrupt { facts } => {
                self.note_and_tell(facts);
                if let Some(machine) = &mut self.machine {
                    machine.set_interrupt_deadline(now);
                }
                self.answer_if_here(waiter);
            }
            Reception::Answer { facts } => {
                if self.machine().runtime.is_connected() {
                    self.note_and_tell(facts);
                }
                self.answer_if_here(waiter);
            }
            Reception::Resume { facts } => {
                let warm = facts.iter().any(|fact| fact.kind() == "resumed");
                self.note(facts);
                if warm || !self.machine_mut().waits_for_start(waiter) {
                    self.answer(waiter);
                }
            }
            Reception::Done => self.answer(waiter),
            Reception::Waits => {}
            Reception::Closes(overtaken) => self.answer_overtaken(overtaken),
        }
    }

    /// A message is told at once if nothing is in its way.
    fn queue(&mut self, facts: Vec<ash_model::Fact>) {
        let delivery = self.machine().immediate_delivery(&facts).filter(|_| !self.disk.broken);
        let begun = delivery.iter().map(|(fact, ..)| fact.clone());
        let all = facts.into_iter().chain(begun).collect();
        self.note_and_tell(all);
        if let (Some(_), Some(machine)) = (delivery, &mut self.machine) {
            machine.runtime.capture.last = self.now.instant;
        }
        if let Some(machine) = &mut self.machine {
            machine.set_interrupt_deadline(self.now.instant);
        }
    }

    /// The server may have died on the way.
    fn answer_if_here(&mut self, waiter: WaiterId) {
        if self.machine.is_some() {
            self.answer(waiter);
        }
    }

    pub(super) fn note_and_tell(&mut self, facts: Vec<ash_model::Fact>) {
        let last = self.state().awake.as_ref().map_or(0, |awake| awake.next_input - 1);
        self.note(facts);
        for (input, say) in self.state().undelivered_inputs(last) {
            self.tell(input, say);
            if self.machine.is_none() {
                return;
            }
        }
    }

    fn answer_overtaken(&mut self, overtaken: Option<OvertakenClosing>) {
        if let Some(OvertakenClosing { commands, shutdown, .. }) = overtaken {
            self.answer_all(commands);
            self.answer_all(shutdown.into_iter().collect());
        }
    }

    pub(super) fn close(&mut self, closing: SessionClosing) {
        let overtaken = self.machine_mut().close(closing);
        self.answer_overtaken(overtaken);
    }

    pub(super) fn shut_down(&mut self) {
        if self.machine.is_none() {
            return;
        }
        let waiter = self.next_caller(None);
        self.close(SessionClosing::shutdown(self.now.instant + CLOSING, waiter));
    }

    pub(super) fn evict(&mut self) {
        if self.machine.as_ref().is_none_or(|machine| machine.evictability() == Evictability::Never) {
            return;
        }
        let fact = self.machine().eviction_fact(self.now.instant);
        self.note(fact.into_iter().collect());
        let waiter = self.next_caller(None);
        let release = StateCommand::Release { by_force: false };
        self.close(SessionClosing::by_command(release, vec![waiter], self.now.instant));
    }

    pub(super) fn change_options(&mut self, need: RestartNeed) {
        if self.machine.as_ref().is_none_or(|machine| machine.log.status == SessionStatus::Ended) {
            return;
        }
        let settings = match need {
            RestartNeed::Goes => VecDeque::from([LiveSetting::Model("m".into())]),
            RestartNeed::Restart => VecDeque::new(),
        };
        let waiter = self.next_caller(Some(need));
        let change = PendingChange { waiter, settings, told: None };
        self.machine_mut().runtime.waiting.changes.push_back(change);
    }

    /// The lock that the client holds. Its messages carry the number, so that a turn of its own keeps the lock.
    pub(super) fn held_lock(&self) -> Option<u64> {
        let lock = self.machine.as_ref()?.log.lock()?;
        lock.is_held(self.now.wall).then_some(lock.number)
    }

    pub(super) fn take_or_release_lock(&mut self) {
        if self.machine.as_ref().is_none_or(|machine| machine.log.status == SessionStatus::Ended) {
            return;
        }
        let fact = match self.held_lock() {
            Some(number) => self.state().release_lock(number).expect("it is the lock"),
            None => {
                let hash = self.next_fresh().to_string();
                let request = LockRequest { ttl: TTL, holder: None, hash, held: None, takeover: false };
                self.state().take_lock(request, self.now.wall).expect("no client holds it").1
            }
        };
        self.note(vec![fact]);
    }

    pub(super) fn ask_for_fork(&mut self) {
        if self.machine.is_some() {
            let waiter = self.next_caller(None);
            self.machine_mut().receive_fork(waiter);
        }
    }

    pub(super) fn ask_to_write(&mut self) {
        if self.machine.as_ref().is_some_and(|machine| machine.log.status != SessionStatus::Ended) {
            let waiter = self.next_caller(None);
            self.machine_mut().runtime.waiting.writing.push(waiter);
        }
    }
}
