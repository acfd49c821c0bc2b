//! Going to another checkpoint: end the sandbox, capture what is here, write the other tree beside it, say so, and
//! put it in place. Whoever dies on the way leaves the session either as it was or as it was to be: the fact is the
//! line between the two, and a tree that does not know of it is not used any more.

use super::{
    Actor, Answer, Done, Occasion, Reply,
    wake::{blocking, recipe_of},
};
use crate::{Error, Result, live::Stamp, state::Wish};
use ash_model::{Fact, Status};

pub(super) struct Rewinding {
    wish: Wish,
    reply: Reply<Answer>,
    prepared: bool,
}

impl Rewinding {
    pub(super) fn new(wish: Wish, reply: Reply<Answer>) -> Rewinding {
        Rewinding { wish, reply, prepared: false }
    }
}

impl Actor {
    /// One step of the first rewind that somebody waits for. True: something was done, look again.
    pub(super) async fn drive_rewinding(&mut self) -> Result<bool> {
        let Some(rewinding) = self.rewinding.front() else { return Ok(false) };
        // Looked at again before every step: a message may have come since.
        if let Err(refused) = self.state.decide(&rewinding.wish) {
            self.answer_rewinder(Err(refused.into()));
            return Ok(true);
        }
        // A start that was promised to somebody comes first.
        if self.state.status == Status::Starting {
            return Ok(false);
        }
        let prepared = rewinding.prepared;
        if self.hands.is_some() {
            self.start_sleep();
        } else if self.state.awake.is_some() {
            self.note_asleep().await?;
        } else if self.live.has_leftovers(self.tree.is_some()) {
            self.start_salvage();
        } else if self.tree.is_some() && self.dirty.is_some() {
            self.start_save(Occasion::Between);
        } else if self.tree.is_some() && !prepared {
            self.start_prepare().await?;
        } else {
            self.rewind().await?;
        }
        Ok(true)
    }

    fn answer_rewinder(&mut self, answer: Result<Answer>) {
        if let Some(rewinding) = self.rewinding.pop_front() {
            rewinding.reply.send(answer).ok();
        }
    }

    /// Nothing was changed yet: whoever waits may try again.
    pub(super) fn give_up_rewinding(&mut self, error: &Error) {
        let problem = error.problem();
        for rewinding in self.rewinding.drain(..) {
            rewinding.reply.send(Err(Error::Failed(problem.clone()))).ok();
        }
    }

    fn target(&self) -> Option<u64> {
        match self.rewinding.front()?.wish {
            Wish::Rewind { to, .. } => Some(to),
            Wish::Prompt { .. } | Wish::Interrupt | Wish::Pause | Wish::Stop | Wish::Resume | Wish::End => {
                None
            }
        }
    }

    /// A checkpoint that cannot be read is found out here, while the tree that is there is still in place.
    async fn start_prepare(&mut self) -> Result<()> {
        let (Some(to), Some(uid)) = (self.target(), self.tree) else { return Ok(()) };
        let Some(checkpoint) = self.rooms.store.checkpoint(self.lease.workspace, to).await? else {
            self.answer_rewinder(Err(Error::NoCheckpoint));
            return Ok(());
        };
        let recipe = match recipe_of(&self.rooms, &self.state, &self.lease, &checkpoint.tree) {
            Ok(recipe) => recipe,
            Err(error) => {
                self.answer_rewinder(Err(error));
                return Ok(());
            }
        };
        let (rooms, live, tenant) = (self.rooms.clone(), self.live.clone(), self.session.tenant.clone());
        self.effect = Some(tokio::spawn(async move {
            let Ok(_turn) = rooms.restores.acquire().await else {
                return Done::Prepared(Err(Error::Stopping));
            };
            let writing = rooms.clone();
            let work = move || live.prepare(&recipe, &*writing.repo(&tenant)?, uid);
            Done::Prepared(blocking(work).await)
        }));
        Ok(())
    }

    pub(super) fn prepared(&mut self, prepared: Result<()>) {
        match prepared {
            Ok(()) => {
                if let Some(rewinding) = self.rewinding.front_mut() {
                    rewinding.prepared = true;
                }
            }
            Err(error) => self.answer_rewinder(Err(error)),
        }
    }

    /// Says that it is so; from then on it is, whatever becomes of us.
    async fn rewind(&mut self) -> Result<()> {
        let Some(rewinding) = self.rewinding.front() else { return Ok(()) };
        let facts = match self.state.decide(&rewinding.wish) {
            Ok(facts) => facts,
            Err(refused) => {
                self.answer_rewinder(Err(refused.into()));
                return Ok(());
            }
        };
        let rewound = facts.iter().find_map(|fact| match fact {
            Fact::Rewound(rewound) => Some(rewound.clone()),
            _ => None,
        });
        if let Err(error) = self.note(facts).await {
            self.answer_rewinder(Err(Error::Failed(error.problem())));
            return self.survive(Err(error));
        }
        tracing::info!(session = %self.session.id, checkpoint = self.state.checkpoint, "rewound");
        self.put_in_place().await;
        self.answer_rewinder(Ok(Answer { rewound, ..Answer::default() }));
        Ok(())
    }

    /// A failure costs nothing but time: the next start makes the tree anew.
    async fn put_in_place(&mut self) {
        let Some(uid) = self.tree else { return };
        self.dirty = None;
        let (epoch, boot, rewound) = (self.lease.epoch, self.rooms.settings.boot.clone(), self.state.rewound);
        let live = self.live.clone();
        let replaced = blocking(move || live.replace(&Stamp { epoch, boot, uid, rewound })).await;
        if let Err(error) = replaced {
            tracing::warn!(session = %self.session.id, %error, "the tree of a rewind is made at the next start");
            self.tree = None;
            self.rooms.uids.give_back(uid);
        }
    }
}
