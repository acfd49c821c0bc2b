//! Usage: counted with the event that reports it, and summed within the caller's scope.

use crate::fixture::{agent, all, append, by, lease, make, new_session, only, owner, said, step};
use ash_model::{
    Fact, Incarnation, ResourceUsage, SessionRowId, SessionStatus, Timestamp, TokenUsage, TurnId,
    UsageIncrement, UsageTotal, WorkspaceId,
};
use ash_store::{
    AccessScope, IncarnationUsage, NewSessionRow, SessionResourceUsage, SessionRow, Store, UsageGrouping,
    UsageQuery, UsageReportRow,
};
use uuid::Uuid;

contract! {
    a_step_counts_what_it_says_or_nothing
    sums_contain_what_the_scope_may_see
    sums_are_of_a_time
    the_usage_of_a_deleted_session_stays_without_its_name
    the_largest_numbers_can_be_summed
    a_sandbox_that_reports_twice_is_counted_once
    resources_are_listed_by_session_within_the_scope
}

fn usage(input_tokens: u64) -> TokenUsage {
    TokenUsage {
        input_tokens,
        output_tokens: 1,
        cache_creation_tokens: 2,
        cache_read_tokens: 3,
        ..TokenUsage::default()
    }
}

fn used(turn: Option<TurnId>, model: &str, input: u64) -> Fact {
    Fact::Used(UsageIncrement {
        routed: false,
        turn,
        attempt: 1,
        message: Some("m".into()),
        model: model.into(),
        helper: false,
        first: true,
        end: None,
        usage: usage(input),
        nano_usd: Some(input.saturating_mul(10)),
        confirms: None,
    })
}

async fn sums(
    store: &dyn Store,
    scope: &AccessScope,
    by: Option<UsageGrouping>,
    query: UsageQuery,
) -> Vec<UsageReportRow> {
    store.usage(scope, by, &UsageQuery { limit: 100, ..query }).await.expect("read")
}

async fn total(store: &dyn Store, scope: &AccessScope, query: UsageQuery) -> UsageTotal {
    let all = sums(store, scope, None, query).await;
    assert_eq!(all.len(), 1);
    all[0].spent
}

fn of(no: SessionRowId) -> UsageQuery {
    UsageQuery { session: Some(no), ..UsageQuery::default() }
}

async fn a_step_counts_what_it_says_or_nothing(store: &dyn Store) {
    let session = make(store, "s").await;
    assert_eq!(total(store, &all("t"), of(session.no)).await, UsageTotal::default());
    let turn = Some(TurnId::fresh());
    let facts = [used(turn, "m", 5), said("x"), used(turn, "m", 6), used(None, "other", 7)];
    append(store, &session, step(session.no, 2, facts)).await;
    let spent = total(store, &all("t"), of(session.no)).await;
    assert_eq!((spent.usage.input_tokens, spent.usage.cache_read_tokens), (18, 9));
    assert_eq!((spent.nano_usd, spent.rounds, spent.unpriced), (180, 3, false));
    // A step that does not follow the last event.
    let refused = store.append(&lease(&session), step(session.no, 2, [used(turn, "m", 100)])).await;
    assert!(refused.is_err());
    assert_eq!(total(store, &all("t"), of(session.no)).await, spent);
    let by_model = sums(store, &all("t"), Some(UsageGrouping::Model), of(session.no)).await;
    let mut names: Vec<_> = by_model.iter().map(|sum| (sum.model.as_deref(), sum.spent.nano_usd)).collect();
    names.sort_unstable();
    assert_eq!(names, [(Some("m"), 110), (Some("other"), 70)]);
    let turns = sums(store, &all("t"), Some(UsageGrouping::Turn), of(session.no)).await;
    let mut turns: Vec<_> = turns.iter().map(|sum| (sum.turn, sum.turns)).collect();
    turns.sort_unstable();
    assert_eq!(turns, [(None, 0), (turn, 1)]);
}

async fn owned(store: &dyn Store, name: &str, of: &str, input: u64) -> SessionRow {
    let new = NewSessionRow { owner: Some(owner(of)), ..new_session(name) };
    let session = store.create_session(new).await.expect("made");
    append(store, &session, step(session.no, 2, [used(Some(TurnId::fresh()), "m", input)])).await;
    session
}

async fn sums_contain_what_the_scope_may_see(store: &dyn Store) {
    let (hers, _his) = (owned(store, "hers", "alice", 5).await, owned(store, "his", "bob", 70).await);
    let input = async |scope: &AccessScope, query| total(store, scope, query).await.usage.input_tokens;
    assert_eq!(input(&all("t"), UsageQuery::default()).await, 75);
    assert_eq!(input(&only("alice"), UsageQuery::default()).await, 5);
    assert_eq!(input(&only("bob"), of(hers.no)).await, 0);
    assert_eq!(input(&all("other"), UsageQuery::default()).await, 0);
    let theirs = UsageQuery { owner: Some(owner("bob")), ..UsageQuery::default() };
    assert_eq!((input(&all("t"), theirs.clone()).await, input(&only("alice"), theirs).await), (70, 0));
    let unknown = UsageQuery { agent: Some(agent("unknown")), ..UsageQuery::default() };
    assert_eq!(input(&all("t"), unknown).await, 0);
    for by in UsageGrouping::ALL.map(|(by, _)| by) {
        let sums = sums(store, &all("t"), Some(by), UsageQuery::default()).await;
        assert_eq!(sums.iter().map(|sum| sum.spent.usage.input_tokens).sum::<u64>(), 75, "{by:?}");
    }
}

async fn sums_are_of_a_time(store: &dyn Store) {
    let session = make(store, "s").await;
    const DAY: i64 = 86_400_000;
    let mut first = step(session.no, 2, [used(None, "m", 5)]);
    first.events[0].at = Timestamp(DAY - 1);
    let mut second = step(session.no, 3, [used(None, "m", 70)]);
    second.events[0].at = Timestamp(DAY);
    append(store, &session, first).await;
    append(store, &session, second).await;
    let days = sums(store, &all("t"), Some(UsageGrouping::Day), UsageQuery::default()).await;
    let days: Vec<_> = days.iter().map(|sum| (sum.day.as_deref(), sum.spent.usage.input_tokens)).collect();
    assert_eq!(days, [(Some("1970-01-02"), 70), (Some("1970-01-01"), 5)]);
    let within = async |since, until| {
        let query = UsageQuery { since, until, ..UsageQuery::default() };
        total(store, &all("t"), query).await.usage.input_tokens
    };
    assert_eq!(within(Some(Timestamp(DAY)), None).await, 70);
    assert_eq!(within(None, Some(Timestamp(DAY))).await, 5);
}

async fn the_usage_of_a_deleted_session_stays_without_its_name(store: &dyn Store) {
    let session = owned(store, "gone", "alice", 5).await;
    let mut end = step(session.no, 3, [Fact::Ended]);
    end.summary.status = SessionStatus::Ended;
    append(store, &session, end).await;
    store.trash(session.no, Timestamp(5), by("k")).await.expect("put there");
    while !store.purge(session.no, Timestamp(6)).await.expect("deleted") {}
    let left = sums(store, &only("alice"), Some(UsageGrouping::Session), UsageQuery::default()).await;
    assert_eq!(
        left.iter().map(|sum| (sum.session.clone(), sum.spent.nano_usd)).collect::<Vec<_>>(),
        [(None, 50)]
    );
    // Another session of its name begins with nothing.
    let again = owned(store, "gone", "alice", 1).await;
    assert_eq!(total(store, &only("alice"), of(again.no)).await.nano_usd, 10);
}

/// A sandbox that reports any number does not break the sums of others.
async fn the_largest_numbers_can_be_summed(store: &dyn Store) {
    let session = make(store, "s").await;
    let most = Fact::Used(UsageIncrement {
        routed: false,
        turn: None,
        attempt: 0,
        message: None,
        model: "m".into(),
        helper: true,
        first: false,
        end: None,
        usage: TokenUsage { input_tokens: u64::MAX, ..usage(0) },
        nano_usd: Some(u64::MAX),
        confirms: None,
    });
    let other = used(Some(TurnId::fresh()), "m", u64::MAX);
    append(store, &session, step(session.no, 2, [most.clone(), most, other])).await;
    let spent = total(store, &all("t"), UsageQuery::default()).await;
    assert!(spent.usage.input_tokens > 1 << 50 && spent.nano_usd > 1 << 50, "{spent:?}");
}

async fn a_sandbox_that_reports_twice_is_counted_once(store: &dyn Store) {
    let (first, second) = (WorkspaceId::fresh(), WorkspaceId::fresh());
    let (one, another) = (Incarnation(Uuid::from_u128(1)), Incarnation(Uuid::from_u128(2)));
    let took = |cpu_ms, peak_memory, disk_bytes| ResourceUsage { cpu_ms, peak_memory, disk_bytes, files: 3 };
    for (workspace, incarnation, usage) in [
        (first, one, took(100, 50, 7)),
        (first, one, took(100, 50, 7)),
        (first, one, took(90, 40, 7)),
        (first, another, took(10, 20, 5)),
        (second, one, took(1, 60, 1)),
    ] {
        let report = IncarnationUsage { workspace, incarnation, usage, at: Timestamp(1) };
        store.record_resource_usage(report).await.expect("written");
    }
    assert_eq!(store.workspace_resource_usage(Some(first)).await.expect("read"), took(110, 50, 5));
    let all = ResourceUsage { files: 6, ..took(111, 60, 6) };
    assert_eq!(store.workspace_resource_usage(None).await.expect("read"), all);
    assert_eq!(
        store.workspace_resource_usage(Some(WorkspaceId::fresh())).await.expect("read"),
        ResourceUsage::default()
    );
}

async fn resources_are_listed_by_session_within_the_scope(store: &dyn Store) {
    let (hers, his) = (owned(store, "hers", "alice", 5).await, owned(store, "his", "bob", 70).await);
    let took = |cpu_ms| ResourceUsage { cpu_ms, peak_memory: 50, disk_bytes: 7, files: 3 };
    for (session, cpu_ms) in [(&hers, 100), (&his, 20)] {
        let (workspace, incarnation) = (session.workspace, Incarnation::fresh());
        let report = IncarnationUsage { workspace, incarnation, usage: took(cpu_ms), at: Timestamp(1) };
        store.record_resource_usage(report).await.expect("written");
    }
    let ids = [hers.id.clone(), his.id.clone()];
    let own = store.resource_usage_by_session(&only("alice"), &ids).await.expect("read");
    assert_eq!(own, [SessionResourceUsage { session: hers.id.clone(), usage: took(100) }]);
    assert_eq!(store.resource_usage_by_session(&all("t"), &ids).await.expect("read").len(), 2);
    let total = async |scope: &AccessScope, query| {
        store.total_resource_usage(scope, &query).await.expect("read").cpu_ms
    };
    assert_eq!(total(&all("t"), UsageQuery::default()).await, 120);
    assert_eq!(total(&all("t"), of(his.no)).await, 20);
    assert_eq!(total(&only("alice"), of(his.no)).await, 0);
}
