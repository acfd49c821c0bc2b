//! Orders of callers, for the audit. An entry is written before the order is carried out: a server that dies in between
//! leaves an entry too many, never one too few.

use crate::{Result, services::WallClock};
use ash_model::{AgentName, OwnerId, SessionId, SessionRowId, TenantId};
use ash_store::{AuditAction, AuditActor, AuditEntry, AuditQuery, SessionRow, Store};
use std::{net::IpAddr, sync::Arc};

/// Whom an order is about.
#[derive(Debug, Clone, Copy)]
pub enum AuditSubject<'a> {
    Session(&'a SessionRow),
    /// A session that is about to be made.
    NewSession {
        tenant: &'a TenantId,
        id: &'a SessionId,
        owner: Option<&'a OwnerId>,
    },
    Agent {
        tenant: &'a TenantId,
        name: &'a AgentName,
    },
}

/// What a caller orders, and about whom.
pub struct NewAuditEntry<'a> {
    pub actor: AuditActor,
    pub action: AuditAction,
    pub subject: AuditSubject<'a>,
    /// Names of things, never values: an entry is there for ever.
    pub detail: Option<String>,
}

/// Which settings an order changes.
#[derive(Debug, Clone, Default)]
pub struct ConfigChange {
    /// The names of fields that are set anew.
    pub fields: Vec<String>,
    /// The names of all variables from now on, if they are set anew.
    pub variables: Option<Vec<String>>,
}

#[derive(Clone)]
pub struct Audit {
    store: Arc<dyn Store>,
    clock: WallClock,
}

impl Audit {
    pub fn new(store: Arc<dyn Store>, clock: WallClock) -> Audit {
        Audit { store, clock }
    }

    pub async fn record(&self, entry: NewAuditEntry<'_>) -> Result<()> {
        let NewAuditEntry { actor, action, subject, detail } = entry;
        let entry = AuditEntry {
            no: 0,
            at: (self.clock)(),
            tenant: subject.tenant().clone(),
            action,
            subject: subject.name().to_owned(),
            owner: subject.owner().cloned(),
            actor,
            detail,
        };
        Ok(self.store.add_audit_entry(entry, subject.session()).await?)
    }

    /// An entry for the fields and one for the variables, where some are set anew.
    pub async fn record_config_change(
        &self,
        actor: &AuditActor,
        subject: AuditSubject<'_>,
        change: ConfigChange,
    ) -> Result<()> {
        let ConfigChange { fields, variables } = change;
        let fields = Some(fields).filter(|fields| !fields.is_empty());
        let changed = [(AuditAction::ConfigChanged, fields), (AuditAction::EnvChanged, variables)];
        for (action, names) in changed {
            if let Some(names) = names {
                let detail = Some(join_names(&names));
                self.record(NewAuditEntry { actor: actor.clone(), action, subject, detail }).await?;
            }
        }
        Ok(())
    }

    /// Wrong keys belong to no tenant: the operator gets the entry. That it cannot be written must not help a caller who
    /// guesses keys.
    pub async fn record_refused_key(&self, address: IpAddr, times: u64) {
        let entry = AuditEntry {
            no: 0,
            at: (self.clock)(),
            tenant: TenantId::main(),
            action: AuditAction::KeyRefused,
            subject: address.to_string(),
            owner: None,
            actor: AuditActor::default(),
            detail: Some(times.to_string()),
        };
        if let Err(error) = self.store.add_audit_entry(entry, None).await {
            tracing::warn!(%error, "a wrong key could not be written to the audit");
        }
    }

    /// Newest first.
    pub async fn list(&self, tenant: &TenantId, query: &AuditQuery) -> Result<Vec<AuditEntry>> {
        Ok(self.store.audit_entries(tenant, query).await?)
    }
}

impl AuditSubject<'_> {
    fn tenant(&self) -> &TenantId {
        match self {
            AuditSubject::Session(session) => &session.tenant,
            AuditSubject::NewSession { tenant, .. } | AuditSubject::Agent { tenant, .. } => tenant,
        }
    }

    fn name(&self) -> &str {
        match self {
            AuditSubject::Session(session) => session.id.as_str(),
            AuditSubject::NewSession { id, .. } => id.as_str(),
            AuditSubject::Agent { name, .. } => name.as_str(),
        }
    }

    fn owner(&self) -> Option<&OwnerId> {
        match self {
            AuditSubject::Session(session) => session.owner.as_ref(),
            AuditSubject::NewSession { owner, .. } => *owner,
            AuditSubject::Agent { .. } => None,
        }
    }

    fn session(&self) -> Option<SessionRowId> {
        match self {
            AuditSubject::Session(session) => Some(session.no),
            AuditSubject::NewSession { .. } | AuditSubject::Agent { .. } => None,
        }
    }
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
