//! Separates the words of a person from the text that Claude Code adds.

/// Claude Code's own text, from the opening to the closing tag.
const TAGS: [&str; 9] = [
    "system-reminder",
    "local-command-caveat",
    "local-command-stdout",
    "local-command-stderr",
    "command-name",
    "command-message",
    "command-args",
    "command-contents",
    "task-notification",
];
/// Claude Code's own text without tags: it is not from a person but asks for an action.
const CONTINUATION_PREFIXES: [&str; 3] =
    [CONTINUED, "[Request interrupted by user", "Continue from where you left off."];
pub(super) const CONTINUED: &str = "This session is being continued from a previous conversation";

/// The text without Claude Code's additions; `None` if nothing remains.
pub(super) fn strip_injected_text(text: &str) -> Option<String> {
    let text = without_tags(text);
    (!text.is_empty() && !begins_as_wish(&text)).then_some(text)
}

pub(super) fn is_continuation(text: &str) -> bool {
    begins_as_wish(&without_tags(text))
}

fn begins_as_wish(text: &str) -> bool {
    CONTINUATION_PREFIXES.iter().any(|words| text.starts_with(words))
}

fn without_tags(text: &str) -> String {
    let mut text = text.to_owned();
    for tag in TAGS {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        while let Some(start) = text.find(&open) {
            let end = text[start..].find(&close).map_or(text.len(), |end| start + end + close.len());
            text.replace_range(start..end, "");
        }
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_person_wrote_remains() {
        let said = |text| strip_injected_text(text);
        assert_eq!(said("<system-reminder>a</system-reminder>\nhello"), Some("hello".into()));
        assert_eq!(said("hello <b>there</b>"), Some("hello <b>there</b>".into()));
        for text in
            ["<command-name>/x</command-name>\n<command-args></command-args>", "<system-reminder>open", " "]
        {
            assert_eq!(said(text), None, "{text}");
        }
        assert_eq!(said("Continue from where you left off."), None);
        assert!(is_continuation("Continue from where you left off.") && !is_continuation("hello"));
    }
}
