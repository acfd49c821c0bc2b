//! Permission requests and questions of agents, and the answers to them.

use super::extract::{
    JsonBody, NoQueryParams, PathParam, PermissionPathParams, StrictQueryParams, find_session,
};
use crate::{
    app::AppState,
    auth::Caller,
    field_coercion::{self, UnknownFieldPolicy},
    openapi::{Answer, DocumentedInput, OperationDraft},
    problem::{ApiProblem, ApiResult},
    wire::permission::{AnsweredPermission, PermissionListAnswer, PermissionView},
};
use ash_model::{FailureKind, PermissionVerdict};
use ash_session::{AuditSubject, NewAuditEntry, Sessions};
use ash_store::AuditAction;
use axum::extract::{FromRequest, Request, State};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// In characters.
const MAX_DENIAL_MESSAGE_CHARS: usize = 10_000;
const DEFAULT_DENIAL_MESSAGE: &str = "The user does not want this call to be made.";

pub(super) async fn list(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    _: StrictQueryParams<NoQueryParams>,
) -> ApiResult<Answer<PermissionListAnswer>> {
    let found = find_session(&sessions, &caller, &id).await?;
    let pending = sessions.pending(&found).await?;
    Ok(Answer(PermissionListAnswer { permissions: pending.iter().map(PermissionView::of).collect() }))
}

pub(super) async fn answer(
    State(app): State<AppState>,
    caller: Caller,
    asked: PermissionPathParams,
    body: PermissionAnswerBody,
) -> ApiResult<Answer<AnsweredPermission>> {
    let found = find_session(&app.sessions, &caller, &asked.id).await?;
    let id = asked.permission()?;
    let verdict = verdict(body.0)?;
    let behavior = match &verdict {
        PermissionVerdict::Allow { .. } => "allow",
        PermissionVerdict::Deny { .. } => "deny",
    };
    if let PermissionVerdict::Allow { updated_permissions, .. } = &verdict {
        // The session decides whether the request is still open.
        let pending = app.sessions.pending(&found).await?;
        let asked = pending.iter().find(|asked| asked.id == id);
        if asked.is_some_and(|asked| updated_permissions.iter().any(|rule| !asked.suggestions.contains(rule)))
        {
            let error = "updatedPermissions must be some of the request's own suggestions";
            return Err(ApiProblem::new(FailureKind::Unprocessable, "invalid_answer", error));
        }
    }
    let detail = Some(match &verdict {
        PermissionVerdict::Allow { updated_permissions, .. } if !updated_permissions.is_empty() => {
            format!("{behavior} {id}, and {} for later", rules(updated_permissions.len()))
        }
        PermissionVerdict::Allow { .. } | PermissionVerdict::Deny { .. } => format!("{behavior} {id}"),
    });
    let (action, subject) = (AuditAction::PermissionAnswered, AuditSubject::Session(&found));
    app.audit.record(NewAuditEntry { actor: caller.audit_actor(), action, subject, detail }).await?;
    app.sessions.answer(found.no, id, verdict).await?;
    Ok(Answer(AnsweredPermission { id, behavior }))
}

fn rules(count: usize) -> String {
    if count == 1 { "one rule".to_owned() } else { format!("{count} rules") }
}

/// The body of an answer. What is wrong with it is 422, not 400 as elsewhere.
pub(super) struct PermissionAnswerBody(Value);

impl FromRequest<AppState> for PermissionAnswerBody {
    type Rejection = ApiProblem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, ApiProblem> {
        Ok(PermissionAnswerBody(JsonBody::from_request(request, app).await?.value))
    }
}

impl DocumentedInput for PermissionAnswerBody {
    fn describe(operation: &mut OperationDraft) {
        JsonBody::<PermissionAnswerRequest>::describe(operation);
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct PermissionAnswerRequest {
    behavior: PermissionBehavior,
    /// Why it is denied: the agent gets it instead of a result.
    #[schema(max_length = 10_000)]
    message: Option<String>,
    /// A replacement for the tool's input.
    updated_input: Option<Map<String, Value>>,
    /// For a question: the chosen options, by the text of each question.
    answers: Option<BTreeMap<String, AnswerChoice>>,
    /// Some of the request's `suggestions`, which apply from now on.
    updated_permissions: Option<Vec<Value>>,
}

#[derive(Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
enum PermissionBehavior {
    Allow,
    Deny,
}

/// One choice, or several where the question allows it.
#[derive(Deserialize, ToSchema)]
#[serde(untagged, expecting = "each is a text, or a list of texts")]
enum AnswerChoice {
    One(String),
    Several(Vec<String>),
}

impl AnswerChoice {
    fn words(self) -> String {
        match self {
            AnswerChoice::One(one) => one,
            AnswerChoice::Several(several) => several.join(", "),
        }
    }
}

fn verdict(body: Value) -> ApiResult<PermissionVerdict> {
    let invalid = |error: String| ApiProblem::new(FailureKind::Unprocessable, "invalid_answer", error);
    let PermissionAnswerRequest { behavior, message, updated_input, answers, updated_permissions } =
        field_coercion::deserialize_fields(body, UnknownFieldPolicy::Ignore)
            .map_err(|error| invalid(error.to_string()))?;
    if message.as_ref().is_some_and(|message| message.chars().count() > MAX_DENIAL_MESSAGE_CHARS) {
        return Err(invalid(format!(
            "message must not be longer than {MAX_DENIAL_MESSAGE_CHARS} characters"
        )));
    }
    match behavior {
        PermissionBehavior::Allow if message.is_some() => {
            Err(invalid("message says why a call is denied; it does not go with allow".to_owned()))
        }
        PermissionBehavior::Allow => {
            let answers = answers.unwrap_or_default();
            let answers = answers.into_iter().map(|(question, chosen)| (question, chosen.words())).collect();
            let updated_permissions = updated_permissions.unwrap_or_default();
            Ok(PermissionVerdict::Allow {
                updated_input: updated_input.map(Value::Object),
                answers,
                updated_permissions,
            })
        }
        PermissionBehavior::Deny
            if updated_input.is_some() || answers.is_some() || updated_permissions.is_some() =>
        {
            Err(invalid("updatedInput, answers and updatedPermissions go with allow".to_owned()))
        }
        PermissionBehavior::Deny => {
            let message = message.filter(|message| !message.trim().is_empty());
            Ok(PermissionVerdict::Deny {
                message: message.unwrap_or_else(|| DEFAULT_DENIAL_MESSAGE.to_owned()),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_is_allow_or_deny_with_what_goes_with_it() {
        let read = |body: Value| verdict(body).map_err(|problem| (problem.kind, problem.code));
        let refused = Err((FailureKind::Unprocessable, "invalid_answer".to_owned()));
        for bad in [
            json!({}),
            json!([]),
            json!("allow"),
            json!({"behavior": "maybe"}),
            json!({"behavior": "allow", "message": "why"}),
            json!({"behavior": "allow", "updatedInput": "ls"}),
            json!({"behavior": "allow", "answers": {"Which?": 5}}),
            json!({"behavior": "deny", "updatedInput": {}}),
            json!({"behavior": "deny", "answers": {}}),
            json!({"behavior": "deny", "message": "x".repeat(10_001)}),
        ] {
            assert_eq!(read(bad.clone()), refused, "{bad}");
        }
        assert_eq!(read(json!({"behavior": "allow", "message": null})), Ok(PermissionVerdict::allow()));
        assert_eq!(read(json!({"behavior": "deny"})), Ok(PermissionVerdict::deny(DEFAULT_DENIAL_MESSAGE)));
        assert_eq!(read(json!({"behavior": "deny", "message": "no"})), Ok(PermissionVerdict::deny("no")));
        let chosen = json!({"behavior": "allow", "answers": {"One?": "A", "Some?": ["B", "C"]}});
        let answers = [("One?".to_owned(), "A".to_owned()), ("Some?".to_owned(), "B, C".to_owned())].into();
        assert_eq!(
            read(chosen),
            Ok(PermissionVerdict::Allow { updated_input: None, answers, updated_permissions: Vec::new() })
        );
    }
}
