//! Usage: tokens and money by turn, and what sandboxes took of the machine.

use crate::{AccessScope, Result};
use ash_model::{
    AgentName, Incarnation, OwnerId, ResourceUsage, SessionId, SessionRowId, Timestamp, TurnId, UsageTotal,
    WorkspaceId,
};
use async_trait::async_trait;

/// By what usage is grouped. Each group has a sum of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageGrouping {
    /// Each turn.
    Turn,
    /// Each session.
    Session,
    /// Each agent.
    Agent,
    /// Each owner.
    Owner,
    /// Each model.
    Model,
    /// Each day in UTC.
    Day,
}

impl UsageGrouping {
    /// All of them with their names in the API.
    pub const ALL: [(UsageGrouping, &'static str); 6] = [
        (UsageGrouping::Turn, "turn"),
        (UsageGrouping::Session, "session"),
        (UsageGrouping::Agent, "agent"),
        (UsageGrouping::Owner, "owner"),
        (UsageGrouping::Model, "model"),
        (UsageGrouping::Day, "day"),
    ];

    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        UsageGrouping::ALL.iter().find(|(by, _)| *by == self).map_or("", |(_, name)| name)
    }

    /// The grouping with this name.
    pub fn parse(text: &str) -> Option<UsageGrouping> {
        UsageGrouping::ALL.iter().find(|(_, name)| *name == text).map(|(by, _)| *by)
    }
}

/// Which usage is summed. Every field narrows it.
#[derive(Debug, Clone, Default)]
pub struct UsageQuery {
    /// Of one session.
    pub session: Option<SessionRowId>,
    /// Of one agent's sessions.
    pub agent: Option<AgentName>,
    /// Of one owner's sessions.
    pub owner: Option<OwnerId>,
    /// First used at this time or after.
    pub since: Option<Timestamp>,
    /// First used before this time.
    pub until: Option<Timestamp>,
    /// At most so many groups.
    pub limit: u32,
}

/// The sum of one group, with what everything in the group has in common.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageReportRow {
    /// The turn.
    pub turn: Option<TurnId>,
    /// The session. `None` in a group of one session: it was purged.
    pub session: Option<SessionId>,
    /// The agent.
    pub agent: Option<AgentName>,
    /// The owner.
    pub owner: Option<OwnerId>,
    /// The model.
    pub model: Option<String>,
    /// The day as 2026-01-31.
    pub day: Option<String>,
    /// The sum.
    pub spent: UsageTotal,
    /// How many turns are in it.
    pub turns: u64,
    /// The time of the first usage in it.
    pub first: Option<Timestamp>,
    /// The time of the last usage in it.
    pub last: Option<Timestamp>,
}

/// What a sandbox has taken of the machine since it started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IncarnationUsage {
    /// The workspace that the sandbox is for.
    pub workspace: WorkspaceId,
    /// The sandbox.
    pub incarnation: Incarnation,
    /// What it took so far; disk space is what its files need now.
    pub usage: ResourceUsage,
    /// When it was measured.
    pub at: Timestamp,
}

/// What the workspace of a session took of the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionResourceUsage {
    /// The session.
    pub session: SessionId,
    /// What its workspace took. Each session of a shared workspace has all of it.
    pub usage: ResourceUsage,
}

/// Usage. Tokens and money are written by the step that reports them (`LogStore::append`), resources by
/// `record_resource_usage`.
#[async_trait]
pub trait UsageStore: Send + Sync {
    /// The sums of the groups, the last used first. Without `by` there is one group.
    async fn usage(
        &self,
        scope: &AccessScope,
        by: Option<UsageGrouping>,
        query: &UsageQuery,
    ) -> Result<Vec<UsageReportRow>>;
    /// Records what a sandbox took. A later report of the same sandbox replaces an earlier one.
    async fn record_resource_usage(&self, report: IncarnationUsage) -> Result<()>;
    /// What a workspace took so far. `None`: all workspaces together.
    async fn workspace_resource_usage(&self, workspace: Option<WorkspaceId>) -> Result<ResourceUsage>;
    /// What the workspaces of matching sessions took over their whole lives. The times of the query are ignored.
    async fn total_resource_usage(&self, scope: &AccessScope, query: &UsageQuery) -> Result<ResourceUsage>;
    /// What the workspaces of these sessions took.
    async fn resource_usage_by_session(
        &self,
        scope: &AccessScope,
        sessions: &[SessionId],
    ) -> Result<Vec<SessionResourceUsage>>;
}
