//! The prompt language, as in the built-in agent's offline provider: the model follows directives, and any other prompt
//! is plain conversation. Leading lines may ask for faults.

use crate::{faults::FaultDirective, reply::TextPace};
use serde_json::{Map, Value};

/// A parsed prompt.
#[derive(Debug, PartialEq)]
pub(crate) struct PromptDirectives {
    pub(crate) troubles: Vec<FaultDirective>,
    /// Plain conversation yields `None`.
    pub(crate) steps: Vec<DirectiveStep>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum DirectiveStep {
    /// Calls in one answer.
    Call(Vec<DirectiveToolCall>),
    Think(String),
    Say {
        text: String,
        pace: TextPace,
    },
    /// Reply as if this were the prompt.
    Chat(String),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum DirectiveToolCall {
    Run { command: String },
    Write { path: String, text: String },
    Read { path: String },
    Ask { question: String, options: Vec<String> },
    Named { name: String, input: Value },
}

pub(crate) fn parse(prompt: &str) -> PromptDirectives {
    let mut troubles = Vec::new();
    let mut rest = prompt.trim_start();
    while let Some(trouble) = rest.lines().next().and_then(FaultDirective::parse) {
        troubles.push(trouble);
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
    }
    PromptDirectives { troubles, steps: steps(rest) }
}

/// One directive per line if every line is one; otherwise one directive whose text continues to the end.
fn steps(text: &str) -> Vec<DirectiveStep> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    if let Some(steps) = lines.map(one).collect::<Option<Vec<_>>>() {
        return steps;
    }
    let (line, below) = text.split_once('\n').unwrap_or((text, ""));
    match one(line) {
        // A thought is one line, and the answer follows.
        Some(thought @ DirectiveStep::Think(_)) => {
            let after = steps(below);
            let after = if after.is_empty() { vec![DirectiveStep::Chat(below.trim().into())] } else { after };
            [vec![thought], after].concat()
        }
        _ => one(text).into_iter().collect(),
    }
}

fn one(text: &str) -> Option<DirectiveStep> {
    let (word, rest) = text.split_once([' ', '\n']).unwrap_or((text, ""));
    let rest = rest.trim();
    if rest.is_empty() {
        return None;
    }
    match word {
        "run:" => Some(call(DirectiveToolCall::Run { command: rest.into() })),
        "write" => {
            let (path, text) = path_and_text(rest)?;
            Some(call(DirectiveToolCall::Write { path: path.into(), text: text.into() }))
        }
        "read" => Some(call(DirectiveToolCall::Read { path: rest.lines().next()?.trim().into() })),
        "ask:" => Some(call(ask(rest))),
        "call" => calls(rest).map(DirectiveStep::Call),
        "think:" => Some(DirectiveStep::Think(rest.into())),
        "say:" => Some(DirectiveStep::Say { text: rest.into(), pace: TextPace::AtOnce }),
        "slow" => slow(rest),
        _ => None,
    }
}

fn call(only: DirectiveToolCall) -> DirectiveStep {
    DirectiveStep::Call(vec![only])
}

/// `NAME: JSON`, or `NAME:` for an empty input; `and call` puts another call into the same answer.
fn calls(mut rest: &str) -> Option<Vec<DirectiveToolCall>> {
    let mut calls = Vec::new();
    loop {
        let (given, after) = rest.split_once(':')?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let name = Some(given.trim()).filter(|name| !name.is_empty() && name.chars().all(plain))?.to_owned();
        let mut input = Map::new();
        rest = after.trim();
        if rest.starts_with('{') {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter();
            input = values.next()?.ok()?;
            rest = rest[values.byte_offset()..].trim_start();
        }
        calls.push(DirectiveToolCall::Named { name, input: Value::Object(input) });
        if rest.is_empty() {
            return Some(calls);
        }
        rest = rest.strip_prefix("and call ")?;
    }
}

/// `PATH: TEXT`, or `PATH:` with the text on the next lines.
fn path_and_text(rest: &str) -> Option<(&str, &str)> {
    let mut ends = rest.match_indices(':').map(|(at, _)| at);
    let end = ends.find(|at| rest[at + 1..].chars().next().is_none_or(char::is_whitespace))?;
    let (path, text) = (rest[..end].trim(), &rest[end + 1..]);
    let text = text.strip_prefix([' ', '\n']).unwrap_or(text);
    (!path.is_empty() && !path.contains('\n')).then_some((path, text))
}

fn ask(rest: &str) -> DirectiveToolCall {
    let mut parts = rest.split('|').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty());
    let question = parts.next().unwrap_or_default();
    let mut options: Vec<String> = parts.collect();
    // A question needs at least two options.
    if options.len() < 2 {
        options = vec!["Yes".into(), "No".into()];
    }
    DirectiveToolCall::Ask { question, options }
}

fn slow(rest: &str) -> Option<DirectiveStep> {
    let (pieces, text) = rest.split_once(':')?;
    let pieces = pieces.trim().parse().ok().filter(|pieces| (1..=100_000).contains(pieces))?;
    Some(DirectiveStep::Say { text: text.trim().into(), pace: TextPace::Slow(pieces) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(command: &str) -> DirectiveStep {
        call(DirectiveToolCall::Run { command: command.into() })
    }

    fn named(name: &str, input: Value) -> DirectiveToolCall {
        DirectiveToolCall::Named { name: name.into(), input }
    }

    fn write(path: &str, text: &str) -> DirectiveStep {
        call(DirectiveToolCall::Write { path: path.into(), text: text.into() })
    }

    #[test]
    fn each_directive_is_understood() {
        let ask = |question: &str, options: [&str; 2]| {
            let options = options.map(str::to_owned).to_vec();
            call(DirectiveToolCall::Ask { question: question.into(), options })
        };
        for (text, expected) in [
            ("run: echo a: b", run("echo a: b")),
            ("write a b.txt: x: y", write("a b.txt", "x: y")),
            ("write a:b: x", write("a:b", "x")),
            ("read a b ", call(DirectiveToolCall::Read { path: "a b".into() })),
            ("ask: Tea or coffee? | Tea | Coffee", ask("Tea or coffee?", ["Tea", "Coffee"])),
            ("ask: Sure?", ask("Sure?", ["Yes", "No"])),
            ("call look-up_2:", call(named("look-up_2", json!({})))),
            (r#"call t: {"a": ["}"]} "#, call(named("t", json!({"a": ["}"]})))),
            ("think: hm", DirectiveStep::Think("hm".into())),
            ("say: a b", DirectiveStep::Say { text: "a b".into(), pace: TextPace::AtOnce }),
            ("slow 5: a b", DirectiveStep::Say { text: "a b".into(), pace: TextPace::Slow(5) }),
        ] {
            assert_eq!(parse(text), PromptDirectives { troubles: vec![], steps: vec![expected] }, "{text:?}");
        }
    }

    #[test]
    fn lines_that_are_all_directives_are_many_and_others_are_one() {
        assert_eq!(parse("run: a\n\n  write f: x\n").steps, [run("a"), write("f", "x")]);
        assert_eq!(parse("run: cat <<E\nx\nE").steps, [run("cat <<E\nx\nE")]);
        assert_eq!(parse("write f:\none\n\ntwo").steps, [write("f", "one\n\ntwo")]);
    }

    #[test]
    fn calls_on_one_line_are_one_answer_and_json_may_take_several_lines() {
        let both = vec![named("a", json!({"x": 1})), named("b", json!({})), named("c", json!({}))];
        let steps = parse(r#"call a: {"x": 1} and call b: and call c: {}"#).steps;
        assert_eq!(steps, [DirectiveStep::Call(both)]);
        assert_eq!(parse("call a: {\n\"x\": 1\n}").steps, [call(named("a", json!({"x": 1})))]);
        assert_eq!(parse("call a: {}\ncall b: {}").steps.len(), 2);
    }

    #[test]
    fn a_thought_goes_before_whatever_follows() {
        let think = DirectiveStep::Think("hm".into());
        assert_eq!(parse("think: hm\nrun: cat <<E\nx\nE").steps, [think.clone(), run("cat <<E\nx\nE")]);
        assert_eq!(parse("think: hm\nwhat now?").steps, [think, DirectiveStep::Chat("what now?".into())]);
    }

    #[test]
    fn trouble_comes_first() {
        let directions = parse("stall 5\nfail 529 2 times\nrun: a");
        assert_eq!(
            directions.troubles,
            [FaultDirective::Stall(5), FaultDirective::Fail { status: 529, times: 2 }]
        );
        assert_eq!(directions.steps, [run("a")]);
        let only = parse("hang");
        assert_eq!((only.troubles, only.steps), (vec![FaultDirective::Hang], vec![]));
    }

    #[test]
    fn everything_else_is_talk() {
        for text in [
            "",
            " \n",
            "hello",
            "run",
            "run:",
            "slow x: y",
            "slow 0: y",
            "write f",
            "fail me",
            "reading",
            "call",
            "call t",
            "call t: x",
            "call t: [1]",
            "call t: {} and tea",
            "call a b: {}",
        ] {
            assert_eq!(parse(text), PromptDirectives { troubles: vec![], steps: vec![] }, "{text:?}");
        }
    }
}
