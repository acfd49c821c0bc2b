//! Ways to a model that clients bring with keys of their own. They are here, for as long as their session is active, and
//! in the memory of its shim: nothing of them is written anywhere. Whoever comes back brings it again.

use crate::{Error, Result, Sessions, rooms};
use ash_model::{Options, SessionNo};
use ash_sandbox::Egress;
use ash_store::Session;
use std::{collections::HashMap, sync::Mutex};

#[derive(Default)]
pub(crate) struct Brought(Mutex<HashMap<SessionNo, Egress>>);

impl Brought {
    pub(crate) fn bring(&self, no: SessionNo, way: Egress) {
        self.0.lock().expect("nobody panics while holding it").insert(no, way);
    }

    pub(crate) fn get(&self, no: SessionNo) -> Option<Egress> {
        self.0.lock().expect("nobody panics while holding it").get(&no).cloned()
    }

    pub(crate) fn forget(&self, no: SessionNo) {
        self.0.lock().expect("nobody panics while holding it").remove(&no);
    }
}

impl Sessions {
    /// Before a session's options become these: refuses a service that its agent cannot talk to.
    pub fn may_bring(&self, session: &Session, options: &Options) -> Result<()> {
        if session.slug.is_some() && options.own_provider.is_some() {
            return Err(Error::ProviderShared);
        }
        rooms::can_talk(session.runtime, options)
    }

    /// The client's own way to a model, for the next message or the next start.
    pub fn bring(&self, no: SessionNo, way: Egress) {
        self.rooms().brought.bring(no, way);
    }
}
