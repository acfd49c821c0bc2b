//! Credentials for models that clients bring for their own sessions. They are in the server's memory as long as the
//! session is active, and in the memory of its shim, and are never written to disk. A client that comes back sends them
//! again.

use ash_model::SessionRowId;
use ash_sandbox::EgressPolicy;
use std::{collections::HashMap, sync::Mutex};

#[derive(Default)]
pub(crate) struct ClientCredentials(Mutex<HashMap<SessionRowId, EgressPolicy>>);

impl ClientCredentials {
    pub(crate) fn set(&self, no: SessionRowId, way: EgressPolicy) {
        self.0.lock().expect("no thread panics while holding it").insert(no, way);
    }

    pub(crate) fn get(&self, no: SessionRowId) -> Option<EgressPolicy> {
        self.0.lock().expect("no thread panics while holding it").get(&no).cloned()
    }

    pub(crate) fn forget(&self, no: SessionRowId) {
        self.0.lock().expect("no thread panics while holding it").remove(&no);
    }
}
