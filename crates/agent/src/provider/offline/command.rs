//! The command language of the offline provider.

use serde_json::{Map, Value, json};
use std::time::Duration;

#[derive(Debug, PartialEq)]
pub(super) enum OfflineCommand {
    /// Calls in one answer.
    Call(Vec<OfflineCall>),
    Say {
        pause: Duration,
        text: String,
    },
    /// Sends the first word, and the others when a file exists at the path.
    Hold {
        path: String,
        text: String,
    },
    Help,
}

#[derive(Debug, PartialEq)]
pub(super) struct OfflineCall {
    pub(super) tool: String,
    pub(super) input: Value,
}

/// One command per line if every line is one; otherwise one command whose text continues to the end.
pub(super) fn parse(text: &str) -> Option<Vec<OfflineCommand>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let each = lines.map(one).collect::<Option<Vec<_>>>().filter(|commands| !commands.is_empty());
    each.or_else(|| one(text.trim_start()).map(|command| vec![command]))
}

fn one(text: &str) -> Option<OfflineCommand> {
    let (word, rest) = text.split_once([' ', '\n']).unwrap_or((text, ""));
    let first_line = rest.lines().next().unwrap_or_default().trim();
    match word.trim_end() {
        "run:" if !rest.trim().is_empty() => Some(call("run", json!({ "command": rest.trim() }))),
        "write" => {
            let (path, text) = path_and_text(rest)?;
            Some(call("write", json!({ "path": path, "text": text })))
        }
        "edit" => {
            let (path, change) = path_and_text(rest)?;
            let (old, new) = change.split_once(" => ")?;
            Some(call("edit", json!({ "path": path, "old": old, "new": new })))
        }
        "call" => calls(rest).map(OfflineCommand::Call),
        "slow" => slow(rest),
        "hold" => {
            let (path, text) = path_and_text(rest)?;
            Some(OfflineCommand::Hold { path: path.to_owned(), text: text.trim().to_owned() })
        }
        "read" if !first_line.is_empty() => Some(call("read", json!({ "path": first_line }))),
        "list" if first_line.is_empty() => Some(call("list", json!({}))),
        "list" => Some(call("list", json!({ "path": first_line }))),
        "search" if !first_line.is_empty() => Some(search(first_line)),
        "help" if first_line.is_empty() => Some(OfflineCommand::Help),
        _ => None,
    }
}

fn call(tool: &str, input: Value) -> OfflineCommand {
    OfflineCommand::Call(vec![OfflineCall { tool: tool.to_owned(), input }])
}

/// `NAME: JSON`, or `NAME:` for an empty input; `and call` puts another call into the same answer.
fn calls(mut rest: &str) -> Option<Vec<OfflineCall>> {
    let mut calls = Vec::new();
    loop {
        let (name, after) = rest.split_once(':')?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let tool = Some(name.trim()).filter(|name| !name.is_empty() && name.chars().all(plain))?.to_owned();
        let mut input = Map::new();
        rest = after.trim();
        if rest.starts_with('{') {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter();
            input = values.next()?.ok()?;
            rest = rest[values.byte_offset()..].trim_start();
        }
        calls.push(OfflineCall { tool, input: Value::Object(input) });
        if rest.is_empty() {
            return Some(calls);
        }
        rest = rest.strip_prefix("and call ")?;
    }
}

/// `PATH: TEXT`, or `PATH:` with the text on the next lines.
fn path_and_text(rest: &str) -> Option<(&str, &str)> {
    let ends = rest.char_indices().filter(|(_, c)| *c == ':').map(|(at, _)| at);
    let mut ends = ends.filter(|at| rest[at + 1..].chars().next().is_none_or(char::is_whitespace));
    let end = ends.next()?;
    let (path, text) = (rest[..end].trim(), &rest[end + 1..]);
    let text = text.strip_prefix("\r\n").or_else(|| text.strip_prefix([' ', '\n'])).unwrap_or(text);
    (!path.is_empty() && !path.contains('\n')).then_some((path, text))
}

fn slow(rest: &str) -> Option<OfflineCommand> {
    let (pause, text) = rest.split_once(':')?;
    let pause = Duration::from_millis(pause.trim().parse().ok().filter(|ms| *ms <= 3_600_000)?);
    Some(OfflineCommand::Say { pause, text: text.trim().to_owned() })
}

fn search(rest: &str) -> OfflineCommand {
    match rest.rsplit_once(" in ") {
        Some((text, path)) => call("search", json!({ "text": text.trim(), "path": path.trim() })),
        None => call("search", json!({ "text": rest })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str) -> OfflineCommand {
        let mut commands = parse(text).unwrap_or_else(|| panic!("{text:?} is a command"));
        assert_eq!(commands.len(), 1, "{text:?}");
        commands.remove(0)
    }

    #[test]
    fn each_command_is_understood() {
        let say = OfflineCommand::Say { pause: Duration::from_millis(5), text: "a b".into() };
        for (text, expected) in [
            ("run: echo a: b", call("run", json!({"command": "echo a: b"}))),
            ("write a b.txt: x: y", call("write", json!({"path": "a b.txt", "text": "x: y"}))),
            ("write a:b: x", call("write", json!({"path": "a:b", "text": "x"}))),
            ("write a:", call("write", json!({"path": "a", "text": ""}))),
            ("read  a b ", call("read", json!({"path": "a b"}))),
            ("edit f: a b => c", call("edit", json!({"path": "f", "old": "a b", "new": "c"}))),
            ("list", call("list", json!({}))),
            ("list src", call("list", json!({"path": "src"}))),
            ("search a in b in c", call("search", json!({"text": "a in b", "path": "c"}))),
            ("search a", call("search", json!({"text": "a"}))),
            ("call look-up_2:", call("look-up_2", json!({}))),
            (r#"call t: {"a": ["}"]} "#, call("t", json!({"a": ["}"]}))),
            ("slow 5: a b", say),
            ("hold go: a b", OfflineCommand::Hold { path: "go".into(), text: "a b".into() }),
            (" help\n", OfflineCommand::Help),
        ] {
            assert_eq!(only(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_text_over_several_lines_belongs_to_the_first() {
        let expected = call("write", json!({"path": "f", "text": "one\n\ntwo\n"}));
        assert_eq!(only("write f:\none\n\ntwo\n"), expected);
        assert_eq!(only("write f: one\n\ntwo\n"), expected);
        assert_eq!(only("run: cat <<E\nx\nE"), call("run", json!({"command": "cat <<E\nx\nE"})));
        assert_eq!(only("read f\nplease"), call("read", json!({"path": "f"})));
    }

    #[test]
    fn calls_on_one_line_are_one_answer_and_json_may_take_several_lines() {
        let of = |tool: &str, input: Value| OfflineCall { tool: tool.into(), input };
        let both =
            OfflineCommand::Call(vec![of("a", json!({"x": 1})), of("b", json!({})), of("c", json!({}))]);
        assert_eq!(only(r#"call a: {"x": 1} and call b: and call c: {}"#), both);
        assert_eq!(only("call a: {\n\"x\": 1\n}"), call("a", json!({"x": 1})));
        assert_eq!(parse("call a: {}\ncall b: {}").expect("commands").len(), 2);
    }

    #[test]
    fn lines_that_are_all_commands_are_many() {
        let commands = parse("run: a\n\n  write f: x\nhelp\n").expect("commands");
        assert_eq!(commands.len(), 3);
    }

    #[test]
    fn everything_else_is_talk() {
        for text in [
            "",
            "  \n",
            "hello",
            "run",
            "run:",
            "slow x: y",
            "hold f",
            "write f",
            "edit f: a",
            "call",
            "call t",
            "call t: x",
            "call t: [1]",
            "call t: {} and tea",
            "call a b: {}",
            "help me",
            "reading",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
