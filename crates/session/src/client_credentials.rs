//! Ways to a model that clients bring with keys of their own. They are here, for as long as their session is active, and
//! in the memory of its shim: nothing of them is written anywhere. Whoever comes back brings it again.

use crate::{Result, Sessions, TouchedOptions, services};
use ash_model::{SessionOptions, SessionRowId};
use ash_sandbox::EgressPolicy;
use ash_store::SessionRow;
use std::{collections::HashMap, sync::Mutex};

#[derive(Default)]
pub(crate) struct ClientCredentials(Mutex<HashMap<SessionRowId, EgressPolicy>>);

impl ClientCredentials {
    pub(crate) fn set(&self, no: SessionRowId, way: EgressPolicy) {
        self.0.lock().expect("nobody panics while holding it").insert(no, way);
    }

    pub(crate) fn get(&self, no: SessionRowId) -> Option<EgressPolicy> {
        self.0.lock().expect("nobody panics while holding it").get(&no).cloned()
    }

    pub(crate) fn forget(&self, no: SessionRowId) {
        self.0.lock().expect("nobody panics while holding it").remove(&no);
    }
}

impl Sessions {
    /// Before a session's options become these: refuses what a new session would be refused for.
    pub async fn accepts_options(
        &self,
        session: &SessionRow,
        options: &SessionOptions,
        touched: TouchedOptions,
    ) -> Result<()> {
        let SessionRow { tenant, agent, version, runtime, slug, .. } = session;
        match self.rooms().store.version(tenant, agent, *version).await? {
            Some(version) => {
                self.rooms().accepts(&version, options, (slug.is_some(), touched))?;
                if touched.service {
                    self.rooms().settings.supported(version.runtime).await?;
                }
                Ok(())
            }
            // Without its version it cannot start again anyway.
            None => services::check_provider_supported(*runtime, options),
        }
    }

    /// The client's own way to a model, for the next message or the next start.
    pub fn set_client_credentials(&self, no: SessionRowId, way: EgressPolicy) {
        self.rooms().client_credentials.set(no, way);
    }
}
