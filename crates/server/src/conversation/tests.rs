//! Pages of conversations that no agent of the end-to-end tests leads: interleaved, huge, cut off.

use super::*;
use ash_model::{MessageOptions, Timestamp, TurnOutcome};
use serde_json::json;

fn turn(n: u64) -> TurnId {
    TurnId(uuid::Uuid::from_u128(u128::from(n)))
}

/// A log that is written line by line.
#[derive(Default)]
struct TestLog(Vec<Event>);

impl TestLog {
    fn add(&mut self, turn: Option<TurnId>, fact: Fact) -> EventSeq {
        let seq = self.0.len() as u64 + 1;
        self.0.push(Event { seq, turn, at: Timestamp(seq as i64), fact });
        seq
    }

    fn queued(&mut self, n: u64, content: Value) -> EventSeq {
        let options = MessageOptions::default();
        self.add(Some(turn(n)), Fact::Queued { turn: turn(n), content, options, lock: None })
    }

    fn line(&mut self, n: u64, line: &Value) -> EventSeq {
        self.add(Some(turn(n)), Fact::Said { line: line.to_string() })
    }

    fn says(&mut self, n: u64, id: &str, parent: Option<&str>, block: Value) -> EventSeq {
        let message = json!({ "id": id, "content": [block], "usage": { "output_tokens": self.0.len() } });
        self.line(n, &json!({ "type": "assistant", "message": message, "parent_tool_use_id": parent }))
    }

    fn calls(&mut self, n: u64, id: &str, parent: Option<&str>, call: &str) -> EventSeq {
        self.says(
            n,
            id,
            parent,
            json!({ "type": "tool_use", "id": call, "name": "Bash", "input": { "n": call } }),
        )
    }

    fn results(&mut self, n: u64, call: &str, content: Value) -> EventSeq {
        let block = json!({ "type": "tool_result", "tool_use_id": call, "content": content, "is_error": call == "bad" });
        self.line(n, &json!({ "type": "user", "message": { "content": [block] } }))
    }

    fn finished(&mut self, n: u64) -> EventSeq {
        let fact =
            Fact::Finished { turn: turn(n), outcome: TurnOutcome::Done, checkpoint: None, problem: None };
        self.add(Some(turn(n)), fact)
    }

    /// As the handler reads it; also how many events it read.
    fn page(&self, after: EventSeq, limit: usize) -> (ConversationAnswer, EventSeq) {
        let mut page = ConversationPage::new(after, limit);
        for event in self.0.iter().filter(|event| event.seq > after) {
            if let Some(turn) = page.unfinished_turn(event) {
                let earlier = self.0.iter().filter(|event| event.seq <= after && event.turn == Some(turn));
                earlier.for_each(|event| page.skip(event));
            }
            if page.push(event) == PageProgress::Complete {
                return (page.finish(), event.seq);
            }
        }
        (page.finish(), self.0.len() as u64)
    }

    fn all(&self) -> Vec<Value> {
        let (whole, _) = self.page(0, usize::MAX);
        assert_eq!(whole.next_after, None);
        whole.items.iter().map(|item| json!(item)).collect()
    }

    /// All items, in pages of this length.
    fn paged(&self, limit: usize) -> Vec<Value> {
        let (mut items, mut after) = (Vec::new(), Some(0));
        while let Some(from) = after {
            let (page, _) = self.page(from, limit);
            assert!(page.items.len() <= limit);
            assert!(page.next_after.is_none_or(|next| next > from), "it goes on");
            after = page.next_after;
            items.extend(page.items.iter().map(|item| json!(item)));
        }
        items
    }
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

#[test]
fn lines_of_one_message_are_one_item_and_results_are_with_their_calls() {
    let mut log = TestLog::default();
    log.queued(1, json!("look"));
    log.says(1, "m1", None, json!({ "type": "thinking", "thinking": "hm", "signature": "s" }));
    log.calls(1, "m1", None, "a");
    log.results(1, "a", json!("one"));
    log.calls(1, "m1", None, "bad");
    log.results(1, "bad", json!([text("two"), { "type": "image", "source": {} }]));
    log.says(1, "m2", None, text("done"));
    log.finished(1);
    let call = |id: &str, result: Value| json!({ "type": "tool_call", "id": id, "name": "Bash", "input": { "n": id }, "result": result });
    let expected = json!([
        { "role": "user", "turn": turn(1), "at": Timestamp(1), "events": [1], "blocks": [text("look")], "usage": null, "after": 1 },
        {
            "role": "assistant", "turn": turn(1), "at": Timestamp(2), "events": [2, 3, 5], "usage": { "output_tokens": 4 }, "after": 2,
            "blocks": [
                { "type": "thinking", "thinking": "hm" },
                call("a", json!({ "content": "one", "isError": false })),
                call("bad", json!({ "content": "two\n[image]", "isError": true })),
            ],
        },
        { "role": "assistant", "turn": turn(1), "at": Timestamp(7), "events": [7], "blocks": [text("done")], "usage": { "output_tokens": 6 }, "after": 7 },
    ]);
    assert_eq!(json!(log.all()), expected);
    assert_eq!(json!(log.paged(1)), expected);
}

#[test]
fn a_subagents_messages_name_the_call_that_started_it_and_come_between_those_of_others() {
    let mut log = TestLog::default();
    log.queued(1, json!("ask two"));
    log.calls(1, "m", None, "left");
    log.calls(1, "of-left", Some("left"), "x");
    log.calls(1, "m", None, "right");
    log.says(1, "of-right", Some("right"), text("r"));
    log.results(1, "x", json!("found"));
    log.calls(1, "of-left", Some("left"), "y");
    log.results(1, "right", json!("r"));
    log.results(1, "left", json!("l"));
    log.finished(1);
    let all = log.all();
    let shown: Vec<Value> = all.iter().map(|item| json!([item["events"], item["parent"]])).collect();
    assert_eq!(json!(shown), json!([[[1], null], [[2, 4], null], [[3, 7], "left"], [[5], "right"]]));
    assert_eq!(all[2]["blocks"][0]["result"]["content"], "found");
    assert_eq!(all[2]["blocks"][1]["result"], Value::Null, "it never came");
    for limit in [1, 2, 3] {
        assert_eq!(log.paged(limit), all, "{limit} at a time");
    }
}

#[test]
fn a_page_reads_only_until_its_items_are_complete() {
    let mut log = TestLog::default();
    for n in 1..=3 {
        log.queued(n, json!("go"));
        log.calls(n, &format!("m{n}"), None, &format!("c{n}"));
        log.results(n, &format!("c{n}"), json!("r"));
        log.says(n, &format!("n{n}"), None, text("done"));
        log.finished(n);
    }
    let (page, read) = log.page(0, 2);
    assert_eq!(
        (page.items.len(), page.next_after, read),
        (2, Some(2), 4),
        "the next message ends the one before"
    );
    let (page, read) = log.page(2, 1);
    assert_eq!((page.items[0].events.clone(), page.next_after, read), (vec![4], Some(4), 6));
    let (page, _) = log.page(14, 1);
    assert_eq!((page.items.len(), page.next_after), (0, None));
}

#[test]
fn a_call_that_was_cut_off_does_not_make_a_page_read_beyond_its_turn() {
    let mut log = TestLog::default();
    log.queued(1, json!("go"));
    log.calls(1, "m1", None, "lost");
    log.finished(1);
    log.queued(2, json!("again"));
    log.says(2, "m2", None, text("hello"));
    log.results(2, "lost", json!("of another turn"));
    log.finished(2);
    let (page, read) = log.page(0, 2);
    assert_eq!((page.items[1].view_result(), read), (None, 4));
    assert_eq!(log.all()[1]["blocks"][0]["result"], Value::Null);
    assert_eq!(log.paged(1), log.all());
    // The same if the log does not say how the first turn ended.
    log.0.retain(|event| event.seq != 3);
    assert_eq!(log.all()[1]["blocks"][0]["result"], Value::Null);
    let mut log = TestLog::default();
    log.calls(1, "m1", None, "lost");
    log.results(2, "lost", json!("of another turn"));
    assert_eq!(log.all()[0]["blocks"][0]["result"], Value::Null);
}

#[test]
fn results_that_are_too_long_for_a_page_leave_its_last_items_to_the_next_one() {
    let long = "x".repeat(3 << 20);
    let mut log = TestLog::default();
    log.queued(1, json!("go"));
    for n in 0..5 {
        log.calls(1, &format!("m{n}"), None, &format!("c{n}"));
    }
    for n in 0..5 {
        log.results(1, &format!("c{n}"), json!(long));
    }
    let pages = log.all_pages();
    let counts: Vec<usize> = pages.iter().map(|(page, _)| page.items.len()).collect();
    assert_eq!(counts, [3, 2, 1], "the message and two calls, two calls, one call");
    let items: Vec<Value> = pages.iter().flat_map(|(page, _)| &page.items).map(|item| json!(item)).collect();
    assert!(
        items == log.paged(1)
            && items[1..].iter().all(|item| item["blocks"][0]["result"]["truncated"].is_null())
    );
}

impl ConversationItemView {
    fn view_result(&self) -> Option<ToolCallResult> {
        match self.blocks.first() {
            Some(ConversationBlock::Known(KnownBlock::ToolCall { result, .. })) => result.clone(),
            _ => None,
        }
    }
}

#[test]
fn blocks_that_are_not_known_and_names_that_mislead_are_no_danger() {
    let mut log = TestLog::default();
    let image = json!({ "type": "image", "source": { "type": "base64", "data": "x" } });
    log.queued(1, json!([{ "type": "text", "text": "see", "cache_control": {} }, image]));
    log.says(1, "m", None, json!({ "type": "server_tool_use", "x": [1] }));
    log.says(1, "m", None, json!({ "type": "tool_use", "id": "t", "name": "Read\n\u{202e}", "input": null }));
    log.says(1, "m", None, json!({ "type": "text", "text": 5 }));
    log.says(1, "m", None, json!("no block"));
    for wild in
        [json!(null), json!([]), json!({ "type": "assistant" }), json!({ "type": "user", "message": 5 })]
    {
        log.line(1, &wild);
    }
    log.add(Some(turn(1)), Fact::Said { line: "no JSON".to_owned() });
    let all = log.all();
    assert_eq!(all[0]["blocks"], json!([text("see"), image]));
    let call = json!({ "type": "tool_call", "id": "t", "name": "Read", "input": null, "result": null });
    assert_eq!(
        all[1]["blocks"],
        json!([{ "type": "server_tool_use", "x": [1] }, call, { "type": "text", "text": 5 }])
    );
    assert_eq!((all.len(), &all[2]["blocks"]), (3, &json!([])), "an assistant line without a message");
    assert_eq!(log.paged(1), all);
}

#[test]
fn a_page_is_bounded_in_bytes_whatever_an_agent_writes() {
    let long = "x".repeat(3 << 20);
    let mut log = TestLog::default();
    // One message without an end, whose results are as long; then messages that do not fit together.
    for n in 0..5 {
        log.calls(1, "endless", None, &format!("c{n}"));
        log.results(1, &format!("c{n}"), json!(long));
    }
    for n in 0..8 {
        log.says(1, "endless", None, text(&long));
        log.says(1, "of-helper", Some(&format!("h{n}")), text("short"));
    }
    let all = log.all_pages();
    for (page, _) in &all {
        let bytes = json!(page).to_string().len();
        let allowed = MAX_PAGE_BYTES + MAX_ITEM_BYTES + (1 << 20);
        assert!(
            bytes <= allowed && (page.items.len() == 1 || bytes <= MAX_PAGE_BYTES + (1 << 20)),
            "{bytes}"
        );
    }
    let results: Vec<Value> = all
        .iter()
        .flat_map(|(page, _)| &page.items)
        .flat_map(|item| item.blocks.clone())
        .filter_map(|block| json!(block).get("result").cloned())
        .collect();
    let cut: Vec<bool> = results.iter().map(|result| result["truncated"] == true).collect();
    assert_eq!(cut, [false, false, true, true, true]);
    let single: Vec<Value> = log.paged(1);
    let whole: Vec<Value> = all.iter().flat_map(|(page, _)| &page.items).map(|item| json!(item)).collect();
    assert!(single == whole, "items do not depend on pages");
}

impl TestLog {
    fn all_pages(&self) -> Vec<(ConversationAnswer, EventSeq)> {
        let mut pages = vec![self.page(0, 500)];
        while let Some(after) = pages.last().and_then(|(page, _)| page.next_after) {
            pages.push(self.page(after, 500));
        }
        pages
    }
}

#[test]
fn pages_of_any_length_have_the_same_items() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut dice = |most: u64| {
        // xorshift: the same seed gives the same run.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % most
    };
    for round in 0..300 {
        let (mut log, mut calls) = (TestLog::default(), 0);
        for n in 1..=1 + dice(3) {
            log.queued(n, json!("go"));
            for _ in 0..dice(14) {
                let parent = [None, None, Some("p"), Some("q")][dice(4) as usize];
                let id = format!("m{n}{}{}", parent.unwrap_or_default(), dice(3));
                match dice(4) {
                    0 => {
                        calls += 1;
                        log.calls(n, &id, parent, &format!("c{calls}"));
                    }
                    1 => {
                        log.results(n, &format!("c{}", dice(1 + calls)), json!("r"));
                    }
                    2 => {
                        log.queued(100 + dice(100), json!("waits"));
                    }
                    _ => {
                        log.says(n, &id, parent, text("x"));
                    }
                }
            }
            if dice(4) > 0 {
                log.finished(n);
            }
        }
        let all = log.all();
        for limit in [1, 2, 3, 7] {
            assert_eq!(log.paged(limit), all, "round {round}, {limit} at a time");
        }
    }
}
