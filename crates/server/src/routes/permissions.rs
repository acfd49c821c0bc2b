//! What agents wait for: leave to make a call, and answers to questions.

use super::take::{Body, ListAsked, NoParameters, Part, Requested, session};
use crate::{
    app::App,
    audit,
    auth::Caller,
    fields::{self, UnknownFields},
    problem::{Answer, Problem},
    shapes,
};
use ash_model::{Kind, Verdict};
use ash_store::Deed;
use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// In characters.
const MOST_MESSAGE: usize = 10_000;
const DENIED: &str = "The user does not want this call to be made.";

pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    _: ListAsked<NoParameters>,
) -> Answer<Json<Value>> {
    let found = session(&app, &caller, &id).await?;
    let pending = app.sessions.pending(&found).await?;
    Ok(Json(json!({ "permissions": pending.iter().map(shapes::permission).collect::<Vec<_>>() })))
}

pub(super) async fn answer(
    State(app): State<App>,
    caller: Caller,
    asked: Requested,
    body: Body<Value>,
) -> Answer<Json<Value>> {
    let found = session(&app, &caller, &asked.id).await?;
    let id = asked.permission()?;
    let verdict = verdict(body.value)?;
    let behavior = match &verdict {
        Verdict::Allow { .. } => "allow",
        Verdict::Deny { .. } => "deny",
    };
    if let Verdict::Allow { updated_permissions, .. } = &verdict {
        // Whether it is still open is for the session to say.
        let pending = app.sessions.pending(&found).await?;
        let asked = pending.iter().find(|asked| asked.id == id);
        if asked.is_some_and(|asked| updated_permissions.iter().any(|rule| !asked.suggestions.contains(rule)))
        {
            let error = "updatedPermissions must be some of the request's own suggestions";
            return Err(Problem::new(Kind::Unprocessable, "invalid_answer", error));
        }
    }
    let detail = Some(match &verdict {
        Verdict::Allow { updated_permissions, .. } if !updated_permissions.is_empty() => {
            format!("{behavior} {id}, and {} for later", rules(updated_permissions.len()))
        }
        Verdict::Allow { .. } | Verdict::Deny { .. } => format!("{behavior} {id}"),
    });
    audit::of_session(&app, &caller, &found, (Deed::PermissionAnswered, detail)).await?;
    app.sessions.answer(found.no, id, verdict).await?;
    Ok(Json(json!({ "id": id, "behavior": behavior })))
}

fn rules(count: usize) -> String {
    if count == 1 { "one rule".to_owned() } else { format!("{count} rules") }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Given {
    behavior: Behavior,
    message: Option<String>,
    updated_input: Option<Map<String, Value>>,
    answers: Option<BTreeMap<String, Chosen>>,
    updated_permissions: Option<Vec<Value>>,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Behavior {
    Allow,
    Deny,
}

/// One of the choices, or several where that is possible.
#[derive(Deserialize)]
#[serde(untagged, expecting = "each is a text, or a list of texts")]
enum Chosen {
    One(String),
    Several(Vec<String>),
}

impl Chosen {
    fn words(self) -> String {
        match self {
            Chosen::One(one) => one,
            Chosen::Several(several) => several.join(", "),
        }
    }
}

fn verdict(body: Value) -> Answer<Verdict> {
    let invalid = |error: String| Problem::new(Kind::Unprocessable, "invalid_answer", error);
    let Given { behavior, message, updated_input, answers, updated_permissions } =
        fields::one(body, UnknownFields::Ignore).map_err(|error| invalid(error.to_string()))?;
    if message.as_ref().is_some_and(|message| message.chars().count() > MOST_MESSAGE) {
        return Err(invalid(format!("message must not be longer than {MOST_MESSAGE} characters")));
    }
    match behavior {
        Behavior::Allow if message.is_some() => {
            Err(invalid("message says why a call is denied; it does not go with allow".to_owned()))
        }
        Behavior::Allow => {
            let answers = answers.unwrap_or_default();
            let answers = answers.into_iter().map(|(question, chosen)| (question, chosen.words())).collect();
            let updated_permissions = updated_permissions.unwrap_or_default();
            Ok(Verdict::Allow {
                updated_input: updated_input.map(Value::Object),
                answers,
                updated_permissions,
            })
        }
        Behavior::Deny if updated_input.is_some() || answers.is_some() || updated_permissions.is_some() => {
            Err(invalid("updatedInput, answers and updatedPermissions go with allow".to_owned()))
        }
        Behavior::Deny => {
            let message = message.filter(|message| !message.trim().is_empty());
            Ok(Verdict::Deny { message: message.unwrap_or_else(|| DENIED.to_owned()) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_allow_or_deny_with_what_goes_with_it() {
        let read = |body: Value| verdict(body).map_err(|problem| (problem.kind, problem.code));
        let refused = Err((Kind::Unprocessable, "invalid_answer".to_owned()));
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
        assert_eq!(read(json!({"behavior": "allow", "message": null})), Ok(Verdict::allow()));
        assert_eq!(read(json!({"behavior": "deny"})), Ok(Verdict::deny(DENIED)));
        assert_eq!(read(json!({"behavior": "deny", "message": "no"})), Ok(Verdict::deny("no")));
        let chosen = json!({"behavior": "allow", "answers": {"One?": "A", "Some?": ["B", "C"]}});
        let answers = [("One?".to_owned(), "A".to_owned()), ("Some?".to_owned(), "B, C".to_owned())].into();
        assert_eq!(
            read(chosen),
            Ok(Verdict::Allow { updated_input: None, answers, updated_permissions: Vec::new() })
        );
    }
}
