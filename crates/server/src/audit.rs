//! Orders of callers, for the audit. A line is written before the order is carried out: a server that dies in between
//! leaves a line too many, never one too few.

use crate::{app::AppState, auth::Caller, problem::ApiResult};
use ash_model::{AgentName, OwnerId, SessionRowId, TenantId};
use ash_store::{AuditAction, AuditActor, AuditEntry, SessionRow};
use std::net::IpAddr;

/// What a caller orders, and about whom.
pub(crate) struct NewAuditEntry<'a> {
    pub(crate) deed: AuditAction,
    /// The id of a session, or the name of an agent.
    pub(crate) subject: &'a str,
    /// Of a session that is there.
    pub(crate) session: Option<SessionRowId>,
    pub(crate) owner: Option<OwnerId>,
    /// Names of things, never values: a line is there for ever.
    pub(crate) detail: Option<String>,
}

pub(crate) async fn record(app: &AppState, caller: &Caller, ordered: NewAuditEntry<'_>) -> ApiResult<()> {
    let NewAuditEntry { deed, subject, session, owner, detail } = ordered;
    let (subject, tenant) = (subject.to_owned(), caller.tenant().clone());
    let at = app.sessions.rooms().clock();
    let line =
        AuditEntry { no: 0, at, tenant, action: deed, subject, owner, actor: caller.audit_actor(), detail };
    Ok(app.sessions.rooms().store.add_audit_entry(line, session).await?)
}

/// Of a session that is there.
pub(crate) async fn record_for_session(
    app: &AppState,
    caller: &Caller,
    session: &SessionRow,
    (deed, detail): (AuditAction, Option<String>),
) -> ApiResult<()> {
    let (no, owner) = (Some(session.no), session.owner.clone());
    let ordered = NewAuditEntry { deed, subject: session.id.as_str(), session: no, owner, detail };
    record(app, caller, ordered).await
}

pub(crate) async fn record_for_agent(
    app: &AppState,
    caller: &Caller,
    name: &AgentName,
    (deed, detail): (AuditAction, Option<String>),
) -> ApiResult<()> {
    record(app, caller, NewAuditEntry { deed, subject: name.as_str(), session: None, owner: None, detail })
        .await
}

/// Whose settings are changed.
#[derive(Clone, Copy)]
pub(crate) enum Changed<'a> {
    Session(&'a SessionRow),
    Agent(&'a AgentName),
}

/// The fields of its settings that are set anew, and the names of its variables if they are.
pub(crate) async fn record_config_change(
    app: &AppState,
    caller: &Caller,
    changed: Changed<'_>,
    (fields, variables): (Vec<String>, Option<Vec<String>>),
) -> ApiResult<()> {
    let (subject, session, owner) = match changed {
        Changed::Session(session) => (session.id.as_str(), Some(session.no), session.owner.clone()),
        Changed::Agent(name) => (name.as_str(), None, None),
    };
    if !fields.is_empty() {
        let detail = Some(join_names(&fields));
        let ordered = NewAuditEntry {
            deed: AuditAction::ConfigChanged,
            subject,
            session,
            owner: owner.clone(),
            detail,
        };
        record(app, caller, ordered).await?;
    }
    if let Some(variables) = variables {
        let detail = Some(join_names(&variables));
        record(app, caller, NewAuditEntry { deed: AuditAction::EnvChanged, subject, session, owner, detail })
            .await?;
    }
    Ok(())
}

/// Which settings a body sets, without those that hold variables.
pub(crate) fn field_names(body: &[String]) -> Vec<String> {
    body.iter().filter(|name| !["env", "extraEnv"].contains(&name.as_str())).cloned().collect()
}

/// In characters; a caller chooses how many names there are.
const MAX_DETAIL: usize = 500;

fn join_names(names: &[String]) -> String {
    let all = names.join(", ");
    match all.chars().count() > MAX_DETAIL {
        true => all.chars().take(MAX_DETAIL - 1).chain(['…']).collect(),
        false => all,
    }
}

/// Wrong keys are nobody's: the operator gets the line. That it cannot be written must not help whoever guesses.
pub(crate) async fn record_refused_key(app: &AppState, address: IpAddr, times: u64) {
    let line = AuditEntry {
        no: 0,
        at: app.sessions.rooms().clock(),
        tenant: TenantId::main(),
        action: AuditAction::KeyRefused,
        subject: address.to_string(),
        owner: None,
        actor: AuditActor::default(),
        detail: Some(times.to_string()),
    };
    if let Err(error) = app.sessions.rooms().store.add_audit_entry(line, None).await {
        tracing::warn!(%error, "a refused key could not be written to the audit");
    }
}
