//! Scripts: rules for replies. The first rule that matches and is not used up wins; without a match the reply follows
//! from the conversation.

use crate::{
    api_errors,
    conversation::MessagesRequest,
    faults::{AttemptFaults, TerminalFault},
    reply::{ReplyBlock, TextPace},
};
use serde::{Deserialize, de::Error as _};
use serde_json::{Value, error::Category};

#[derive(Debug, Clone, Default)]
pub struct ModelScript {
    rules: Vec<ScriptRule>,
}

/// Why a script is invalid: the rule, and its error.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {why}")]
pub struct ModelScriptError {
    place: String,
    why: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptRule {
    #[serde(default)]
    when: ScriptCondition,
    /// How often the rule applies; `None`: always.
    times: Option<u32>,
    reply: Option<Vec<ScriptBlock>>,
    fail: Option<u16>,
    /// The retry-after time in seconds, with `fail`.
    retry_after: Option<u64>,
    stall: Option<u64>,
    cut: Option<usize>,
    #[serde(default)]
    hang: bool,
    usage: Option<u64>,
    #[serde(default)]
    overloaded_midstream: bool,
    #[serde(skip)]
    used: u32,
}

/// All given conditions must hold.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptCondition {
    /// A text in the prompt, or in the tool results if they came last.
    contains: Option<String>,
    /// The number of the answer in its conversation, from 1.
    turn: Option<usize>,
    model: Option<String>,
    /// Without this, rules skip subagents: otherwise a subagent's call could start the next subagent.
    #[serde(default)]
    subagent: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum ScriptBlock {
    Text { text: String, pieces: Option<usize> },
    Thinking { thinking: String },
    ToolUse { name: String, input: Value },
}

/// The sender of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequesterRole {
    Agent,
    Subagent,
}

/// The rule that matched.
#[derive(Debug, PartialEq)]
pub(crate) struct MatchedRule {
    pub(crate) number: usize,
    /// `None`: the reply follows from the conversation.
    pub(crate) blocks: Option<Vec<ReplyBlock>>,
    pub(crate) faults: AttemptFaults,
}

impl ModelScript {
    /// Parses a JSON list of rules, or one rule per line.
    pub fn parse(text: &str) -> Result<ModelScript, ModelScriptError> {
        let values = if text.trim_start().starts_with('[') {
            serde_json::from_str::<Vec<Value>>(text).map_err(at("the list of rules".into()))?
        } else {
            lines(text)?
        };
        let rules = values.into_iter().zip(1..).map(|(value, number)| rule(value).map_err(at(place(number))));
        Ok(ModelScript { rules: rules.collect::<Result<_, _>>()? })
    }

    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    pub(crate) fn match_rule(
        &mut self,
        conversation: &MessagesRequest,
        speaker: RequesterRole,
    ) -> Option<MatchedRule> {
        let found = self.rules.iter_mut().zip(1..).find(|(rule, _)| rule.matches(conversation, speaker));
        let (rule, number) = found?;
        rule.used += 1;
        let blocks = rule.reply.as_ref().map(|pieces| pieces.iter().map(ScriptBlock::block).collect());
        Some(MatchedRule { number, blocks, faults: rule.faults() })
    }
}

fn lines(text: &str) -> Result<Vec<Value>, ModelScriptError> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.zip(1..).map(|(line, number)| serde_json::from_str(line).map_err(at(place(number)))).collect()
}

fn place(number: usize) -> String {
    format!("rule {number}")
}

fn at(place: String) -> impl FnOnce(serde_json::Error) -> ModelScriptError {
    move |error| ModelScriptError { place, why: in_words(&error) }
}

/// The parser's error in words for people.
fn in_words(error: &serde_json::Error) -> String {
    if error.classify() != Category::Data {
        return format!("it is not JSON from line {}, column {} on", error.line(), error.column());
    }
    let said = error.to_string().replace('`', "");
    let listed = |what: &str| what.trim_start_matches("one of ").replace(" or ", ", ");
    match said.split_once(", expected ") {
        Some((unknown, known)) if unknown.starts_with("unknown ") => {
            let name = unknown.split(' ').nth(2).unwrap_or_default();
            format!("there is no {name} here; there are {}", listed(known))
        }
        Some((_, "u16" | "u32" | "u64" | "usize")) => "a value in it must be a whole number".to_owned(),
        Some((_, wanted)) => format!("a value in it must be {}", listed(wanted)),
        None => match said.strip_prefix("missing field ") {
            Some(name) => format!("{name} is missing"),
            None => said,
        },
    }
}

fn rule(value: Value) -> Result<ScriptRule, serde_json::Error> {
    let rule: ScriptRule = serde_json::from_value(value)?;
    let ends = [rule.fail.is_some(), rule.cut.is_some(), rule.hang, rule.overloaded_midstream];
    let ends = ends.into_iter().filter(|given| *given).count();
    let wrong = serde_json::Error::custom::<&str>;
    if let Some(status) = rule.fail.filter(|status| api_errors::kind(*status).is_none()) {
        return Err(serde_json::Error::custom(format!("the API has no status {status} to fail with")));
    }
    if ends > 1 {
        return Err(wrong(
            "only one of `fail`, `cut`, `hang` and `overloaded_midstream` can be the end of it",
        ));
    }
    if rule.reply.is_some() && (rule.fail.is_some() || rule.hang) {
        return Err(wrong("there is no `reply` when it fails or hangs"));
    }
    if rule.reply.as_ref().is_some_and(Vec::is_empty) {
        return Err(wrong("`reply` has no blocks"));
    }
    if rule.retry_after.is_some() && rule.fail.is_none() {
        return Err(wrong("`retry_after` goes with `fail`"));
    }
    if ends == 0 && rule.reply.is_none() && rule.stall.is_none() && rule.usage.is_none() {
        return Err(wrong(
            "it says nothing to do: give `reply`, `fail`, `stall`, `cut`, `hang`, `usage` or `overloaded_midstream`",
        ));
    }
    Ok(rule)
}

impl ScriptRule {
    fn matches(&self, conversation: &MessagesRequest, speaker: RequesterRole) -> bool {
        let ScriptCondition { contains, turn, model, subagent } = &self.when;
        self.times.is_none_or(|times| self.used < times)
            && *subagent == (speaker == RequesterRole::Subagent)
            && contains.as_ref().is_none_or(|text| conversation.newest_text().contains(text))
            && turn.is_none_or(|turn| conversation.answer_number() == turn)
            && model.as_ref().is_none_or(|model| conversation.model == *model)
    }

    fn faults(&self) -> AttemptFaults {
        let end = match (self.fail, self.cut) {
            (Some(status), _) => {
                Some(TerminalFault::Fail { status, retry_after: self.retry_after.unwrap_or(1) })
            }
            (None, Some(events)) => Some(TerminalFault::Cut(events)),
            (None, None) if self.hang => Some(TerminalFault::Hang),
            (None, None) => self.overloaded_midstream.then_some(TerminalFault::OverloadedMidstream),
        };
        AttemptFaults { stall: self.stall.unwrap_or(0), usage: self.usage, end }
    }
}

impl ScriptBlock {
    fn block(&self) -> ReplyBlock {
        match self {
            ScriptBlock::Text { text, pieces } => {
                ReplyBlock::Text { text: text.clone(), pace: pieces.map_or(TextPace::AtOnce, TextPace::Slow) }
            }
            ScriptBlock::Thinking { thinking } => ReplyBlock::Thinking(thinking.clone()),
            ScriptBlock::ToolUse { name, input } => {
                ReplyBlock::Call { name: name.clone(), input: input.clone() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(prompt: &str, model: &str) -> MessagesRequest {
        let body = json!({ "model": model, "messages": [{ "role": "user", "content": prompt }] });
        MessagesRequest::read(&body).expect("a conversation")
    }

    #[test]
    fn the_first_rule_that_matches_and_is_not_used_up_wins() {
        let mut script = ModelScript::parse(
            r#"{"when": {"contains": "tea"}, "times": 1, "fail": 529, "retry_after": 0}
               {"when": {"contains": "tea", "model": "m"}, "reply": [{"type": "text", "text": "for m"}]}

               {"when": {"turn": 1}, "cut": 3}"#,
        )
        .expect("a script");
        assert_eq!(script.rules(), 3);
        let mut taken = |prompt, model| {
            script.match_rule(&request(prompt, model), RequesterRole::Agent).map(|taken| taken.number)
        };
        let took = [taken("tea", "m"), taken("tea", "m"), taken("tea", "n"), taken("x", "m")];
        assert_eq!(took, [Some(1), Some(2), Some(3), Some(3)]);
    }

    #[test]
    fn subagents_match_only_rules_for_subagents() {
        let script = r#"[{"when": {"turn": 1}, "fail": 500}, {"when": {"subagent": true}, "fail": 429}]"#;
        let mut script = ModelScript::parse(script).expect("a script");
        let mut taken = |speaker| script.match_rule(&request("x", "m"), speaker).map(|taken| taken.number);
        assert_eq!((taken(RequesterRole::Agent), taken(RequesterRole::Subagent)), (Some(1), Some(2)));
    }

    #[test]
    fn a_rule_says_what_comes() {
        let mut script = ModelScript::parse(
            r#"[{"stall": 5, "usage": 7, "reply": [
                {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a", "pieces": 4},
                {"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}]}]"#,
        )
        .expect("a script");
        let blocks = vec![
            ReplyBlock::Thinking("hm".into()),
            ReplyBlock::Text { text: "a".into(), pace: TextPace::Slow(4) },
            ReplyBlock::Call { name: "Bash".into(), input: json!({"command": "ls"}) },
        ];
        let lot = AttemptFaults { stall: 5, usage: Some(7), end: None };
        assert_eq!(
            script.match_rule(&request("x", "m"), RequesterRole::Agent),
            Some(MatchedRule { number: 1, blocks: Some(blocks), faults: lot })
        );
    }

    #[test]
    fn a_script_that_is_wrong_is_refused_with_the_rule_and_the_reason() {
        for (text, expected) in [
            ("{\"hang\": true}\n{\"hnag\": true}", "rule 2: there is no hnag here; there are when, times, "),
            (
                r#"[{"when": {"contain": "x"}, "hang": true}]"#,
                "rule 1: there is no contain here; there are contains, turn, model, subagent",
            ),
            (
                r#"[{"reply": [{"type": "text", "txt": "x"}]}]"#,
                "rule 1: there is no txt here; there are text, pieces",
            ),
            (
                r#"[{"reply": [{"type": "txt"}]}]"#,
                "rule 1: there is no txt here; there are text, thinking, tool_use",
            ),
            (r#"[{"reply": [{"type": "thinking"}]}]"#, "rule 1: thinking is missing"),
            (r#"[{"times": "often"}]"#, "rule 1: a value in it must be a whole number"),
            (r#"[{"when": {"turn": 1}}]"#, "rule 1: it says nothing to do"),
            (r#"[{"fail": 418}]"#, "rule 1: the API has no status 418"),
            (r#"[{"fail": 500, "hang": true}]"#, "rule 1: only one of"),
            ("[{]", "the list of rules: it is not JSON from line 1, column 3 on"),
            ("nonsense", "rule 1: it is not JSON from line 1, column"),
        ] {
            let error =
                ModelScript::parse(text).map(|script| script.rules()).expect_err("refused").to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
