//! Ways to a model that clients bring with keys of their own. They are here, for as long as their session is active, and
//! in the memory of its shim: nothing of them is written anywhere. Whoever comes back brings it again.

use crate::{Error, Result, Sessions, rooms};
use ash_model::{Dialect, Options, Runtime, SessionNo};
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
    /// Before a session's options become these: refuses a service that its agent cannot talk to. An agent that runs
    /// talks as it was told when it started. Where it shall talk otherwise its sandbox is let go of, and the next start
    /// is with the new options; a turn is not cut off for that.
    pub async fn make_way(&self, session: &Session, options: &Options) -> Result<()> {
        if session.slug.is_some() && options.own_provider.is_some() {
            return Err(Error::ProviderShared);
        }
        rooms::can_talk(session.runtime, options)?;
        match talks_otherwise(session.runtime, &session.options, options) {
            true => self.release(session.no, false).await,
            false => Ok(()),
        }
    }

    /// The client's own way to a model, for the next message or the next start.
    pub fn bring(&self, no: SessionNo, way: Egress) {
        self.rooms().brought.bring(no, way);
    }
}

fn talks_otherwise(runtime: Runtime, before: &Options, after: &Options) -> bool {
    match runtime {
        Runtime::Builtin => words(before) != words(after),
        // It says the same whoever listens; but nobody else gives it the server's way back.
        Runtime::Claude => before.own_provider.is_some() && after.own_provider.is_none(),
    }
}

/// What the agent itself is told of whom it talks to. Where they are is not among it.
fn words(options: &Options) -> Option<(Dialect, Option<&str>, Option<&str>)> {
    let own = options.own_provider.as_ref()?;
    Some((own.r#type, own.deployment_id.as_deref(), own.api_version.as_deref()))
}
