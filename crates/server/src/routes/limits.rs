//! The option `limits`: how much of the machine a session may take. What is left out stays as it was, and `null` is what
//! its agent says, or the server.

use crate::{
    app::App,
    auth::Caller,
    fields,
    problem::{Answer, Problem},
};
use ash_model::{BadBounds, Bounds, Kind, Needs, Resources};
use ash_store::Session;
use serde_json::{Map, Value, json};

pub(super) fn over(given: Option<Value>, before: Option<Bounds>) -> Answer<Option<Bounds>> {
    let Some(given) = given else { return Ok(before) };
    let Value::Object(given) = given else {
        return Err(invalid("limits must be an object, as {\"memoryMb\": 2048}"));
    };
    let mut bounds = before.unwrap_or_default();
    for (name, value) in given {
        if !Bounds::NAMES.contains(&name.as_str()) {
            return Err(Problem::invalid("unknown_field", fields::unknown(&name, &Bounds::NAMES)));
        }
        let number = match value {
            Value::Null => None,
            Value::Number(number) if number.is_u64() => number.as_u64(),
            Value::Number(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                return Err(invalid(format!("limits.{name} must be a whole number, or null")));
            }
        };
        bounds.set(&name, number).map_err(|error| invalid(format!("limits: {error}")))?;
    }
    Ok(Some(bounds).filter(|bounds| *bounds != Bounds::default()))
}

fn invalid(error: impl Into<String>) -> Problem {
    Problem::invalid("invalid_body", error)
}

/// Asked for more than the operator allows, one is refused. Of what a session has since they allowed more, only so much is
/// in force: it can be changed in other ways all the same.
pub(super) fn allowed(app: &App, caller: &Caller, given: Option<Bounds>) -> Answer<()> {
    within(app, caller, given)?;
    Ok(app.sessions.rooms().permits(&Needs::default(), given, None)?)
}

/// The defaults are the most for all but the operator, unless ASH_LIMITS_MAX says otherwise.
pub(super) fn within(app: &App, caller: &Caller, given: Option<Bounds>) -> Answer<()> {
    let settings = &app.sessions.rooms().settings;
    let most = if caller.is_operator() { settings.most } else { settings.most_of_tenants() };
    let within = given.unwrap_or_default().within(most);
    within.map_err(|error: BadBounds| {
        let error = format!("limits: {error}. The operator allows more with ASH_LIMITS_MAX");
        Problem::new(Kind::Unprocessable, "limit_too_high", error)
    })
}

/// What is in force, and by whom it is enforced.
pub(super) async fn in_force(app: &App, session: &Session) -> Answer<Value> {
    let bounds = app.sessions.rooms().bounds(session).await?;
    let mut shown = json!(bounds);
    let by: Map<String, Value> = shown
        .as_object()
        .into_iter()
        .flat_map(Map::keys)
        .map(|name| (name.clone(), json!(app.enforced.by(name))))
        .collect();
    shown["enforcedBy"] = Value::Object(by);
    Ok(shown)
}

/// What it took of the machine.
pub(super) async fn resources(app: &App, session: &Session) -> Answer<Value> {
    Ok(taken(&app.sessions.rooms().store.taken(Some(session.workspace)).await?))
}

pub(super) fn taken(taken: &Resources) -> Value {
    let Resources { cpu_ms, peak_memory, disk_bytes, files } = taken;
    json!({
        "cpuSeconds": *cpu_ms as f64 / 1000.0, "peakMemoryBytes": peak_memory, "diskBytes": disk_bytes,
        "files": files,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(given: Value, before: Option<Bounds>) -> Option<Bounds> {
        over(Some(given), before).expect("taken")
    }

    #[test]
    fn what_is_left_out_stays_as_it_was_and_null_is_forgotten() {
        let first = set(json!({ "memoryMb": 64, "turnSeconds": 5 }), None);
        assert_eq!(first, Some(Bounds::parse("memoryMb=64,turnSeconds=5").expect("bounds")));
        let later = set(json!({ "memoryMb": null, "diskMb": 0 }), first);
        assert_eq!(later, Some(Bounds::parse("diskMb=0,turnSeconds=5").expect("bounds")));
        assert_eq!(set(json!({ "diskMb": null, "turnSeconds": null }), later), None);
        assert_eq!(over(None, later).ok(), Some(later));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_word() {
        for (given, word) in [
            (json!(5), "must be an object"),
            (json!({ "memoryMb": "64" }), "limits.memoryMb must be a whole number"),
            (json!({ "memoryMb": -1 }), "whole number"),
            (json!({ "memoryMb": 1.5 }), "whole number"),
            (json!({ "memoryMb": 3 }), "memoryMb must be 0 (no limit) or 16 to"),
            (json!({ "memoryM": 64 }), "memoryM: did you mean memoryMb?"),
            (json!({ "ram": 64 }), "there are memoryMb, cpuPercent"),
        ] {
            let error = over(Some(given), None).expect_err("refused").error;
            assert!(error.contains(word), "{error}");
        }
    }
}
