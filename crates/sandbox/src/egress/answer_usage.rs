//! Token usage of a model's answer, read while the answer passes: from its JSON or its stream of events, in every
//! dialect. The shim has a usage record before the agent has the bytes that it was read from.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ash_model::{Incarnation, TokenUsage};

use super::{
    endpoint::ModelEndpoint,
    json_scanner::{JsonScanner, ScannedFields},
    usage_account::UsageAccount,
};
use crate::journal::ModelUsage;

/// An estimate of bytes per token, for answers without usage.
const BYTES_PER_TOKEN: u64 = 4;
/// Assumed for an answer without a limit, and for input that a request names but does not contain.
const ASSUMED_MAX_OUTPUT: u64 = 32_000;
const ASSUMED_STORED_TOKENS: u64 = 200_000;
const DATA: &[u8] = b"data:";
const DONE: &[u8] = b"[DONE]";
/// The bytes kept of a line: enough to recognize its kind.
const MAX_HEAD: usize = 16;

/// A session's account, and the bell that rings in the shim's loop when there are new records.
#[derive(Debug, Clone)]
pub(super) struct UsageRecorder {
    account: Arc<Mutex<UsageAccount>>,
    bell: Arc<std::os::unix::net::UnixStream>,
}

impl UsageRecorder {
    pub(super) fn new(account: Arc<Mutex<UsageAccount>>, bell: Arc<std::os::unix::net::UnixStream>) -> Self {
        Self { account, bell }
    }

    pub(super) fn account(&self) -> MutexGuard<'_, UsageAccount> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, usage: ModelUsage, more: &TokenUsage) {
        self.account().record(usage, more);
        // A full pipe has rung already.
        let _ = std::io::Write::write(&mut self.bell.as_ref(), &[1]);
    }
}

/// What is known of a request while it is sent.
#[derive(Debug, Default)]
pub(super) struct OutgoingRequestScan {
    pub(super) scanner: JsonScanner,
    pub(super) bytes: u64,
    /// The whole request is sent: from now on the service works.
    pub(super) whole: bool,
}

impl OutgoingRequestScan {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        self.scanner.push(bytes);
    }

    fn input_tokens(&self) -> u64 {
        tokens(self.bytes)
    }

    /// The most that the request may use, by the limits that it sets.
    fn most(&self) -> TokenUsage {
        let seen = &self.scanner.seen;
        let stored = if seen.has_stored_input { ASSUMED_STORED_TOKENS } else { 0 };
        let output = seen.max_output.unwrap_or(ASSUMED_MAX_OUTPUT);
        TokenUsage {
            input_tokens: self.input_tokens().saturating_add(stored),
            output_tokens: output.saturating_mul(seen.choices.unwrap_or(1).max(1)),
            ..TokenUsage::default()
        }
    }
}

fn tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerEnd {
    /// The service ended it.
    Whole,
    /// The connection to the service broke.
    BrokenOff,
    /// The proxy stopped reading. The service may have continued, so what arrived says little about the real usage.
    Abandoned,
}

pub(super) type SharedRequestScan = Arc<Mutex<OutgoingRequestScan>>;

/// The format of an answer.
#[derive(Debug)]
enum AnswerEncoding {
    /// No byte has arrived.
    Unknown,
    Json(JsonScanner),
    Events(SseLineScanner),
    /// Not readable.
    Opaque,
}

/// A line of a stream of events.
#[derive(Debug, Default)]
struct SseLineScanner {
    head: Vec<u8>,
    data: Option<JsonScanner>,
}

/// Reads the usage of one answer. Dropped before the answer's end it records the most that the request may have used;
/// at the end of the sandbox only what arrived.
#[derive(Debug)]
pub(super) struct AnswerUsageReader {
    till: Option<UsageRecorder>,
    endpoint: ModelEndpoint,
    asked: SharedRequestScan,
    shape: AnswerEncoding,
    id: Option<String>,
    model: Option<String>,
    usage: TokenUsage,
    /// What the model wrote and all that arrived, in bytes.
    text: u64,
    bytes: u64,
    /// The answer came compressed, although the request did not ask for that.
    unreadable: bool,
    /// The service has reported the usage of the whole answer.
    is_final: bool,
    recorded: TokenUsage,
    /// The recorded usage is final.
    settled: bool,
}

impl AnswerUsageReader {
    pub(super) fn new(till: UsageRecorder, endpoint: ModelEndpoint, asked: SharedRequestScan) -> Self {
        till.account().begin_reading();
        Self {
            till: Some(till),
            endpoint,
            asked,
            shape: AnswerEncoding::Unknown,
            id: None,
            model: None,
            usage: TokenUsage::default(),
            text: 0,
            bytes: 0,
            unreadable: false,
            is_final: false,
            recorded: TokenUsage::default(),
            settled: false,
        }
    }

    /// The service did not accept the request, so it costs nothing.
    pub(super) fn discard(&mut self) {
        if let Some(till) = self.till.take() {
            till.account().end_reading();
        }
    }

    pub(super) fn begin(&mut self, content_type: &str, is_plain: bool) {
        self.unreadable = !is_plain;
        self.shape = match content_type {
            _ if !is_plain => AnswerEncoding::Opaque,
            text if text.contains("event-stream") => AnswerEncoding::Events(SseLineScanner::default()),
            _ => AnswerEncoding::Json(JsonScanner::default()),
        };
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        match std::mem::replace(&mut self.shape, AnswerEncoding::Opaque) {
            AnswerEncoding::Json(mut scanner) => {
                scanner.push(bytes);
                self.shape = AnswerEncoding::Json(scanner);
            }
            AnswerEncoding::Events(mut line) => {
                let mut rest = bytes;
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    line.push(&rest[..end]);
                    self.end_line(std::mem::take(&mut line));
                    rest = &rest[end + 1..];
                }
                line.push(rest);
                self.shape = AnswerEncoding::Events(line);
            }
            shape @ (AnswerEncoding::Unknown | AnswerEncoding::Opaque) => self.shape = shape,
        }
    }

    fn end_line(&mut self, line: SseLineScanner) {
        let Some(scanner) = line.data else { return };
        if line.head.starts_with(DONE) {
            // Some services report the usage so far after every piece: the last report counts.
            self.is_final |= !self.usage.is_zero();
            return self.record_if_final();
        }
        let (starts, ends) = {
            let kind = scanner.seen.kind.as_deref().unwrap_or_default();
            let says = scanner.seen.usage.is_some();
            let ends = ["message_delta", "response.completed", "response.incomplete", "response.failed"];
            (says && kind == "message_start", says && ends.contains(&kind))
        };
        self.absorb(scanner.seen);
        if starts {
            // Record it now: this much is used even if the answer breaks off.
            self.record(self.usage, true);
        }
        self.is_final |= ends;
        if ends {
            self.record_if_final();
        }
    }

    fn absorb(&mut self, seen: ScannedFields) {
        self.id = self.id.take().or(seen.id);
        self.model = self.model.take().or(seen.model);
        self.text = self.text.saturating_add(seen.text);
        if let Some(usage) = seen.usage {
            self.usage = self.usage.at_least(usage);
        }
    }

    /// Ends the answer and records its usage.
    pub(super) fn finish(&mut self, end: AnswerEnd) {
        if self.till.is_none() {
            return;
        }
        match std::mem::replace(&mut self.shape, AnswerEncoding::Opaque) {
            AnswerEncoding::Json(scanner) => {
                self.is_final |= scanner.seen.usage.is_some();
                self.absorb(scanner.seen);
            }
            AnswerEncoding::Events(line) => self.end_line(line),
            // Without an answer, only the sent part shows whether the service got the whole request.
            AnswerEncoding::Unknown if !self.asked().whole => return self.discard(),
            AnswerEncoding::Unknown | AnswerEncoding::Opaque => {}
        }
        if self.endpoint == ModelEndpoint::ChatCompletions {
            self.is_final |= !self.usage.is_zero();
        }
        match self.is_final {
            true => self.record_if_final(),
            false => self.record(self.estimated(end), end != AnswerEnd::Whole),
        }
        self.discard();
    }

    fn record_if_final(&mut self) {
        if self.is_final && (self.usage != self.recorded || !self.settled) {
            self.record(self.usage, false);
            self.settled = true;
        }
    }

    /// Estimates usage that the service did not report, from the lengths of request and answer. If the proxy did not
    /// read to the end, the estimate is at least what the request may have used.
    fn estimated(&self, end: AnswerEnd) -> TokenUsage {
        let written = if self.unreadable { self.bytes } else { self.text };
        let came = TokenUsage {
            input_tokens: self.asked().input_tokens(),
            output_tokens: tokens(written),
            ..TokenUsage::default()
        };
        let mut estimate = match end {
            AnswerEnd::Whole | AnswerEnd::BrokenOff => came,
            AnswerEnd::Abandoned => came.at_least(self.asked().most()),
        };
        if !self.usage.is_zero() {
            // The service has reported the input.
            estimate.input_tokens = 0;
        }
        self.usage.at_least(estimate).clamped()
    }

    fn asked(&self) -> MutexGuard<'_, OutgoingRequestScan> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&mut self, usage: TokenUsage, torn: bool) {
        let more = usage.saturating_sub(self.recorded);
        self.recorded = self.recorded.at_least(usage);
        let message = self.id.get_or_insert_with(|| format!("unnamed-{}", Incarnation::fresh())).clone();
        let model = match &self.model {
            Some(model) => model.clone(),
            None => self.asked().scanner.seen.model.clone().unwrap_or_default(),
        };
        if let Some(till) = &self.till {
            till.record(ModelUsage { message, model, usage, torn }, &more);
        }
    }
}

impl Drop for AnswerUsageReader {
    fn drop(&mut self) {
        let sandbox_ends = self.till.as_ref().is_some_and(|till| till.account().is_ending());
        self.finish(if sandbox_ends { AnswerEnd::BrokenOff } else { AnswerEnd::Abandoned });
    }
}

impl SseLineScanner {
    fn push(&mut self, mut bytes: &[u8]) {
        if self.data.is_none() && self.head.len() < DATA.len() {
            let (head, rest) = bytes.split_at(bytes.len().min(DATA.len() - self.head.len()));
            self.head.extend_from_slice(head);
            bytes = rest;
            if self.head == DATA {
                self.head.clear();
                self.data = Some(JsonScanner::default());
            }
        }
        let Some(data) = &mut self.data else { return };
        data.push(bytes);
        if self.head.len() < MAX_HEAD {
            let shown = bytes.iter().skip_while(|byte| self.head.is_empty() && **byte == b' ');
            let more: Vec<u8> = shown.take(MAX_HEAD - self.head.len()).copied().collect();
            self.head.extend(more);
        }
    }
}

/// The maximum for each kind of token.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::usage_account::UsageAllowance;

    /// The records of an answer that arrives in pieces of length `step`, and then ends or breaks off.
    fn read(endpoint: ModelEndpoint, kind: &str, text: &str, step: usize, end: AnswerEnd) -> Vec<ModelUsage> {
        read_of(UsageAccount::default(), endpoint, kind, text, step, end)
    }

    fn read_of(
        account: UsageAccount,
        endpoint: ModelEndpoint,
        kind: &str,
        text: &str,
        step: usize,
        end: AnswerEnd,
    ) -> Vec<ModelUsage> {
        let account = Arc::new(Mutex::new(account));
        account.lock().expect("open").set(Some(UsageAllowance {
            position: 0,
            tokens: None,
            nano_usd: None,
            prices: None,
        }));
        let (bell, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        bell.set_nonblocking(true).expect("set");
        let mut asked = OutgoingRequestScan { bytes: 400, whole: true, ..OutgoingRequestScan::default() };
        asked.scanner.push(b"{\"model\": \"asked-for\", \"messages\": []}");
        let till = UsageRecorder::new(account.clone(), Arc::new(bell));
        let mut reading = AnswerUsageReader::new(till, endpoint, Arc::new(Mutex::new(asked)));
        reading.begin(kind, true);
        text.as_bytes().chunks(step.max(1)).for_each(|piece| reading.push(piece));
        match end {
            AnswerEnd::Abandoned => drop(reading),
            AnswerEnd::Whole | AnswerEnd::BrokenOff => reading.finish(end),
        }
        let mut records = Vec::new();
        account.lock().expect("open").flush(|queue| {
            records = queue;
            0
        });
        records
    }

    fn used(message: &str, (input_tokens, output_tokens): (u64, u64), torn: bool) -> ModelUsage {
        let usage = TokenUsage { input_tokens, output_tokens, ..TokenUsage::default() };
        ModelUsage { message: message.to_owned(), model: "m".to_owned(), usage, torn }
    }

    const EVENTS: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"model\":\"m\",\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}}\n\n\
        event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"12345678\"}}\n\n\
        event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":9}}\n\n\
        event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

    #[test]
    fn a_stream_of_messages_counts_from_its_first_event_and_with_what_it_came_to() {
        for step in [1, 13, 10_000] {
            let records = read(ModelEndpoint::Messages, "text/event-stream", EVENTS, step, AnswerEnd::Whole);
            assert_eq!(records, [used("msg_1", (7, 1), true), used("msg_1", (7, 9), false)], "{step}");
        }
        // Cut off after eight letters, which count as two tokens.
        let cut = &EVENTS[..EVENTS.find("event: message_delta").expect("there")];
        let records =
            read(ModelEndpoint::Messages, "text/event-stream; charset=utf-8", cut, 5, AnswerEnd::BrokenOff);
        assert_eq!(records, [used("msg_1", (7, 1), true), used("msg_1", (7, 2), true)]);
    }

    #[test]
    fn a_stream_of_chat_completions_counts_what_its_last_piece_says() {
        let text = "data: {\"id\":\"c1\",\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"12345678\"}}],\"usage\":null}\n\n\
            data: {\"id\":\"c1\",\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";
        for step in [1, 10_000] {
            let records =
                read(ModelEndpoint::ChatCompletions, "text/event-stream", text, step, AnswerEnd::Whole);
            assert_eq!(records, [used("c1", (5, 3), false)], "{step}");
        }
        // The service reports no usage unless the request asks for it: the input counts a hundred tokens, by its
        // length.
        let silent =
            &text[..text.find("data: {\"id\":\"c1\",\"model\":\"m\",\"choices\":[]").expect("there")];
        let records = read(ModelEndpoint::ChatCompletions, "text/event-stream", silent, 9, AnswerEnd::Whole);
        assert_eq!(records, [used("c1", (100, 2), false)]);
        assert_eq!(
            read(ModelEndpoint::ChatCompletions, "text/event-stream", silent, 9, AnswerEnd::BrokenOff),
            [used("c1", (100, 2), true)]
        );
    }

    #[test]
    fn a_stream_of_responses_counts_when_it_is_completed() {
        let text = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r1\",\"model\":\"m\",\"usage\":null}}\n\n\
            data: {\"type\":\"response.output_text.delta\",\"delta\":\"1234\"}\n\n\
            data: {\"type\":\"response.completed\",\"response\":{\"id\":\"r1\",\"model\":\"m\",\"output\":[{\"content\":[{\"text\":\"1234\"}]}],\"usage\":{\"input_tokens\":8,\"input_tokens_details\":{\"cached_tokens\":0},\"output_tokens\":4}}}\n\n";
        let records = read(ModelEndpoint::Responses, "text/event-stream", text, 3, AnswerEnd::Whole);
        assert_eq!(records, [used("r1", (8, 4), false)]);
        let cut = &text[..text.find("data: {\"type\":\"response.completed").expect("there")];
        assert_eq!(
            read(ModelEndpoint::Responses, "text/event-stream", cut, 3, AnswerEnd::BrokenOff),
            [used("r1", (100, 1), true)]
        );
    }

    #[test]
    fn json_counts_in_every_dialect() {
        for (endpoint, text) in [
            (
                ModelEndpoint::Messages,
                r#"{"id":"a","model":"m","content":[],"usage":{"input_tokens":3,"output_tokens":4}}"#,
            ),
            (
                ModelEndpoint::ChatCompletions,
                r#"{"id":"a","model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#,
            ),
            (
                ModelEndpoint::Responses,
                r#"{"id":"a","model":"m","output":[],"usage":{"input_tokens":3,"output_tokens":4}}"#,
            ),
        ] {
            assert_eq!(
                read(endpoint, "application/json", text, 4, AnswerEnd::Whole),
                [used("a", (3, 4), false)]
            );
        }
    }

    #[test]
    fn an_answer_not_read_to_its_end_counts_as_the_requested_maximum() {
        let records = read(ModelEndpoint::Messages, "application/json", "", 1, AnswerEnd::Abandoned);
        let [record] = &records[..] else { panic!("{records:?}") };
        let used = (record.usage.input_tokens, record.usage.output_tokens, record.torn);
        assert_eq!((record.model.as_str(), used), ("asked-for", (100, ASSUMED_MAX_OUTPUT, true)));
        assert!(record.message.starts_with("unnamed-"), "{record:?}");
        let cut = &EVENTS[..EVENTS.find("event: message_delta").expect("there")];
        let records = read(ModelEndpoint::Messages, "text/event-stream", cut, 5, AnswerEnd::Abandoned);
        assert_eq!(records, [used_by_msg_1(1), used_by_msg_1(ASSUMED_MAX_OUTPUT)]);
        // No caller hung up: the sandbox ended during the call.
        let mut ending = UsageAccount::default();
        ending.end();
        let records =
            read_of(ending, ModelEndpoint::Messages, "text/event-stream", cut, 5, AnswerEnd::Abandoned);
        assert_eq!(records.last().map(|record| record.usage.output_tokens < 100), Some(true), "{records:?}");
        let most = |question: &str| {
            let mut asked = OutgoingRequestScan::default();
            asked.push(question.as_bytes());
            let TokenUsage { input_tokens, output_tokens, .. } = asked.most();
            (input_tokens, output_tokens)
        };
        assert_eq!(most(r#"{"max_tokens":500,"n":3}"#), (6, 1500));
        let (input, output) = most(r#"{"previous_response_id":"r1","max_output_tokens":9}"#);
        assert!(input > ASSUMED_STORED_TOKENS && output == 9);
    }

    fn used_by_msg_1(output: u64) -> ModelUsage {
        used("msg_1", (7, output), true)
    }
}
