//! Reading the log: events and deltas in one order, a fork's after its parents'.

use crate::fixture::{append, delta, events, items, make, new_fork, places, said, step};
use ash_model::{Event, EventSeq, Fact, LogCursor, MessageOptions, SessionRowId, TurnId};
use ash_store::{EventQuery, LogItem, LogItemContent, NumberedMessage, SessionRow, Store};

contract! {
    deltas_stand_between_the_events_they_came_between
    pages_may_be_cut_anywhere
    a_cursor_among_deltas_that_are_gone_goes_on_at_the_next_event
    a_fork_begins_with_what_it_shares
    a_fork_of_a_fork_shares_both
    a_fork_may_leave_before_its_parent_began
    a_fork_may_leave_exactly_where_its_parent_began
    a_long_line_of_forks_reads_like_one_log
    events_can_be_chosen_by_kind
    a_page_of_huge_lines_may_be_short_but_is_never_empty
    messages_are_numbered_over_the_whole_log
}

/// A log of `1 1.1 1.2 2 3 3.1 3.2 3.3 4`.
async fn mixed(store: &dyn Store) -> SessionRow {
    let session = make(store, "s").await;
    let mut steps = step(session.no, 2, []);
    steps.deltas = vec![delta(1, 1), delta(1, 2)];
    append(store, &session, steps).await;
    let mut steps = step(session.no, 2, [said("a"), said("b")]);
    steps.deltas = vec![delta(3, 1), delta(3, 2)];
    append(store, &session, steps).await;
    let mut steps = step(session.no, 4, [said("c")]);
    steps.deltas = vec![delta(3, 3)];
    append(store, &session, steps).await;
    session
}

const MIXED: [&str; 9] = ["1", "1.1", "1.2", "2", "3", "3.1", "3.2", "3.3", "4"];

async fn deltas_stand_between_the_events_they_came_between(store: &dyn Store) {
    let session = mixed(store).await;
    let all = items(store, session.no).await;
    assert_eq!(places(&all), MIXED);
    assert_eq!(all[1].content, LogItemContent::Delta("1.1".into()));
    assert_eq!(all[4].content, LogItemContent::Event(said("b")));
}

async fn pages_may_be_cut_anywhere(store: &dyn Store) {
    let session = mixed(store).await;
    let all = items(store, session.no).await;
    for size in 1..=10 {
        assert_eq!(paged(store, session.no, size).await, all, "{size} at a time");
    }
    for (place, item) in all.iter().enumerate() {
        let rest = store.read_log(session.no, item.at, 100).await.expect("read");
        assert_eq!(rest, all[place + 1..], "after {}", item.at);
        let one = store.read_log(session.no, item.at, 1).await.expect("read");
        assert_eq!(one, all[place + 1..].iter().take(1).cloned().collect::<Vec<_>>());
    }
    assert!(store.read_log(session.no, LogCursor::START, 0).await.expect("read").is_empty());
    assert!(store.read_log(session.no, LogCursor::event(99), 10).await.expect("read").is_empty());
}

async fn a_cursor_among_deltas_that_are_gone_goes_on_at_the_next_event(store: &dyn Store) {
    let session = mixed(store).await;
    for (gone, next) in
        [(LogCursor::delta(1, 9), "2"), (LogCursor::delta(2, 5), "3"), (LogCursor::delta(3, 7), "4")]
    {
        let rest = store.read_log(session.no, gone, 1).await.expect("read");
        assert_eq!(places(&rest), [next], "after {gone}");
    }
}

async fn paged(store: &dyn Store, no: SessionRowId, size: u32) -> Vec<LogItem> {
    let (mut seen, mut after): (Vec<LogItem>, LogCursor) = (Vec::new(), LogCursor::START);
    loop {
        let page = store.read_log(no, after, size).await.expect("read");
        let Some(last) = page.last() else { return seen };
        assert!(page.len() <= size as usize);
        after = last.at;
        seen.extend(page);
    }
}

/// A session `name` whose log goes on with what it says up to event `last`, each with one delta after it.
async fn talk(store: &dyn Store, session: &SessionRow, last: EventSeq) {
    let known = store.session(session.no).await.expect("read").expect("there").last_seq;
    for seq in known + 1..=last {
        let mut spoken = step(session.no, seq, [said(&format!("{} {seq}", session.id))]);
        spoken.deltas = vec![delta(seq, 1)];
        append(store, session, spoken).await;
    }
}

async fn fork(
    store: &dyn Store,
    name: &str,
    parent: &SessionRow,
    seq: EventSeq,
    last: EventSeq,
) -> SessionRow {
    let fork = store.create_session(new_fork(name, parent, seq)).await.expect("made");
    talk(store, &fork, last).await;
    fork
}

/// Which session wrote each event of a log: the first word of what was said, `-` for other facts.
async fn authors(store: &dyn Store, no: SessionRowId) -> Vec<String> {
    let author = |event: &Event| match &event.fact {
        Fact::Said { line } => line.split(' ').next().unwrap_or_default().to_owned(),
        _ => "-".to_owned(),
    };
    events(store, no).await.iter().map(author).collect()
}

async fn a_fork_begins_with_what_it_shares(store: &dyn Store) {
    let parent = make(store, "p").await;
    talk(store, &parent, 4).await;
    let child = fork(store, "f", &parent, 3, 6).await;
    // What the parent says later, and its deltas after the last shared event, are its own.
    talk(store, &parent, 9).await;
    assert_eq!(authors(store, child.no).await, ["-", "p", "p", "-", "f", "f"]);
    let expected = ["1", "2", "2.1", "3", "4", "5", "5.1", "6", "6.1"];
    assert_eq!(places(&items(store, child.no).await), expected);
    every_page(store, child.no).await;
    let facts = store.facts(child.no).await.expect("read");
    assert_eq!(facts.iter().map(|event| event.seq).collect::<Vec<_>>(), [4], "only its own");
    assert_eq!(events(store, parent.no).await.len(), 9);
}

async fn a_fork_of_a_fork_shares_both(store: &dyn Store) {
    let parent = make(store, "p").await;
    talk(store, &parent, 3).await;
    let child = fork(store, "f", &parent, 2, 6).await;
    let grandchild = fork(store, "g", &child, 5, 7).await;
    talk(store, &child, 8).await;
    assert_eq!(authors(store, grandchild.no).await, ["-", "p", "-", "f", "f", "-", "g"]);
    every_page(store, grandchild.no).await;
}

async fn a_fork_may_leave_before_its_parent_began(store: &dyn Store) {
    let parent = make(store, "p").await;
    talk(store, &parent, 8).await;
    let child = fork(store, "f", &parent, 6, 9).await;
    // Forked at an event that the child itself only shares.
    let grandchild = fork(store, "g", &child, 3, 5).await;
    assert_eq!(authors(store, grandchild.no).await, ["-", "p", "p", "-", "g"]);
    assert_eq!(places(&items(store, grandchild.no).await), ["1", "2", "2.1", "3", "4", "5", "5.1"]);
    every_page(store, grandchild.no).await;
    let last = fork(store, "h", &grandchild, 1, 3).await;
    assert_eq!(authors(store, last.no).await, ["-", "-", "h"]);
    every_page(store, last.no).await;
}

async fn a_fork_may_leave_exactly_where_its_parent_began(store: &dyn Store) {
    let parent = make(store, "p").await;
    talk(store, &parent, 4).await;
    let child = fork(store, "f", &parent, 3, 5).await;
    let grandchild = fork(store, "g", &child, 3, 5).await;
    assert_eq!(authors(store, grandchild.no).await, ["-", "p", "p", "-", "g"]);
    every_page(store, grandchild.no).await;
}

async fn a_long_line_of_forks_reads_like_one_log(store: &dyn Store) {
    let mut youngest = make(store, "s0").await;
    for n in 1..12 {
        let last = store.session(youngest.no).await.expect("read").expect("there").last_seq;
        youngest = fork(store, &format!("s{n}"), &youngest, last, last + 2).await;
    }
    let seqs: Vec<EventSeq> = events(store, youngest.no).await.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=23).collect::<Vec<_>>());
    every_page(store, youngest.no).await;
}

/// A log is the same, whatever the size of its pages and wherever they begin.
async fn every_page(store: &dyn Store, no: SessionRowId) {
    let all = items(store, no).await;
    for size in 1..=all.len() as u32 + 1 {
        assert_eq!(paged(store, no, size).await, all, "{size} at a time");
    }
    for (place, item) in all.iter().enumerate() {
        assert_eq!(
            store.read_log(no, item.at, 100).await.expect("read"),
            all[place + 1..],
            "after {}",
            item.at
        );
    }
    let whole = events(store, no).await;
    for (place, event) in whole.iter().enumerate() {
        let query = EventQuery { after: event.seq, limit: 100, kinds: Vec::new() };
        assert_eq!(store.events(no, &query).await.expect("read"), whole[place + 1..]);
        let one = EventQuery { limit: 1, ..query };
        assert_eq!(store.events(no, &one).await.expect("read"), whole[place + 1..].get(..1).unwrap_or(&[]));
    }
}

async fn events_can_be_chosen_by_kind(store: &dyn Store) {
    let parent = make(store, "p").await;
    append(store, &parent, step(parent.no, 2, [said("a"), Fact::Paused, said("b"), Fact::Resuming])).await;
    let child = fork(store, "f", &parent, 5, 7).await;
    let chosen = async |kinds: Vec<&'static str>, after, limit| -> Vec<EventSeq> {
        let query = EventQuery { after, limit, kinds };
        let found = store.events(child.no, &query).await.expect("read");
        found.iter().map(|event| event.seq).collect()
    };
    assert_eq!(chosen(vec!["said"], 0, 100).await, [2, 4, 7]);
    assert_eq!(chosen(vec!["said"], 2, 100).await, [4, 7]);
    assert_eq!(chosen(vec!["said"], 0, 2).await, [2, 4]);
    assert_eq!(chosen(vec!["paused", "forked"], 0, 100).await, [3, 6]);
    assert_eq!(chosen(vec!["ended"], 0, 100).await, [0; 0]);
    assert_eq!(chosen(vec![], 0, 0).await, [0; 0]);
}

/// A page may end early so that it fits into memory; only an empty one is the end.
async fn a_page_of_huge_lines_may_be_short_but_is_never_empty(store: &dyn Store) {
    let session = make(store, "s").await;
    let huge = "x".repeat(5 << 20);
    for seq in 2..=5 {
        let mut spoken = step(session.no, seq, [said(&huge)]);
        spoken.deltas = vec![delta(seq, 1)];
        append(store, &session, spoken).await;
    }
    let all = paged(store, session.no, 100).await;
    assert_eq!(places(&all), ["1", "2", "2.1", "3", "3.1", "4", "4.1", "5", "5.1"]);
    let mut seqs = Vec::new();
    loop {
        let query = EventQuery { after: seqs.last().copied().unwrap_or(0), limit: 100, kinds: Vec::new() };
        let page = store.events(session.no, &query).await.expect("read");
        if page.is_empty() {
            break;
        }
        seqs.extend(page.iter().map(|event| event.seq));
    }
    assert_eq!(seqs, [1, 2, 3, 4, 5]);
}

fn queued() -> Fact {
    let (turn, content) = (TurnId::fresh(), serde_json::json!("hello"));
    Fact::Queued { turn, content, options: MessageOptions::default(), lock: None }
}

async fn messages_are_numbered_over_the_whole_log(store: &dyn Store) {
    let parent = make(store, "p").await;
    let answer = || said(r#"{"type":"assistant"}"#);
    append(store, &parent, step(parent.no, 2, [queued(), said(r#"{"type":"system"}"#), answer(), answer()]))
        .await;
    let child = store.create_session(new_fork("f", &parent, 4)).await.expect("made");
    append(store, &child, step(child.no, 6, [queued(), Fact::Paused, answer()])).await;
    let read = async |after, limit| {
        let page = store.messages(child.no, after, limit).await.expect("read");
        page.iter().map(|message| (message.ordinal, message.event.seq)).collect::<Vec<_>>()
    };
    let whole = [(1, 2), (2, 4), (3, 6), (4, 8)];
    assert_eq!(read(0, 100).await, whole, "the parent's up to where the fork left");
    assert_eq!(read(1, 2).await, whole[1..3]);
    assert_eq!(read(4, 100).await, []);
    let first = store.messages(child.no, 0, 1).await.expect("read").remove(0);
    let event = events(store, child.no).await.remove(1);
    assert_eq!(first, NumberedMessage { ordinal: 1, event });
}
