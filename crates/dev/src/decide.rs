//! Decides the response to a request, without I/O; `respond.rs` sends it.

use crate::{
    conversation::{ConversationId, MessagesRequest},
    directive,
    faults::{self, AttemptFaults, TerminalFault},
    helper_requests, openai,
    reply::{ScriptedReply, tokens},
    script::{ModelScript, RequesterRole},
    unscripted::{self, ReplyDraft},
};
use axum::http::{HeaderMap, Method};
use serde_json::{Value, json};
use std::{collections::HashMap, time::Duration};

#[derive(Debug, PartialEq)]
pub(crate) struct ScriptedResponse {
    /// For the log: the rule or directive behind it.
    pub(crate) why: String,
    pub(crate) stall: Duration,
    pub(crate) body: ScriptedResponseBody,
    pub(crate) api: ResponseFormat,
}

/// The API format of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseFormat {
    Messages,
    /// `counted`: the stream ends with the usage.
    Completions {
        counted: bool,
    },
}

#[derive(Debug, PartialEq)]
pub(crate) enum ScriptedResponseBody {
    Whole(ScriptedReply),
    Stream(ScriptedReply, StreamEnding),
    Json(Value),
    Fail { status: u16, message: String, retry_after: u64 },
    Truncated(ScriptedReply),
    Hang,
}

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamEnding {
    Properly,
    Cut(usize),
    Overloaded,
}

/// The parts of a request that the decision depends on.
pub(crate) struct ModelHttpRequest<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a Value,
}

/// Claude Code sends its session id, and the id of a subagent, in headers.
const SESSION: &str = "x-claude-code-session-id";
/// Log text. An agent that respects its window never gets this response.
const TOO_LONG: &str = "too long";
const AGENT: &str = "x-claude-code-agent-id";

impl ModelHttpRequest<'_> {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// The script, and the number of attempts of each prompt that asks for faults.
#[derive(Debug, Default)]
pub(crate) struct ScriptedModel {
    pub(crate) script: ModelScript,
    window: Option<u64>,
    attempts: HashMap<ConversationId, u32>,
    /// How many answers each conversation has had.
    answers: HashMap<ConversationId, u32>,
}

impl ScriptedModel {
    pub(crate) fn new(script: ModelScript, window: Option<u64>) -> ScriptedModel {
        ScriptedModel { script, window, ..ScriptedModel::default() }
    }

    pub(crate) fn decide(&mut self, asked: &ModelHttpRequest<'_>) -> ScriptedResponse {
        match (asked.method, asked.path) {
            (&Method::POST, "/v1/messages") => match MessagesRequest::read(asked.body) {
                Ok(conversation) => match self.window.and_then(|window| exceeds(asked.body, window)) {
                    Some(error) => ScriptedResponse::fail(TOO_LONG, 400, error),
                    None => {
                        let answer = self.decide_reply(asked, &conversation);
                        self.number_reply(answer)
                    }
                },
                Err(error) => ScriptedResponse::fail("malformed", 400, error),
            },
            (&Method::POST, "/v1/messages/count_tokens") => {
                let count = json!({ "input_tokens": size(asked.body) });
                ScriptedResponse {
                    why: "count_tokens".into(),
                    stall: Duration::ZERO,
                    body: ScriptedResponseBody::Json(count),
                    api: ResponseFormat::Messages,
                }
            }
            (&Method::POST, path) if openai::is_completion(path) => self.decide_completion(asked),
            (_, path) => ScriptedResponse::fail("not found", 404, format!("there is no {path} here")),
        }
    }

    /// Like `decide` for messages, in the other format.
    fn decide_completion(&mut self, asked: &ModelHttpRequest<'_>) -> ScriptedResponse {
        let answer = match openai::translated(asked.path, asked.body) {
            Ok(body) => self.decide(&ModelHttpRequest { path: "/v1/messages", body: &body, ..*asked }),
            Err(error) => ScriptedResponse::fail("malformed", 400, error),
        };
        ScriptedResponse {
            api: ResponseFormat::Completions { counted: openai::wants_counts(asked.body) },
            ..answer
        }
    }

    fn decide_reply(
        &mut self,
        asked: &ModelHttpRequest<'_>,
        conversation: &MessagesRequest,
    ) -> ScriptedResponse {
        // Before the script, because a helper's request may quote words of a rule that is not meant for it.
        if helper_requests::is_helper(conversation) {
            let said = ReplyDraft::text("helper", helper_requests::helper_answer(conversation));
            return answer(asked, conversation, said, AttemptFaults::default());
        }
        let speaker =
            if asked.header(AGENT).is_empty() { RequesterRole::Agent } else { RequesterRole::Subagent };
        if let Some(taken) = self.script.match_rule(conversation, speaker) {
            let mut said = match taken.blocks {
                Some(blocks) => ReplyDraft { blocks, why: "reply".into() },
                None => unscripted::reply_to_conversation(conversation),
            };
            said.why = format!("rule {}: {}", taken.number, said.why);
            return answer(asked, conversation, said, taken.faults);
        }
        let lot = self.faults_of_attempt(asked, conversation);
        answer(asked, conversation, unscripted::reply_to_conversation(conversation), lot)
    }

    /// Each answer gets its own id, even if the text repeats.
    fn number_reply(&mut self, mut answer: ScriptedResponse) -> ScriptedResponse {
        if let ScriptedResponseBody::Whole(reply)
        | ScriptedResponseBody::Stream(reply, _)
        | ScriptedResponseBody::Truncated(reply) = &mut answer.body
        {
            let before = self.answers.entry(reply.id.clone()).or_default();
            reply.repeat_count = *before;
            *before += 1;
        }
        answer
    }

    fn faults_of_attempt(
        &mut self,
        asked: &ModelHttpRequest<'_>,
        conversation: &MessagesRequest,
    ) -> AttemptFaults {
        let Some(prompt) = conversation.prompt() else { return AttemptFaults::default() };
        let troubles = directive::parse(&prompt.text).troubles;
        if troubles.is_empty() {
            return AttemptFaults::default();
        }
        // Two sessions, and two subagents, may begin with the same text.
        let key = prompt.id.derive(asked.header(SESSION)).derive(asked.header(AGENT));
        let attempts = self.attempts.entry(key).or_default();
        *attempts += 1;
        faults::faults_of_attempt(&troubles, *attempts - 1)
    }
}

fn answer(
    asked: &ModelHttpRequest<'_>,
    conversation: &MessagesRequest,
    said: ReplyDraft,
    lot: AttemptFaults,
) -> ScriptedResponse {
    let reply = ScriptedReply {
        id: conversation.id(),
        repeat_count: 0,
        model: conversation.model.clone(),
        blocks: said.blocks,
        input_tokens: lot.usage.unwrap_or_else(|| size(asked.body)),
    };
    let why = format!("{}{lot}", said.why);
    let what = match lot.end {
        Some(TerminalFault::Hang) => ScriptedResponseBody::Hang,
        Some(TerminalFault::Fail { status, retry_after }) => {
            ScriptedResponseBody::Fail { status, message: "as you asked for".into(), retry_after }
        }
        end if conversation.stream => ScriptedResponseBody::Stream(reply, ending(end)),
        Some(TerminalFault::OverloadedMidstream) => {
            ScriptedResponseBody::Fail { status: 529, message: "as you asked for".into(), retry_after: 1 }
        }
        Some(TerminalFault::Cut(_)) => ScriptedResponseBody::Truncated(reply),
        None => ScriptedResponseBody::Whole(reply),
    };
    ScriptedResponse {
        why,
        stall: Duration::from_millis(lot.stall),
        body: what,
        api: ResponseFormat::Messages,
    }
}

fn ending(end: Option<TerminalFault>) -> StreamEnding {
    match end {
        Some(TerminalFault::Cut(events)) => StreamEnding::Cut(events),
        Some(TerminalFault::OverloadedMidstream) => StreamEnding::Overloaded,
        Some(TerminalFault::Fail { .. } | TerminalFault::Hang) | None => StreamEnding::Properly,
    }
}

fn size(body: &Value) -> u64 {
    tokens(["system", "messages", "tools"].iter().map(|part| body[part].to_string().len()).sum())
}

/// The real API's error text; the answer needs space as well.
fn exceeds(body: &Value, window: u64) -> Option<String> {
    let (asked, answer) = (size(body), body["max_tokens"].as_u64().unwrap_or(0));
    if asked > window {
        return Some(format!("prompt is too long: {asked} tokens > {window} maximum"));
    }
    (asked.saturating_add(answer) > window)
        .then(|| format!("input length and `max_tokens` exceed context limit: {asked} + {answer} > {window}"))
}

impl ScriptedResponse {
    /// The usage in the response, if it completes.
    pub(crate) fn usage(&self) -> Option<Value> {
        match &self.body {
            ScriptedResponseBody::Whole(reply)
            | ScriptedResponseBody::Stream(reply, StreamEnding::Properly) => {
                Some(reply.usage(reply.output_tokens()))
            }
            ScriptedResponseBody::Stream(_, StreamEnding::Cut(_) | StreamEnding::Overloaded)
            | ScriptedResponseBody::Json(_)
            | ScriptedResponseBody::Fail { .. }
            | ScriptedResponseBody::Truncated(_)
            | ScriptedResponseBody::Hang => None,
        }
    }

    pub(crate) fn fail(why: &str, status: u16, message: String) -> ScriptedResponse {
        let body = ScriptedResponseBody::Fail { status, message, retry_after: 1 };
        ScriptedResponse { why: why.into(), stall: Duration::ZERO, body, api: ResponseFormat::Messages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(director: &mut ScriptedModel, session: &'static str, messages: Value) -> String {
        let headers = HeaderMap::from_iter([(
            axum::http::HeaderName::from_static(SESSION),
            axum::http::HeaderValue::from_static(session),
        )]);
        let body = json!({ "messages": messages, "tools": [{ "name": "Bash" }] });
        let asked =
            ModelHttpRequest { method: &Method::POST, path: "/v1/messages", headers: &headers, body: &body };
        director.decide(&asked).why
    }

    #[test]
    fn each_requested_fault_happens_once() {
        let mut director = ScriptedModel::default();
        let prompt = json!({"role": "user", "content": "fail 529 2 times\nsay: hi"});
        let once = json!([prompt]);
        let twice = json!([prompt, {"role": "assistant", "content": "hi"}, prompt]);
        let mut tried = |session, messages: &Value| why(&mut director, session, messages.clone());
        for messages in [&once, &twice] {
            let whys = [(); 3].map(|()| tried("a", messages));
            assert_eq!(whys, ["say, fail 529", "say, fail 529", "say"]);
        }
        assert_eq!(tried("b", &once), "say, fail 529");
    }

    #[test]
    fn a_request_larger_than_the_window_is_refused_as_by_the_real_service() {
        let body = |words: usize, most: u64| json!({ "max_tokens": most, "messages": [{"role": "user", "content": "word ".repeat(words)}] });
        assert_eq!(exceeds(&body(100, 100), 1000), None);
        let long = exceeds(&body(1000, 1), 1000).expect("refused");
        assert!(
            long.starts_with("prompt is too long: 12") && long.ends_with("tokens > 1000 maximum"),
            "{long}"
        );
        assert!(exceeds(&body(100, 900), 1000).expect("refused").contains("exceed context limit"));
    }

    #[test]
    fn a_tool_answer_does_not_repeat_the_fault_of_its_prompt() {
        let mut director = ScriptedModel::default();
        let prompt = json!({"role": "user", "content": "usage 9\nrun: ls"});
        assert_eq!(why(&mut director, "a", json!([prompt])), "call of Bash, usage 9");
        let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}]});
        let result =
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]});
        assert_eq!(why(&mut director, "a", json!([prompt, call, result])), "tool result");
    }
}
