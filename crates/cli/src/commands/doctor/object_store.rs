//! Checks that saved data reaches the object store.

use super::{DoctorCheck, running_server::ServerHealth};
use crate::terminal;
use serde_json::Value;

const NAME: &str = "object store";

/// A running server reports the state of its object store. A check from here would test this shell's settings instead.
pub(super) fn told(told: &ServerHealth) -> Option<DoctorCheck> {
    let shown = &told.health["objectStore"];
    let text = |name: &str| shown[name].as_str().unwrap_or_default();
    match shown["status"].as_str()? {
        "ok" => Some(DoctorCheck::fine(NAME, format!("{} accepts uploads{}", text("url"), waiting(shown)))),
        _ => {
            let remedy = format!("{}\nUntil then data is saved only on this machine.", text("error"));
            Some(DoctorCheck::problem(NAME, text("code").replace('_', " ") + &waiting(shown), remedy))
        }
    }
}

fn waiting(shown: &Value) -> String {
    let number = |name: &str| shown[name].as_u64().unwrap_or(0);
    match number("waitingCheckpoints") {
        0 => String::new(),
        count => {
            format!("; {} to be sent, for {} s", terminal::plural(count, "checkpoint"), number("lagSeconds"))
        }
    }
}

pub(super) async fn check(config: &ash_server::ServerConfig) -> Option<DoctorCheck> {
    let found = match config.bucket() {
        Ok(None) => return None,
        Ok(Some(bucket)) => bucket.check().await.map(|()| bucket.to_string()),
        Err(trouble) => Err(trouble),
    };
    Some(match found {
        Ok(url) => DoctorCheck::fine(NAME, format!("{url} accepts uploads")),
        Err(trouble) => DoctorCheck::problem(
            NAME,
            trouble.code.as_str().replace('_', " "),
            format!("{trouble}\nUntil then data is saved only on this machine."),
        ),
    })
}
