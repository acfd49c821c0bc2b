//! What a request gets. Decided here without doing anything; `perform.rs` does it.

use crate::{
    conversation::{Conversation, Id},
    directive,
    follow::{self, Said},
    openai,
    reply::{Reply, tokens},
    script::{Script, Speaker},
    side,
    trouble::{self, End, Lot},
};
use axum::http::{HeaderMap, Method};
use serde_json::{Value, json};
use std::{collections::HashMap, time::Duration};

#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    /// For the log: the rule or the directive it came from.
    pub(crate) why: String,
    pub(crate) stall: Duration,
    pub(crate) what: What,
    pub(crate) api: Api,
}

/// In whose shapes it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Messages,
    /// `counted`: a stream ends with what it cost.
    Completions {
        counted: bool,
    },
}

#[derive(Debug, PartialEq)]
pub(crate) enum What {
    Whole(Reply),
    Stream(Reply, Ending),
    Json(Value),
    Fail { status: u16, message: String, retry_after: u64 },
    Torn(Reply),
    Hang,
}

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Properly,
    Cut(usize),
    Overloaded,
}

/// A request, as far as the decision depends on it.
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a Value,
}

/// Claude Code says for which session it asks, and for which subagent.
const SESSION: &str = "x-claude-code-session-id";
/// In the log: no request of an agent that minds its window gets this.
const TOO_LONG: &str = "too long";
const AGENT: &str = "x-claude-code-agent-id";

impl Asked<'_> {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// The script, and how often each prompt that asks for trouble was tried.
#[derive(Debug, Default)]
pub(crate) struct Director {
    pub(crate) script: Script,
    window: Option<u64>,
    attempts: HashMap<Id, u32>,
    /// How often each conversation was answered.
    answers: HashMap<Id, u32>,
}

impl Director {
    pub(crate) fn new(script: Script, window: Option<u64>) -> Director {
        Director { script, window, ..Director::default() }
    }

    pub(crate) fn decide(&mut self, asked: &Asked<'_>) -> Answer {
        match (asked.method, asked.path) {
            (&Method::POST, "/v1/messages") => match Conversation::read(asked.body) {
                Ok(conversation) => match self.window.and_then(|window| exceeds(asked.body, window)) {
                    Some(error) => Answer::fail(TOO_LONG, 400, error),
                    None => {
                        let answer = self.speak(asked, &conversation);
                        self.name(answer)
                    }
                },
                Err(error) => Answer::fail("malformed", 400, error),
            },
            (&Method::POST, "/v1/messages/count_tokens") => {
                let count = json!({ "input_tokens": size(asked.body) });
                Answer {
                    why: "count_tokens".into(),
                    stall: Duration::ZERO,
                    what: What::Json(count),
                    api: Api::Messages,
                }
            }
            (&Method::POST, path) if openai::is_completion(path) => self.complete(asked),
            (_, path) => Answer::fail("not found", 404, format!("there is no {path} here")),
        }
    }

    /// The same as for a message, in other words.
    fn complete(&mut self, asked: &Asked<'_>) -> Answer {
        let answer = match openai::translated(asked.path, asked.body) {
            Ok(body) => self.decide(&Asked { path: "/v1/messages", body: &body, ..*asked }),
            Err(error) => Answer::fail("malformed", 400, error),
        };
        Answer { api: Api::Completions { counted: openai::wants_counts(asked.body) }, ..answer }
    }

    fn speak(&mut self, asked: &Asked<'_>, conversation: &Conversation) -> Answer {
        // Before the script: its words may be in what a helper is asked about, and are not meant for it.
        if side::is_helper(conversation) {
            let said = Said::text("helper", side::help(conversation));
            return answer(asked, conversation, said, Lot::default());
        }
        let speaker = if asked.header(AGENT).is_empty() { Speaker::Agent } else { Speaker::Subagent };
        if let Some(taken) = self.script.take(conversation, speaker) {
            let mut said = match taken.blocks {
                Some(blocks) => Said { blocks, why: "reply".into() },
                None => follow::answer(conversation),
            };
            said.why = format!("rule {}: {}", taken.number, said.why);
            return answer(asked, conversation, said, taken.lot);
        }
        let lot = self.lot(asked, conversation);
        answer(asked, conversation, follow::answer(conversation), lot)
    }

    /// No two answers have the same name, although they may have the same words.
    fn name(&mut self, mut answer: Answer) -> Answer {
        if let What::Whole(reply) | What::Stream(reply, _) | What::Torn(reply) = &mut answer.what {
            let before = self.answers.entry(reply.id.clone()).or_default();
            reply.again = *before;
            *before += 1;
        }
        answer
    }

    fn lot(&mut self, asked: &Asked<'_>, conversation: &Conversation) -> Lot {
        let Some(prompt) = conversation.prompt() else { return Lot::default() };
        let troubles = directive::parse(&prompt.text).troubles;
        if troubles.is_empty() {
            return Lot::default();
        }
        // Two sessions may begin with the same words, and so may two subagents.
        let key = prompt.id.with(asked.header(SESSION)).with(asked.header(AGENT));
        let attempts = self.attempts.entry(key).or_default();
        *attempts += 1;
        trouble::lot(&troubles, *attempts - 1)
    }
}

fn answer(asked: &Asked<'_>, conversation: &Conversation, said: Said, lot: Lot) -> Answer {
    let reply = Reply {
        id: conversation.id(),
        again: 0,
        model: conversation.model.clone(),
        blocks: said.blocks,
        input_tokens: lot.usage.unwrap_or_else(|| size(asked.body)),
    };
    let why = format!("{}{lot}", said.why);
    let what = match lot.end {
        Some(End::Hang) => What::Hang,
        Some(End::Fail { status, retry_after }) => {
            What::Fail { status, message: "as you asked for".into(), retry_after }
        }
        end if conversation.stream => What::Stream(reply, ending(end)),
        Some(End::OverloadedMidstream) => {
            What::Fail { status: 529, message: "as you asked for".into(), retry_after: 1 }
        }
        Some(End::Cut(_)) => What::Torn(reply),
        None => What::Whole(reply),
    };
    Answer { why, stall: Duration::from_millis(lot.stall), what, api: Api::Messages }
}

fn ending(end: Option<End>) -> Ending {
    match end {
        Some(End::Cut(events)) => Ending::Cut(events),
        Some(End::OverloadedMidstream) => Ending::Overloaded,
        Some(End::Fail { .. } | End::Hang) | None => Ending::Properly,
    }
}

fn size(body: &Value) -> u64 {
    tokens(["system", "messages", "tools"].iter().map(|part| body[part].to_string().len()).sum())
}

/// As the real API says it: the answer has to have room, too.
fn exceeds(body: &Value, window: u64) -> Option<String> {
    let (asked, answer) = (size(body), body["max_tokens"].as_u64().unwrap_or(0));
    if asked > window {
        return Some(format!("prompt is too long: {asked} tokens > {window} maximum"));
    }
    (asked.saturating_add(answer) > window)
        .then(|| format!("input length and `max_tokens` exceed context limit: {asked} + {answer} > {window}"))
}

impl Answer {
    /// What it says was used, if it comes to its end.
    pub(crate) fn usage(&self) -> Option<Value> {
        match &self.what {
            What::Whole(reply) | What::Stream(reply, Ending::Properly) => {
                Some(reply.usage(reply.output_tokens()))
            }
            What::Stream(_, Ending::Cut(_) | Ending::Overloaded)
            | What::Json(_)
            | What::Fail { .. }
            | What::Torn(_)
            | What::Hang => None,
        }
    }

    pub(crate) fn fail(why: &str, status: u16, message: String) -> Answer {
        let what = What::Fail { status, message, retry_after: 1 };
        Answer { why: why.into(), stall: Duration::ZERO, what, api: Api::Messages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(director: &mut Director, session: &'static str, messages: Value) -> String {
        let headers = HeaderMap::from_iter([(
            axum::http::HeaderName::from_static(SESSION),
            axum::http::HeaderValue::from_static(session),
        )]);
        let body = json!({ "messages": messages, "tools": [{ "name": "Bash" }] });
        let asked = Asked { method: &Method::POST, path: "/v1/messages", headers: &headers, body: &body };
        director.decide(&asked).why
    }

    #[test]
    fn trouble_comes_once_for_each_time_it_is_asked_for() {
        let mut director = Director::default();
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
    fn what_does_not_fit_into_the_window_is_refused_as_by_the_real_one() {
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
    fn the_answer_to_a_tool_is_spared_what_the_prompt_got() {
        let mut director = Director::default();
        let prompt = json!({"role": "user", "content": "usage 9\nrun: ls"});
        assert_eq!(why(&mut director, "a", json!([prompt])), "call of Bash, usage 9");
        let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}]});
        let result =
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]});
        assert_eq!(why(&mut director, "a", json!([prompt, call, result])), "tool result");
    }
}
