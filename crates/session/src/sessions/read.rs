//! Reads of sessions that need no actor: rows, logs, and the settings that apply to them.

use super::Sessions;
use crate::{Error, Result};
use ash_model::{AgentRuntime, Durability, Event, EventSeq, ResourceLimits, SessionRowId, TurnId};
use ash_store::{
    AccessScope, EventQuery, NumberedMessage, SecretEnv, SessionFilter, SessionPage, SessionRow, TurnRow,
};

impl Sessions {
    pub async fn list(&self, scope: &AccessScope, filter: &SessionFilter) -> Result<SessionPage> {
        Ok(self.services.store.sessions(scope, filter).await?)
    }

    /// Events in the order of the log, including those of the sessions that it was forked from.
    pub async fn events(&self, no: SessionRowId, query: &EventQuery) -> Result<Vec<Event>> {
        Ok(self.services.store.events(no, query).await?)
    }

    /// What clients see as messages, with their ordinals in the whole log, after number `after`.
    pub async fn messages(&self, no: SessionRowId, after: u64, limit: u32) -> Result<Vec<NumberedMessage>> {
        Ok(self.services.store.messages(no, after, limit).await?)
    }

    pub async fn turn(&self, no: SessionRowId, turn: TurnId) -> Result<Option<TurnRow>> {
        Ok(self.services.store.turn(no, turn).await?)
    }

    /// The event that queued a turn, also one that a fork shares with the session that it was forked from.
    pub async fn turn_queued_at(&self, session: &SessionRow, turn: TurnId) -> Result<Option<EventSeq>> {
        let mut session = session.clone();
        loop {
            if let Some(row) = self.turn(session.no, turn).await? {
                return Ok(Some(row.seq));
            }
            let Some(base) = session.base else { return Ok(None) };
            session = self.get(base.parent).await?;
        }
    }

    /// The names of its environment variables. `None`: it has none, or they are sealed with another key.
    pub async fn env_names(&self, no: SessionRowId) -> Result<Option<Vec<String>>> {
        match self.services.store.env(no).await {
            Ok(env) if env.0.is_empty() => Ok(None),
            Ok(env) => Ok(Some(env.0.into_keys().collect())),
            Err(ash_store::Error::Sealed) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The values that its options contain masks for, by JSON pointer. Empty if they are sealed with another key,
    /// because then none of them can be kept.
    pub async fn option_secrets(&self, no: SessionRowId) -> Result<SecretEnv> {
        match self.services.store.secrets(no).await {
            Err(ash_store::Error::Sealed) => Ok(SecretEnv::default()),
            secrets => Ok(secrets?),
        }
    }

    /// The resource limits that apply to it.
    pub async fn limits_in_force(&self, session: &SessionRow) -> Result<ResourceLimits> {
        self.services.bounds(session).await
    }

    /// Whether the server supports this durability: `remote` needs an object store.
    pub fn check_durability(&self, wanted: Option<Durability>) -> Result<()> {
        match (wanted, &self.services.replicator) {
            (Some(Durability::Remote), None) => Err(Error::NoBucket),
            (Some(Durability::Remote), Some(_)) | (Some(Durability::Local) | None, _) => Ok(()),
        }
    }

    /// An error if the program of a runtime is too old. A missing program may be installed later.
    pub(crate) async fn check_runtime(&self, runtime: AgentRuntime) -> Result<()> {
        self.services.settings.supported(runtime).await.map(drop)
    }
}
