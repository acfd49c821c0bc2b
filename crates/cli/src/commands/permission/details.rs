//! What a call will do, in full: the text that a person decides by.

use crate::out::{Paint, paint_err};
use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};

/// So many lines are shown at once, and so many characters.
const FIRST_LINES: usize = 40;
const FIRST_CHARACTERS: usize = 4_000;

/// `before`: what is in the file that a `Write` replaces, if it can be read.
pub(super) fn details(tool: &str, input: &Value, before: &str) -> String {
    let Some(fields) = input.as_object() else { return input.to_string() };
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    match (tool, text("command"), text("file_path")) {
        ("Bash", Some(command), _) => format!("{command}{}", others(fields, &["command"])),
        ("Write", _, Some(path)) if text("content").is_some() => {
            let diff = diff(before, text("content").unwrap_or_default());
            format!("{path}\n{diff}{}", others(fields, &["file_path", "content"]))
        }
        ("Edit", _, Some(path)) if text("old_string").is_some() && text("new_string").is_some() => {
            let diff = diff(text("old_string").unwrap_or_default(), text("new_string").unwrap_or_default());
            format!("{path}\n{diff}{}", others(fields, &["file_path", "old_string", "new_string"]))
        }
        _ => serde_json::to_string_pretty(input).unwrap_or_default(),
    }
}

/// Every other field: a caller decides by all of them.
fn others(fields: &Map<String, Value>, shown: &[&str]) -> String {
    let rest = fields.iter().filter(|(name, _)| !shown.contains(&name.as_str()));
    rest.map(|(name, value)| format!("\n{name}: {value}")).collect()
}

/// All lines, changed or not: what is around a change is a part of what happens.
fn diff(before: &str, after: &str) -> String {
    let diff = TextDiff::from_lines(before, after);
    let lines = diff.iter_all_changes().map(|change| {
        let line = change.value().trim_end_matches('\n');
        match change.tag() {
            ChangeTag::Equal => format!("  {line}"),
            ChangeTag::Delete => paint_err(Paint::Red, &format!("- {line}")),
            ChangeTag::Insert => paint_err(Paint::Green, &format!("+ {line}")),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What is shown first, and what only "show more" shows.
pub(super) fn first(text: &str) -> (&str, &str) {
    let lines = text.match_indices('\n').nth(FIRST_LINES - 1).map_or(text.len(), |(at, _)| at);
    let characters = text.char_indices().nth(FIRST_CHARACTERS).map_or(text.len(), |(at, _)| at);
    text.split_at(lines.min(characters))
}

/// A rule that the agent suggests, as a person reads it.
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
        // One that we do not know is shown as it is.
        _ => return suggestion.to_string(),
    };
    let whole = text("destination").map_or_else(String::new, |place| format!(" (in {place})"));
    what + &whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bash_shows_its_whole_command() {
        let long = format!("echo {}; rm -rf ~", "x".repeat(10_000));
        let shown = details("Bash", &json!({ "command": long, "run_in_background": true }), "");
        assert_eq!(shown, format!("{long}\nrun_in_background: true"));
    }

    #[test]
    fn write_and_edit_show_path_and_diff() {
        let input = json!({ "file_path": "/workspace/a", "content": "one\nthree\n" });
        assert_eq!(details("Write", &input, "one\ntwo\n"), "/workspace/a\n  one\n- two\n+ three");
        assert_eq!(details("Write", &input, ""), "/workspace/a\n+ one\n+ three");
        let input =
            json!({ "file_path": "b", "old_string": "x\ny", "new_string": "x\nz", "replace_all": true });
        assert_eq!(details("Edit", &input, ""), "b\n  x\n- y\n+ z\nreplace_all: true");
    }

    #[test]
    fn everything_else_shows_its_complete_input() {
        let input =
            json!({ "url": "https://x", "nested": { "deep": ["a", { "b": 1 }] }, "last": "z".repeat(5_000) });
        let shown = details("WebFetch", &input, "");
        assert_eq!(serde_json::from_str::<Value>(&shown).expect("JSON"), input);
        // Also a Bash or a Write that is not as we know it.
        assert!(details("Bash", &json!({ "cmd": "x" }), "").contains("cmd"));
    }

    #[test]
    fn nothing_is_hidden_without_show_more() {
        assert_eq!(first("short"), ("short", ""));
        let lines = (1..=100).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        let (shown, hidden) = first(&lines);
        assert_eq!((shown.lines().count(), format!("{shown}{hidden}")), (40, lines.clone()));
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
