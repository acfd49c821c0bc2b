//! Ways to a model that clients bring with keys of their own. They are here, for as long as their session is active, and
//! in the memory of its shim: nothing of them is written anywhere. Whoever comes back brings it again.

use crate::{Result, Sessions, Touched, rooms};
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
    /// Before a session's options become these: refuses what a new session would be refused for.
    pub async fn accepts_options(
        &self,
        session: &Session,
        options: &Options,
        touched: Touched,
    ) -> Result<()> {
        let Session { tenant, agent, version, runtime, slug, .. } = session;
        match self.rooms().store.version(tenant, agent, *version).await? {
            Some(version) => {
                self.rooms().accepts(&version, options, (slug.is_some(), touched))?;
                if touched.service {
                    self.rooms().settings.supported(version.runtime).await?;
                }
                Ok(())
            }
            // Without its version it cannot start again anyway.
            None => rooms::can_talk(*runtime, options),
        }
    }

    /// The client's own way to a model, for the next message or the next start.
    pub fn bring(&self, no: SessionNo, way: Egress) {
        self.rooms().brought.bring(no, way);
    }
}
