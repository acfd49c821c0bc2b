//! What is wrong with the server as a whole: a short list that `/health` shows. Each part of the server sets its own
//! code, and clears it when the trouble is over.

use ash_model::Timestamp;
use ash_remote::TroubleReporter;
use std::{collections::BTreeMap, sync::Mutex};

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ServerTrouble {
    /// Stable: for alerts and scripts.
    pub code: &'static str,
    /// For a person: what is wrong, and the remedy. Contains no secrets.
    pub error: String,
    pub since: Timestamp,
}

#[derive(Debug, Default)]
pub struct ServerTroubles(Mutex<BTreeMap<&'static str, ServerTrouble>>);

impl ServerTroubles {
    /// Keeps `since` of a known trouble, and logs a new one.
    pub fn set(&self, code: &'static str, error: impl Into<String>, now: Timestamp) {
        let (mut all, error) = (self.lock(), error.into());
        match all.get_mut(code) {
            Some(known) => known.error = error,
            None => {
                tracing::error!(code, "{error}");
                all.insert(code, ServerTrouble { code, error, since: now });
            }
        }
    }

    /// Clears the trouble, if there is one.
    pub fn clear(&self, code: &'static str) {
        if self.lock().remove(code).is_some() {
            tracing::info!(code, "this problem is resolved");
        }
    }

    /// The oldest first.
    pub fn list(&self) -> Vec<ServerTrouble> {
        let mut all: Vec<ServerTrouble> = self.lock().values().cloned().collect();
        all.sort_by_key(|trouble| trouble.since.0);
        all
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, ServerTrouble>> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

impl TroubleReporter for ServerTroubles {
    fn set(&self, code: &'static str, error: String, since: Timestamp) {
        ServerTroubles::set(self, code, error, since);
    }

    fn clear(&self, code: &'static str) {
        ServerTroubles::clear(self, code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_keeps_its_beginning_until_it_is_cleared() {
        let troubles = ServerTroubles::default();
        troubles.set("later", "b", Timestamp(2));
        troubles.set("first", "a", Timestamp(1));
        troubles.set("later", "c", Timestamp(3));
        let of = |code, error: &str, since| ServerTrouble {
            code,
            error: error.to_owned(),
            since: Timestamp(since),
        };
        assert_eq!(troubles.list(), [of("first", "a", 1), of("later", "c", 2)]);
        let shown = serde_json::to_string(&troubles.list()[0]).expect("JSON");
        assert_eq!(shown, r#"{"code":"first","error":"a","since":"1970-01-01T00:00:00.001Z"}"#);
        troubles.clear("first");
        troubles.clear("never set");
        assert_eq!(troubles.list(), [of("later", "c", 2)]);
        troubles.clear("later");
        troubles.set("later", "d", Timestamp(9));
        assert_eq!(troubles.list(), [of("later", "d", 9)]);
    }
}
