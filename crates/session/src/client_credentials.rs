//! Credentials for models that clients bring for their own sessions. They are in the server's memory as long as the
//! session is active, and in the memory of its shim, and are never written to disk. A client that comes back sends them
//! again.

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
    /// Checks new options of a session: refuses what creating a session would refuse.
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
            // Without its version the session cannot start again, so only this check remains.
            None => services::check_provider_supported(*runtime, options),
        }
    }

    /// Sets the client's own credentials for the next message or the next start.
    pub fn set_client_credentials(&self, no: SessionRowId, way: EgressPolicy) {
        self.rooms().client_credentials.set(no, way);
    }
}
