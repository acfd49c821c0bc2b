//! Callers that wait for an answer. The machine knows them by number alone.

use super::options::RequestedOptions;
use crate::{
    Error, Result,
    machine::WaiterId,
    mailbox::{CommandReply, ForkPoint, GuardedFileSource, ReplySender},
    slots::Admission,
};
use std::collections::HashMap;

#[derive(Default)]
pub(super) struct Waiters {
    last: u64,
    commands: HashMap<WaiterId, CommandWaiter>,
    forks: HashMap<WaiterId, ReplySender<ForkPoint>>,
    files: HashMap<WaiterId, ReplySender<GuardedFileSource>>,
    changes: HashMap<WaiterId, (RequestedOptions, ReplySender<()>)>,
    shutdowns: HashMap<WaiterId, ReplySender<()>>,
}

struct CommandWaiter {
    reply: ReplySender<CommandReply>,
    /// Of a command that is handled later.
    admission: Option<Admission>,
}

impl Waiters {
    fn next(&mut self) -> WaiterId {
        self.last += 1;
        WaiterId(self.last)
    }

    pub(super) fn add_command(&mut self, reply: ReplySender<CommandReply>) -> WaiterId {
        let id = self.next();
        self.commands.insert(id, CommandWaiter { reply, admission: None });
        id
    }

    pub(super) fn add_fork(&mut self, reply: ReplySender<ForkPoint>) -> WaiterId {
        let id = self.next();
        self.forks.insert(id, reply);
        id
    }

    pub(super) fn add_files(&mut self, reply: ReplySender<GuardedFileSource>) -> WaiterId {
        let id = self.next();
        self.files.insert(id, reply);
        id
    }

    pub(super) fn add_change(&mut self, options: RequestedOptions, reply: ReplySender<()>) -> WaiterId {
        let id = self.next();
        self.changes.insert(id, (options, reply));
        id
    }

    pub(super) fn add_shutdown(&mut self, reply: ReplySender<()>) -> WaiterId {
        let id = self.next();
        self.shutdowns.insert(id, reply);
        id
    }

    /// Keeps the permit that came with a command that is handled later.
    pub(super) fn keep_admission(&mut self, id: WaiterId, admission: Admission) {
        if let Some(waiter) = self.commands.get_mut(&id) {
            waiter.admission = Some(admission);
        }
    }

    pub(super) fn take_admission(&mut self, id: WaiterId) -> Admission {
        self.commands.get_mut(&id).and_then(|waiter| waiter.admission.take()).unwrap_or_default()
    }

    pub(super) fn take_files(&mut self, id: WaiterId) -> Option<ReplySender<GuardedFileSource>> {
        self.files.remove(&id)
    }

    pub(super) fn take_change(&mut self, id: WaiterId) -> Option<(RequestedOptions, ReplySender<()>)> {
        self.changes.remove(&id)
    }

    pub(super) fn answer(&mut self, id: WaiterId, answer: Result<CommandReply>) {
        if let Some(waiter) = self.commands.remove(&id) {
            waiter.reply.send(answer).ok();
        }
    }

    /// Answers all callers that wait for the same thing. The first gets the error with its details; the others get its
    /// kind, code and message.
    pub(super) fn answer_all(&mut self, ids: Vec<WaiterId>, answer: Result<CommandReply>) {
        let Some((first, others)) = ids.split_first() else { return };
        for id in others {
            let copy = answer.as_ref().map(CommandReply::clone).map_err(Error::shared);
            self.answer(*id, copy);
        }
        self.answer(*first, answer);
    }

    /// The same for callers of every kind.
    pub(super) fn refuse_all(&mut self, ids: Vec<WaiterId>, error: &Error) {
        for id in ids {
            self.answer(id, Err(error.shared()));
            if let Some(reply) = self.forks.remove(&id) {
                reply.send(Err(error.shared())).ok();
            }
            if let Some(reply) = self.files.remove(&id) {
                reply.send(Err(error.shared())).ok();
            }
        }
    }

    pub(super) fn answer_forks(&mut self, ids: Vec<WaiterId>, point: &ForkPoint) {
        for reply in ids.into_iter().filter_map(|id| self.forks.remove(&id)) {
            reply.send(Ok(point.clone())).ok();
        }
    }

    pub(super) fn answer_shutdown(&mut self, id: WaiterId) {
        if let Some(reply) = self.shutdowns.remove(&id) {
            reply.send(Ok(())).ok();
        }
    }
}
