//! The full description of a call, by which a user decides.

use crate::terminal::{TerminalStyle, is_bidi, paint_err};
use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};
use unicode_width::UnicodeWidthChar;

/// Maximum lines and characters that are shown at first.
const FIRST_LINES: usize = 40;
const FIRST_CHARACTERS: usize = 4_000;

/// The content of the file that a `Write` replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Before {
    /// There is no such file.
    Nothing,
    Text(String),
    /// Why the contents cannot be compared.
    Unknown(&'static str),
}

pub(super) fn details(tool: &str, input: &Value, before: &Before) -> String {
    let Some(fields) = input.as_object() else { return visible(&input.to_string()) };
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    match (tool, text("command"), text("file_path"), text("content")) {
        ("Bash", Some(command), ..) => format!("{}{}", visible(command), others(fields, &["command"])),
        ("Write", _, Some(path), Some(content)) => {
            let (note, diff) = match before {
                Before::Nothing => (" (new)".to_owned(), diff("", content)),
                Before::Text(before) => (String::new(), diff(before, content)),
                Before::Unknown(why) => (format!(" ({why})"), diff("", content)),
            };
            format!("{}{note}\n{diff}{}", visible(path), others(fields, &["file_path", "content"]))
        }
        ("Edit", _, Some(path), _) if text("old_string").is_some() && text("new_string").is_some() => {
            let diff = diff(text("old_string").unwrap_or_default(), text("new_string").unwrap_or_default());
            format!("{}\n{diff}{}", visible(path), others(fields, &["file_path", "old_string", "new_string"]))
        }
        _ => visible(&serde_json::to_string_pretty(input).unwrap_or_default()),
    }
}

/// Every other field: a user decides by all of them.
fn others(fields: &Map<String, Value>, shown: &[&str]) -> String {
    let rest = fields.iter().filter(|(name, _)| !shown.contains(&name.as_str()));
    rest.map(|(name, value)| format!("\n{}", visible(&format!("{name}: {value}")))).collect()
}

/// Escapes characters that a terminal hides or obeys: they are part of the call.
fn visible(text: &str) -> String {
    let mut before = ' ';
    let one = |c: char| {
        let shown = if is_hidden(c, before) { c.escape_unicode().to_string() } else { c.to_string() };
        before = c;
        shown
    };
    text.chars().map(one).collect()
}

fn is_hidden(c: char, before: char) -> bool {
    match c {
        '\n' | '\t' => false,
        c if c.is_control() || is_bidi(c) => true,
        // These join the parts of an emoji.
        '\u{200d}' | '\u{fe0f}' => before.is_ascii(),
        c => c.width() == Some(0) && !is_mark(c),
    }
}

/// Combining marks, such as accents and vowels: they have no width of their own but are visible.
fn is_mark(c: char) -> bool {
    let has_marks = matches!(c, '\u{300}'..='\u{1fff}' | '\u{20d0}'..='\u{20ff}' | '\u{2de0}'..='\u{2dff}' | '\u{3000}'..='\u{fdff}');
    let is_blank = matches!(c, '\u{34f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}');
    has_marks && !is_blank
}

/// All lines, changed or not: a user needs the context of a change.
fn diff(before: &str, after: &str) -> String {
    let diff = TextDiff::from_lines(before, after);
    let lines = diff.iter_all_changes().map(|change| {
        let line = visible(change.value().trim_end_matches('\n'));
        match change.tag() {
            ChangeTag::Equal => format!("  {line}"),
            ChangeTag::Delete => paint_err(TerminalStyle::Red, &format!("- {line}")),
            ChangeTag::Insert => paint_err(TerminalStyle::Green, &format!("+ {line}")),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Questions with their choices, numbered as answers refer to them.
pub(super) fn choices(asked: &Value) -> String {
    let all = asked["input"]["questions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value, name: &str| visible(value[name].as_str().unwrap_or_default());
    let choice = |(n, choice): (usize, &Value)| match text(choice, "description") {
        nothing if nothing.is_empty() => format!("\n  {n}. {}", text(choice, "label")),
        more => format!("\n  {n}. {}: {more}", text(choice, "label")),
    };
    let question = |question: &Value| {
        let choices = question["options"].as_array().map(Vec::as_slice).unwrap_or_default();
        text(question, "question") + &(1..).zip(choices).map(choice).collect::<String>()
    };
    all.iter().map(question).collect::<Vec<_>>().join("\n")
}

/// The part that is shown first, and the part that only "show more" shows.
pub(super) fn first(text: &str) -> (&str, &str) {
    let lines = text.match_indices('\n').nth(FIRST_LINES - 1).map_or(text.len(), |(at, _)| at);
    let characters = text.char_indices().nth(FIRST_CHARACTERS).map_or(text.len(), |(at, _)| at);
    let (shown, hidden) = text.split_at(lines.min(characters));
    (shown, hidden.strip_prefix('\n').unwrap_or(hidden))
}

/// A rule that the agent suggests, in words.
pub(super) fn rule(suggestion: &Value) -> String {
    let text = |name: &str| suggestion[name].as_str();
    let list = |name: &str| suggestion[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let what = match text("type") {
        Some("addRules") if !list("rules").is_empty() => {
            let rules = list("rules").iter().map(|rule| {
                let tool = rule["toolName"].as_str().unwrap_or("?");
                rule["ruleContent"].as_str().map_or_else(|| tool.to_owned(), |what| format!("{tool}({what})"))
            });
            let rules = rules.collect::<Vec<_>>().join(", ");
            format!("{} {rules}", text("behavior").unwrap_or("allow"))
        }
        Some("setMode") => format!("permission mode {}", text("mode").unwrap_or("?")),
        Some("addDirectories") => {
            let all = list("directories").iter().filter_map(Value::as_str).collect::<Vec<_>>();
            format!("work in {}", all.join(", "))
        }
        // A rule of an unknown kind is shown as JSON.
        _ => return visible(&suggestion.to_string()),
    };
    let whole = text("destination").map_or_else(String::new, |place| format!(" (in {place})"));
    visible(&(what + &whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bash_shows_its_whole_command() {
        let long = format!("echo {}; rm -rf ~", "x".repeat(10_000));
        let shown = details("Bash", &json!({ "command": long, "run_in_background": true }), &Before::Nothing);
        assert_eq!(shown, format!("{long}\nrun_in_background: true"));
    }

    #[test]
    fn write_and_edit_show_path_and_diff() {
        let input = json!({ "file_path": "/workspace/a", "content": "one\nthree\n" });
        let write = |before: Before| details("Write", &input, &before);
        assert_eq!(write(Before::Text("one\ntwo\n".to_owned())), "/workspace/a\n  one\n- two\n+ three");
        assert_eq!(write(Before::Nothing), "/workspace/a (new)\n+ one\n+ three");
        assert_eq!(write(Before::Unknown("why")), "/workspace/a (why)\n+ one\n+ three");
        let input =
            json!({ "file_path": "b", "old_string": "x\ny", "new_string": "x\nz", "replace_all": true });
        assert_eq!(details("Edit", &input, &Before::Nothing), "b\n  x\n- y\n+ z\nreplace_all: true");
    }

    #[test]
    fn everything_else_shows_its_complete_input() {
        let input =
            json!({ "url": "https://x", "nested": { "deep": ["a", { "b": 1 }] }, "last": "z".repeat(5_000) });
        let shown = details("WebFetch", &input, &Before::Nothing);
        assert_eq!(serde_json::from_str::<Value>(&shown).expect("JSON"), input);
        // Also a Bash or a Write call with unknown fields.
        assert!(details("Bash", &json!({ "cmd": "x" }), &Before::Nothing).contains("cmd"));
    }

    #[test]
    fn what_a_terminal_does_not_show_is_written_out() {
        let input = json!({ "command": "ls\r\u{1b}[8mrm\u{200b} \u{202e}x\u{e0041}", "more": "a\u{feff}b" });
        let shown = details("Bash", &input, &Before::Nothing);
        assert_eq!(shown, "ls\\u{d}\\u{1b}[8mrm\\u{200b} \\u{202e}x\\u{e0041}\nmore: \"a\\u{feff}b\"");
        let plain = "e\u{301} देवनागरी 日本 👩\u{200d}🚀 ❤\u{fe0f}\tx\ny";
        assert_eq!(visible(plain), plain, "what has a form stays");
        let input = json!({ "file_path": "a\u{200b}", "old_string": "x", "new_string": "x\u{200b}" });
        assert_eq!(details("Edit", &input, &Before::Nothing), "a\\u{200b}\n- x\n+ x\\u{200b}");
    }

    #[test]
    fn a_question_is_shown_with_its_choices() {
        let asked = json!({ "question": true, "input": { "questions": [
            { "question": "Which?", "options": [{ "label": "red", "description": "as blood" }, { "label": "blue" }] },
            { "question": "Why?" },
        ] } });
        assert_eq!(choices(&asked), "Which?\n  1. red: as blood\n  2. blue\nWhy?");
    }

    #[test]
    fn nothing_is_hidden_without_show_more() {
        assert_eq!(first("short"), ("short", ""));
        let lines = (1..=100).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        let (shown, hidden) = first(&lines);
        assert_eq!((shown.lines().count(), hidden.lines().count()), (40, 60));
        assert_eq!(format!("{shown}\n{hidden}"), lines);
        let wide = "é".repeat(10_000);
        let (shown, hidden) = first(&wide);
        assert_eq!((shown.chars().count(), hidden.chars().count()), (4_000, 6_000));
    }

    #[test]
    fn a_suggestion_is_read_as_a_rule() {
        let add = json!({ "type": "addRules", "behavior": "allow", "destination": "session",
            "rules": [{ "toolName": "Bash", "ruleContent": "git:*" }, { "toolName": "Read" }] });
        assert_eq!(rule(&add), "allow Bash(git:*), Read (in session)");
        assert_eq!(rule(&json!({ "type": "setMode", "mode": "acceptEdits" })), "permission mode acceptEdits");
        assert_eq!(rule(&json!({ "type": "new", "x": 1 })), r#"{"type":"new","x":1}"#);
    }
}
