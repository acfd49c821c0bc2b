//! What was used, summed for whoever asks.

use ash_model::{AgentName, OwnerId, SessionId, SessionRowId, Timestamp, TurnId, UsageTotal};

/// What is summed apart from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageGrouping {
    Turn,
    Session,
    Agent,
    Owner,
    Model,
    Day,
}

impl UsageGrouping {
    pub const ALL: [(UsageGrouping, &'static str); 6] = [
        (UsageGrouping::Turn, "turn"),
        (UsageGrouping::Session, "session"),
        (UsageGrouping::Agent, "agent"),
        (UsageGrouping::Owner, "owner"),
        (UsageGrouping::Model, "model"),
        (UsageGrouping::Day, "day"),
    ];

    pub fn as_str(self) -> &'static str {
        UsageGrouping::ALL.iter().find(|(by, _)| *by == self).map_or("", |(_, name)| name)
    }

    pub fn parse(text: &str) -> Option<UsageGrouping> {
        UsageGrouping::ALL.iter().find(|(_, name)| *name == text).map(|(by, _)| *by)
    }
}

#[derive(Debug, Clone, Default)]
pub struct UsageQuery {
    pub session: Option<SessionRowId>,
    pub agent: Option<AgentName>,
    pub owner: Option<OwnerId>,
    /// When it began to be used: at this or after, and before that.
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub limit: u32,
}

/// A sum, with what everything in it has in common.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageReportRow {
    pub turn: Option<TurnId>,
    /// None although it was asked for: the session was forgotten.
    pub session: Option<SessionId>,
    pub agent: Option<AgentName>,
    pub owner: Option<OwnerId>,
    pub model: Option<String>,
    /// As 2026-01-31.
    pub day: Option<String>,
    pub spent: UsageTotal,
    pub turns: u64,
    pub first: Option<Timestamp>,
    pub last: Option<Timestamp>,
}
