//! The commands of callers, for the audit. The entry about a new session is recorded together with the session. Other
//! entries are written right before their command is carried out: a crash in between leaves an entry too many, never one
//! too few.

use crate::{Result, services::WallClock};
use ash_model::{AgentName, OwnerId, SessionId, SessionRowId, TenantId};
use ash_store::{AuditAction, AuditActor, AuditEntry, AuditQuery, SessionRow, Store};
use std::{net::IpAddr, sync::Arc};

/// What a command is about.
#[derive(Debug, Clone, Copy)]
pub enum AuditSubject<'a> {
    Session(&'a SessionRow),
    /// A session that is about to be created.
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

/// A command of a caller, and what it is about.
pub struct NewAuditEntry<'a> {
    pub actor: AuditActor,
    pub action: AuditAction,
    pub subject: AuditSubject<'a>,
    /// Names of things, never values: an entry stays for ever.
    pub detail: Option<String>,
}

/// The settings that a command changes.
#[derive(Debug, Clone, Default)]
pub struct ConfigChange {
    /// The names of the fields that get a new value.
    pub fields: Vec<String>,
    /// The names of all variables after the change, if the variables change.
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
        let session = entry.subject.session();
        Ok(self.store.add_audit_entry(self.entry(entry), session).await?)
    }

    /// The entry, for what is recorded together with it.
    pub fn entry(&self, entry: NewAuditEntry<'_>) -> AuditEntry {
        let NewAuditEntry { actor, action, subject, detail } = entry;
        AuditEntry {
            no: 0,
            at: (self.clock)(),
            tenant: subject.tenant().clone(),
            action,
            subject: subject.name().to_owned(),
            owner: subject.owner().cloned(),
            actor,
            detail,
        }
    }

    /// Records an entry for the fields and one for the variables, if they change.
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

    /// Records a wrong key. It belongs to no tenant, so the operator gets the entry. A failure to write it is not
    /// returned, because it must not help a caller who guesses keys.
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
            tracing::warn!(%error, "the audit entry about a wrong key could not be written");
        }
    }

    /// The audit entries, the newest first.
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

/// In characters. The limit exists because a caller chooses how many names there are.
const MAX_DETAIL: usize = 500;

fn join_names(names: &[String]) -> String {
    let all = names.join(", ");
    match all.chars().count() > MAX_DETAIL {
        true => all.chars().take(MAX_DETAIL - 1).chain(['…']).collect(),
        false => all,
    }
}
