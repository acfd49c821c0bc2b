//! The option `infiniteSessions`: `true`, `false`, or an object. A field that is left out keeps its value.

use crate::{
    field_coercion,
    problem::{ApiProblem, ApiResult},
};
use ash_model::{AgentRuntime, CompactionOptions};
use serde_json::Value;
use utoipa::openapi::{
    RefOr,
    schema::{ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type},
};

const NAME: &str = "infiniteSessions";
const FIELDS: [&str; 4] =
    ["enabled", "backgroundCompactionThreshold", "bufferExhaustionThreshold", "contextWindow"];

/// True, false, or [`CompactionOptions`], of which each field may be left out.
pub(super) fn compaction_schema() -> RefOr<Schema> {
    let part =
        || ObjectBuilder::new().schema_type(Type::Number).maximum(Some(1.0)).exclusive_minimum(Some(0.0));
    let window = ObjectBuilder::new()
        .schema_type(SchemaType::Array(vec![Type::Integer, Type::Null]))
        .description(Some("Tokens; null: the model's own."));
    let fields = ObjectBuilder::new()
        .property(FIELDS[0], ObjectBuilder::new().schema_type(Type::Boolean))
        .property(FIELDS[1], part())
        .property(FIELDS[2], part())
        .property(FIELDS[3], window);
    OneOfBuilder::new()
        .item(ObjectBuilder::new().schema_type(Type::Boolean))
        .item(fields)
        .description(Some(
            "Compaction: true, false, or its settings, each of which keeps its value if it is left out.",
        ))
        .into()
}

/// The current options with the caller's changes, if there are any.
pub(super) fn merge_compaction_options(
    given: Option<Value>,
    before: Option<CompactionOptions>,
) -> ApiResult<Option<CompactionOptions>> {
    let Some(given) = given else { return Ok(before) };
    let mut set = before.unwrap_or_default();
    match given {
        Value::Bool(enabled) => set.enabled = enabled,
        Value::Object(fields) => {
            for (name, value) in fields {
                set_compaction_option(&mut set, &name, &value)?;
            }
        }
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            let fields = FIELDS.join(", ");
            return Err(invalid(format!("{NAME} must be true, false, or an object of {fields}")));
        }
    }
    let (background, full) = (set.background_compaction_threshold, set.buffer_exhaustion_threshold);
    if background >= full {
        return Err(invalid(format!(
            "{NAME}.backgroundCompactionThreshold ({background}) must be less than bufferExhaustionThreshold ({full})"
        )));
    }
    Ok(Some(set))
}

fn set_compaction_option(set: &mut CompactionOptions, name: &str, value: &Value) -> ApiResult<()> {
    let wrong = |what: String| invalid(format!("{NAME}.{name} must be {what}"));
    let part = || {
        let part = value.as_f64().filter(|part| *part > 0.0 && *part <= 1.0);
        part.ok_or_else(|| wrong("a number over 0 and at most 1: a part of the context window".into()))
    };
    match name {
        "enabled" => set.enabled = value.as_bool().ok_or_else(|| wrong("true or false".into()))?,
        "backgroundCompactionThreshold" => set.background_compaction_threshold = part()?,
        "bufferExhaustionThreshold" => set.buffer_exhaustion_threshold = part()?,
        "contextWindow" if value.is_null() => set.context_window = None,
        "contextWindow" => {
            let sizes = CompactionOptions::MIN_WINDOW..=CompactionOptions::MAX_WINDOW;
            let tokens = value.as_u64().filter(|tokens| sizes.contains(tokens));
            let wrong = || wrong(format!("{} to {} tokens, or null", sizes.start(), sizes.end()));
            set.context_window = Some(tokens.ok_or_else(wrong)?);
        }
        _ => {
            return Err(ApiProblem::invalid(
                "unknown_field",
                field_coercion::unknown_field_message(name, &FIELDS),
            ));
        }
    }
    Ok(())
}

/// Claude Code compacts by its own rules. Options that it does not support are refused, not ignored. `given`: the
/// caller's options.
pub(super) fn check(
    given: Option<&Value>,
    set: Option<&CompactionOptions>,
    runtime: AgentRuntime,
) -> ApiResult<()> {
    let (Some(set), AgentRuntime::Claude) = (set, runtime) else { return Ok(()) };
    // Also the default value: a caller that sets it relies on it.
    if given.is_some_and(|given| given.get("bufferExhaustionThreshold").is_some()) {
        return Err(invalid(format!(
            "{NAME}.bufferExhaustionThreshold cannot be set for Claude Code, whose turns wait for every compaction: leave it out"
        )));
    }
    let windows = CompactionOptions::WINDOWS_OF_CLAUDE;
    if set.context_window.is_some_and(|tokens| !windows.contains(&tokens)) {
        let (least, most) = (windows.start(), windows.end());
        return Err(invalid(format!(
            "{NAME}.contextWindow must be {least} to {most} tokens for Claude Code: others it does not take"
        )));
    }
    Ok(())
}

fn invalid(error: String) -> ApiProblem {
    ApiProblem::invalid("invalid_body", error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(given: Value, before: Option<CompactionOptions>) -> CompactionOptions {
        merge_compaction_options(Some(given), before).ok().flatten().expect("taken")
    }

    #[test]
    fn omitted_fields_keep_their_values() {
        let first = set(json!({ "backgroundCompactionThreshold": 0.5, "contextWindow": 8000 }), None);
        assert_eq!((first.enabled, first.buffer_exhaustion_threshold), (true, 0.95));
        let off = set(json!(false), Some(first));
        assert_eq!(off, CompactionOptions { enabled: false, ..first });
        assert_eq!(set(json!({ "contextWindow": null, "enabled": true }), Some(off)).context_window, None);
        assert_eq!(merge_compaction_options(None, Some(off)).ok(), Some(Some(off)));
        assert_eq!(set(json!(true), None), CompactionOptions::default());
    }

    #[test]
    fn values_outside_of_claude_codes_ranges_are_refused() {
        let checked = |given: Value, runtime| check(Some(&given), Some(&set(given.clone(), None)), runtime);
        for threshold in [0.9, 0.95, 1.0] {
            let given = json!({ "bufferExhaustionThreshold": threshold });
            assert!(checked(given.clone(), AgentRuntime::Claude).is_err(), "{given}");
            assert!(checked(given, AgentRuntime::Builtin).is_ok());
        }
        assert!(checked(json!({ "contextWindow": 8000 }), AgentRuntime::Claude).is_err());
        assert!(checked(json!({ "contextWindow": 8000 }), AgentRuntime::Builtin).is_ok());
        for fine in [json!(true), json!({ "contextWindow": 100_000, "backgroundCompactionThreshold": 0.3 })] {
            assert!(checked(fine, AgentRuntime::Claude).is_ok());
        }
        // The stored options have the default, which no caller set.
        assert!(check(None, Some(&CompactionOptions::default()), AgentRuntime::Claude).is_ok());
    }
}
