//! Usage of models and its cost, and what sandboxes used of the machine.

use crate::Result;
use ash_model::{ResourceUsage, SessionId};
use ash_store::{AccessScope, SessionRow, Store, UsageGrouping, UsageQuery, UsageReportRow};
use std::{collections::HashMap, sync::Arc};

#[derive(Clone)]
pub struct Usage {
    store: Arc<dyn Store>,
}

impl Usage {
    pub fn new(store: Arc<dyn Store>) -> Usage {
        Usage { store }
    }

    /// A sum for each turn, session, agent, owner, model or day; the newest first.
    pub async fn report(
        &self,
        scope: &AccessScope,
        by: UsageGrouping,
        query: &UsageQuery,
    ) -> Result<Vec<UsageReportRow>> {
        Ok(self.store.usage(scope, Some(by), query).await?)
    }

    /// One sum of everything.
    pub async fn total(&self, scope: &AccessScope, query: &UsageQuery) -> Result<UsageReportRow> {
        Ok(self.store.usage(scope, None, query).await?.pop().unwrap_or_default())
    }

    /// The usage of one session.
    pub async fn of_session(&self, scope: &AccessScope, session: &SessionRow) -> Result<UsageReportRow> {
        let query = UsageQuery { session: Some(session.no), limit: 1, ..UsageQuery::default() };
        self.total(scope, &query).await
    }

    /// What the sandboxes of these sessions used together, over their whole lives.
    pub async fn total_resources(&self, scope: &AccessScope, query: &UsageQuery) -> Result<ResourceUsage> {
        Ok(self.store.total_resource_usage(scope, query).await?)
    }

    /// What the sandbox of each of these sessions used. A shared workspace counts fully for each of its sessions.
    pub async fn resources_by_session(
        &self,
        scope: &AccessScope,
        sessions: &[SessionId],
    ) -> Result<HashMap<SessionId, ResourceUsage>> {
        let taken = self.store.resource_usage_by_session(scope, sessions).await?;
        Ok(taken.into_iter().map(|taken| (taken.session, taken.usage)).collect())
    }

    /// What the sandbox of a session's workspace used.
    pub async fn resources_of(&self, session: &SessionRow) -> Result<ResourceUsage> {
        Ok(self.store.workspace_resource_usage(Some(session.workspace)).await?)
    }
}
