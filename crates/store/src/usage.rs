//! What was used, summed for whoever asks.

use ash_model::{AgentName, OwnerId, SessionId, SessionNo, Spent, Timestamp, TurnId};

/// What is summed apart from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageBy {
    Turn,
    Session,
    Agent,
    Owner,
    Model,
    Day,
}

impl UsageBy {
    pub const ALL: [(UsageBy, &'static str); 6] = [
        (UsageBy::Turn, "turn"),
        (UsageBy::Session, "session"),
        (UsageBy::Agent, "agent"),
        (UsageBy::Owner, "owner"),
        (UsageBy::Model, "model"),
        (UsageBy::Day, "day"),
    ];

    pub fn as_str(self) -> &'static str {
        UsageBy::ALL.iter().find(|(by, _)| *by == self).map_or("", |(_, name)| name)
    }

    pub fn parse(text: &str) -> Option<UsageBy> {
        UsageBy::ALL.iter().find(|(_, name)| *name == text).map(|(by, _)| *by)
    }
}

#[derive(Debug, Clone, Default)]
pub struct UsageQuery {
    pub session: Option<SessionNo>,
    pub agent: Option<AgentName>,
    pub owner: Option<OwnerId>,
    /// When it began to be used: at this or after, and before that.
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub limit: u32,
}

/// A sum, with what everything in it has in common.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageSum {
    pub turn: Option<TurnId>,
    /// None although it was asked for: the session was forgotten.
    pub session: Option<SessionId>,
    pub agent: Option<AgentName>,
    pub owner: Option<OwnerId>,
    pub model: Option<String>,
    /// As 2026-01-31.
    pub day: Option<String>,
    pub spent: Spent,
    pub turns: u64,
    pub first: Option<Timestamp>,
    pub last: Option<Timestamp>,
}
