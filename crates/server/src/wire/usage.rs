//! Usage and cost.

use ash_model::{
    AgentName, OwnerId, ResourceUsage, SessionId, TenantId, Timestamp, TokenUsage, TurnId, UsageTotal,
    nano_to_usd,
};
use ash_store::{UsageGrouping, UsageReportRow};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

/// A sum.
#[derive(Serialize, ToSchema)]
#[schema(as = Usage)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UsageView {
    #[serde(flatten)]
    tokens_by_kind: TokenUsage,
    /// Tokens of all kinds.
    tokens: u64,
    /// Null if no model in it has a price.
    #[schema(required)]
    cost_usd: Option<f64>,
    /// A part of it has no price, which `costUsd` leaves out.
    unpriced: bool,
    /// Answers of the agent's own loop.
    rounds: u64,
    turns: u64,
    #[schema(required)]
    first_at: Option<Timestamp>,
    #[schema(required)]
    last_at: Option<Timestamp>,
}

impl UsageView {
    pub(crate) fn of(sum: &UsageReportRow) -> UsageView {
        let UsageTotal { usage, nano_usd, unpriced, rounds } = sum.spent;
        UsageView {
            tokens_by_kind: usage,
            tokens: usage.tokens(),
            // The cost of a model without a price is unknown. A sum shows the cost of the models with a price.
            cost_usd: (!unpriced || nano_usd > 0).then(|| nano_to_usd(nano_usd)),
            unpriced,
            rounds,
            turns: sum.turns,
            first_at: sum.first,
            last_at: sum.last,
        }
    }
}

/// What sandboxes used.
#[derive(Serialize, ToSchema)]
#[schema(as = Resources)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResourceUsageView {
    cpu_seconds: f64,
    peak_memory_bytes: u64,
    disk_bytes: u64,
    files: u64,
}

impl ResourceUsageView {
    pub(crate) fn of(taken: &ResourceUsage) -> ResourceUsageView {
        let ResourceUsage { cpu_ms, peak_memory, disk_bytes, files } = taken;
        ResourceUsageView {
            cpu_seconds: *cpu_ms as f64 / 1000.0,
            peak_memory_bytes: *peak_memory,
            disk_bytes: *disk_bytes,
            files: *files,
        }
    }
}

/// With `by` a report, without it the list of the Ash API.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum UsageAnswer {
    Events(UsageEventListAnswer),
    Report(UsageReportAnswer),
}

#[derive(Serialize, ToSchema)]
pub(crate) struct UsageEventListAnswer {
    pub(crate) events: Vec<UsageEventView>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct UsageReportAnswer {
    /// `turn`, `session`, `agent`, `owner`, `model` or `day`.
    pub(crate) by: &'static str,
    pub(crate) usage: Vec<UsageGroupView>,
    pub(crate) total: UsageReportTotal,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct UsageReportTotal {
    #[serde(flatten)]
    pub(crate) sum: UsageView,
    pub(crate) resources: ResourceUsageView,
}

/// The sum of one group, with the fields that name the group.
#[derive(Serialize, ToSchema)]
#[schema(as = UsageGroup)]
pub(crate) struct UsageGroupView {
    #[serde(flatten)]
    sum: UsageView,
    #[serde(flatten)]
    group: UsageGroupName,
}

/// What the parts of a group have in common. A null is something that was purged, or was never named.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum UsageGroupName {
    Turn {
        #[schema(required)]
        session: Option<SessionId>,
        #[schema(required)]
        agent: Option<AgentName>,
        #[schema(required)]
        owner: Option<OwnerId>,
        #[schema(required)]
        turn: Option<TurnId>,
    },
    Session {
        #[schema(required)]
        session: Option<SessionId>,
        #[schema(required)]
        agent: Option<AgentName>,
        #[schema(required)]
        owner: Option<OwnerId>,
        #[schema(required)]
        resources: Option<ResourceUsageView>,
    },
    Agent {
        #[schema(required)]
        agent: Option<AgentName>,
    },
    Owner {
        #[schema(required)]
        owner: Option<OwnerId>,
    },
    Model {
        #[schema(required)]
        model: Option<String>,
    },
    Day {
        /// In UTC, as 2026-03-31.
        #[schema(required)]
        day: Option<String>,
    },
}

impl UsageGroupView {
    /// `taken`: what the sandboxes of this session used, for groups by session.
    pub(crate) fn of(
        by: UsageGrouping,
        row: &UsageReportRow,
        taken: Option<&ResourceUsage>,
    ) -> UsageGroupView {
        let (session, agent, owner) = (row.session.clone(), row.agent.clone(), row.owner.clone());
        let group = match by {
            UsageGrouping::Turn => UsageGroupName::Turn { session, agent, owner, turn: row.turn },
            UsageGrouping::Session => {
                let resources = taken.map(ResourceUsageView::of);
                UsageGroupName::Session { session, agent, owner, resources }
            }
            UsageGrouping::Agent => UsageGroupName::Agent { agent },
            UsageGrouping::Owner => UsageGroupName::Owner { owner },
            UsageGrouping::Model => UsageGroupName::Model { model: row.model.clone() },
            UsageGrouping::Day => UsageGroupName::Day { day: row.day.clone() },
        };
        UsageGroupView { sum: UsageView::of(row), group }
    }
}

/// One number of one turn.
#[derive(Serialize, ToSchema)]
#[schema(as = UsageEvent)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UsageEventView {
    id: Uuid,
    #[schema(required)]
    session_id: Option<SessionId>,
    #[schema(required)]
    agent_name: Option<AgentName>,
    /// `input_tokens`, `output_tokens`, `cache_creation_tokens`, `cache_read_tokens` or `message`.
    event_type: &'static str,
    value: u64,
    #[schema(required)]
    created_at: Option<Timestamp>,
    tenant_id: TenantId,
}

impl UsageEventView {
    /// The numbers of a turn that are not 0.
    pub(crate) fn all_of(tenant: &TenantId, sum: &UsageReportRow) -> Vec<UsageEventView> {
        let used = &sum.spent.usage;
        let numbers = [
            ("input_tokens", used.input_tokens),
            ("output_tokens", used.output_tokens),
            ("cache_creation_tokens", used.cache_creation_tokens),
            ("cache_read_tokens", used.cache_read_tokens),
            ("message", sum.turns),
        ];
        let event = |(event_type, value): (&'static str, u64)| {
            let of = sum.turn.unwrap_or(TurnId(Uuid::nil())).0;
            let session = sum.session.as_ref().map_or("", |session| session.as_str());
            UsageEventView {
                id: Uuid::new_v5(&of, format!("{session}/{event_type}").as_bytes()),
                session_id: sum.session.clone(),
                agent_name: sum.agent.clone(),
                event_type,
                value,
                created_at: sum.last,
                tenant_id: tenant.clone(),
            }
        };
        numbers.into_iter().filter(|(_, value)| *value > 0).map(event).collect()
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct UsageStatsAnswer {
    pub(crate) stats: UsageStatsView,
}

/// The totals in the form of the Ash API.
#[derive(Serialize, ToSchema)]
#[schema(as = UsageStats)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UsageStatsView {
    pub(crate) total_input_tokens: u64,
    pub(crate) total_output_tokens: u64,
    pub(crate) total_cache_creation_tokens: u64,
    pub(crate) total_cache_read_tokens: u64,
    pub(crate) total_messages: u64,
    /// Always 0: the server does not count them.
    pub(crate) total_tool_calls: u64,
    pub(crate) total_compute_seconds: u64,
}
