//! Ways to a model that clients bring with keys of their own. They are here, for as long as their session is active, and
//! in the memory of its shim: nothing of them is written anywhere. Whoever comes back brings it again.

use ash_model::SessionNo;
use ash_sandbox::Egress;
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
