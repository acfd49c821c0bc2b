//! Tool names. Agents and models choose them, and people read them in streams, lists and permission requests.

/// The longest name that model services accept.
const MAX_TOOL_NAME: usize = 128;

/// `[A-Za-z0-9_-]{1,128}`, as model services require. Drops all other characters, because line feeds or escape sequences
/// could mislead a reader. `None`: nothing is left.
pub fn tool_name(given: &str) -> Option<String> {
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name: String = given.chars().filter(plain).take(MAX_TOOL_NAME).collect();
    Some(name).filter(|name| !name.is_empty())
}

/// The same, with a placeholder if nothing is left, because a call is always shown.
pub fn shown_tool_name(given: &str) -> String {
    tool_name(given).unwrap_or_else(|| "unnamed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tools_name_is_letters_digits_dashes_and_underscores() {
        assert_eq!(tool_name("mcp__git-hub__list_9").as_deref(), Some("mcp__git-hub__list_9"));
        assert_eq!(tool_name("Read\n\u{202e}\x1b[2J(ok)").as_deref(), Some("Read2Jok"));
        assert_eq!(tool_name("a.b/c:d e\u{e9}").as_deref(), Some("abcde"));
        assert_eq!(tool_name(&"x".repeat(500)), Some("x".repeat(128)));
        assert_eq!((tool_name("\u{202e}"), tool_name("")), (None, None));
        assert_eq!([shown_tool_name("Read\n"), shown_tool_name("\n")], ["Read", "unnamed"]);
    }
}
