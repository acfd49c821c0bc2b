//! The option `limits`: the resources that a session may use. A field that is left out keeps its value, and `null`
//! selects the value of the agent or the server.

use crate::{
    app::AppState,
    auth::Caller,
    field_coercion,
    problem::{ApiProblem, ApiResult},
    wire::session::EffectiveLimits,
};
use ash_model::{BadResourceLimits, FailureKind, ResourceLimits, SandboxRequirements};
use ash_session::{LimitsRequester, OperatorPolicy};
use ash_store::SessionRow;
use serde_json::{Map, Value};
use utoipa::openapi::{
    RefOr,
    schema::{ObjectBuilder, Schema, SchemaType, Type},
};

/// [`ResourceLimits`], of which each may also be null.
pub(super) fn limits_schema() -> RefOr<Schema> {
    let number = || {
        ObjectBuilder::new().schema_type(SchemaType::Array(vec![Type::Integer, Type::Null])).minimum(Some(0))
    };
    let description = "Resource limits; 0: none. One that is left out keeps its value, and null selects that of the agent or the server.";
    let all = ObjectBuilder::new().description(Some(description));
    ResourceLimits::NAMES.iter().fold(all, |all, name| all.property(*name, number())).into()
}

pub(super) fn merge_resource_limits(
    given: Option<Value>,
    before: Option<ResourceLimits>,
) -> ApiResult<Option<ResourceLimits>> {
    let Some(given) = given else { return Ok(before) };
    let Value::Object(given) = given else {
        return Err(invalid("limits must be an object, as {\"memoryMb\": 2048}"));
    };
    let mut bounds = before.unwrap_or_default();
    for (name, value) in given {
        if !ResourceLimits::NAMES.contains(&name.as_str()) {
            return Err(ApiProblem::invalid(
                "unknown_field",
                field_coercion::unknown_field_message(&name, &ResourceLimits::NAMES),
            ));
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
    Ok(Some(bounds).filter(|bounds| *bounds != ResourceLimits::default()))
}

fn invalid(error: impl Into<String>) -> ApiProblem {
    ApiProblem::invalid("invalid_body", error)
}

/// Refuses limits above the operator's maximum. A session whose stored limits exceed a maximum that was lowered later
/// runs with the maximum, and its other options can still be changed.
pub(super) fn check_resource_limits(
    policy: &OperatorPolicy,
    caller: &Caller,
    given: Option<ResourceLimits>,
) -> ApiResult<()> {
    check_operator_limits(policy, caller, given)?;
    Ok(policy.permits(&SandboxRequirements::default(), given, None)?)
}

/// For all but the operator, the defaults are the maximum, unless ASH_LIMITS_MAX says otherwise.
pub(super) fn check_operator_limits(
    policy: &OperatorPolicy,
    caller: &Caller,
    given: Option<ResourceLimits>,
) -> ApiResult<()> {
    let requester = if caller.is_operator() { LimitsRequester::Operator } else { LimitsRequester::Tenant };
    let within = policy.check_max_limits(requester, given.unwrap_or_default());
    within.map_err(|error: BadResourceLimits| {
        let error = format!("limits: {error}. The operator allows more with ASH_LIMITS_MAX");
        ApiProblem::new(FailureKind::Unprocessable, "limit_too_high", error)
    })
}

/// The effective limits, and which mechanism enforces each.
pub(super) async fn effective_limits(app: &AppState, session: &SessionRow) -> ApiResult<EffectiveLimits> {
    let limits = app.sessions.limits_in_force(session).await?;
    let named = serde_json::to_value(limits).map_err(ApiProblem::internal)?;
    let names = named.as_object().into_iter().flat_map(Map::keys);
    let enforced_by = names.map(|name| (name.clone(), app.limit_enforcement.enforcer_of(name))).collect();
    Ok(EffectiveLimits { limits, enforced_by })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(given: Value, before: Option<ResourceLimits>) -> Option<ResourceLimits> {
        merge_resource_limits(Some(given), before).expect("taken")
    }

    #[test]
    fn omitted_limits_keep_their_values_and_null_removes_one() {
        let first = set(json!({ "memoryMb": 64, "turnSeconds": 5 }), None);
        assert_eq!(first, Some(ResourceLimits::parse("memoryMb=64,turnSeconds=5").expect("bounds")));
        let later = set(json!({ "memoryMb": null, "diskMb": 0 }), first);
        assert_eq!(later, Some(ResourceLimits::parse("diskMb=0,turnSeconds=5").expect("bounds")));
        assert_eq!(set(json!({ "diskMb": null, "turnSeconds": null }), later), None);
        assert_eq!(merge_resource_limits(None, later).ok(), Some(later));
    }

    #[test]
    fn meaningless_limits_are_refused_with_a_reason() {
        for (given, word) in [
            (json!(5), "must be an object"),
            (json!({ "memoryMb": "64" }), "limits.memoryMb must be a whole number"),
            (json!({ "memoryMb": -1 }), "whole number"),
            (json!({ "memoryMb": 1.5 }), "whole number"),
            (json!({ "memoryMb": 3 }), "memoryMb must be 0 (no limit) or 16 to"),
            (json!({ "memoryM": 64 }), "memoryM: did you mean memoryMb?"),
            (json!({ "ram": 64 }), "there are memoryMb, cpuPercent"),
        ] {
            let error = merge_resource_limits(Some(given), None).expect_err("refused").error;
            assert!(error.contains(word), "{error}");
        }
    }
}
