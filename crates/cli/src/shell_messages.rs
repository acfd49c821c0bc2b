//! Rewrites server messages for the command line: commands and flags instead of routes, headers and parameters.

/// `*` matches any word, which the replacement repeats.
const PHRASES: [(&str, &str); 18] = [
    ("send its token as `X-Ash-Lock`", "give its token with --lock or ASH_LOCK"),
    (
        "Send the token of the lock that is to be given up as X-Ash-Lock",
        "Give the lock's token with --lock or ASH_LOCK",
    ),
    ("leave out `X-Ash-Lock`", "leave out --lock and ASH_LOCK"),
    (
        "X-Ash-Lock must be a token as POST …/lock answers it",
        "--lock (or ASH_LOCK) takes a token as `ash session lock ID` prints it",
    ),
    ("POST …/lock {\"takeover\": true}", "`ash session lock ID --takeover`"),
    ("POST …/lock", "`ash session lock ID`"),
    // The client has already waited when it prints this.
    ("wait in line with the header `Prefer: wait=60`, ", ""),
    ("PATCH …/config or POST …/resume {\"*\": …}", "`ash session config ID -o *=…`"),
    (
        "raise limits.* with PATCH …/config",
        "raise limits.* with `ash session config ID -o 'limits={\"*\": …}'`",
    ),
    ("PATCH …/config", "`ash session config ID -o NAME=VALUE`"),
    ("DELETE …/files/PATH", "`ash session exec ID \"rm PATH\"`"),
    ("with onBusy \"queue\"", "with --on-busy queue"),
    ("GET /api/sessions/*/logs", "`ash session logs *`"),
    ("(POST /api/sessions/*/files with the path ", "(`ash session push * DIR`, of a DIR with "),
    ("Missing Authorization header", "The server wants a key"),
    ("Invalid Authorization header format", "The server takes no such key"),
    ("updatedPermissions must be some of", "--always takes some of"),
    ("updatedInput, answers and updatedPermissions go", "--answer and --always go"),
];

/// Parameters of the API that are flags here. Matched at the beginning of a message.
const PARAMETERS: [(&str, &str); 9] = [
    ("olderThan", "--older-than"),
    ("newerThan", "--newer-than"),
    ("idPrefix", "--id-prefix"),
    ("limit", "--limit"),
    ("ttl", "--ttl"),
    ("holder", "--holder"),
    ("owner", "--owner"),
    ("agent", "--agent"),
    ("timeout", "--timeout"),
];

pub(crate) fn of_shell(said: &str) -> String {
    let flag = PARAMETERS.iter().find_map(|(name, flag)| {
        let rest = said.strip_prefix(name)?;
        let is_about_it = [" is not", " must", " has "].iter().any(|verb| rest.starts_with(verb));
        is_about_it.then(|| format!("{flag}{rest}"))
    });
    let said = flag.unwrap_or_else(|| said.to_owned());
    PHRASES.iter().fold(said, |said, (api, shell)| replaced(&said, api, shell))
}

fn replaced(said: &str, api: &str, shell: &str) -> String {
    let Some((before, after)) = api.split_once('*') else { return said.replace(api, shell) };
    let Some((head, rest)) = said.split_once(before) else { return said.to_owned() };
    let end = rest.find(|c: char| !(c.is_alphanumeric() || "-_.".contains(c))).unwrap_or(rest.len());
    let (word, tail) = rest.split_at(end);
    match tail.strip_prefix(after) {
        Some(tail) => format!("{head}{}{}", shell.replace('*', word), replaced(tail, api, shell)),
        None => format!("{head}{before}{}", replaced(rest, api, shell)),
    }
}

#[cfg(test)]
mod tests {
    use super::of_shell;
    use std::{fs, path::Path};

    #[test]
    fn commands_and_flags_take_the_place_of_routes_and_headers() {
        for (said, shell) in [
            (
                "The session is locked by \"x\" until 12: send its token as `X-Ash-Lock`, wait, or take the lock over with POST …/lock {\"takeover\": true}",
                "The session is locked by \"x\" until 12: give its token with --lock or ASH_LOCK, wait, or take the lock over with `ash session lock ID --takeover`",
            ),
            (
                "maxTokens is 5, and 6 were used. Raise it with PATCH …/config or POST …/resume {\"maxTokens\": …}, and the session goes on",
                "maxTokens is 5, and 6 were used. Raise it with `ash session config ID -o maxTokens=…`, and the session goes on",
            ),
            (
                "Remove some with DELETE …/files/PATH, or raise limits.diskMb with PATCH …/config, and send a message to go on",
                "Remove some with `ash session exec ID \"rm PATH\"`, or raise limits.diskMb with `ash session config ID -o 'limits={\"diskMb\": …}'`, and send a message to go on",
            ),
            (
                "All that it printed: GET /api/sessions/my-id.2/logs. Mend it in the session's workspace (POST /api/sessions/my-id.2/files with the path install.sh) and resume",
                "All that it printed: `ash session logs my-id.2`. Mend it in the session's workspace (`ash session push my-id.2 DIR`, of a DIR with install.sh) and resume",
            ),
            ("limit is not valid (1 to 1000)", "--limit is not valid (1 to 1000)"),
            ("limits of the machine", "limits of the machine"),
        ] {
            assert_eq!(of_shell(said), shell);
        }
    }

    /// Checks every sentence in the sources of the server that may become an answer.
    #[test]
    fn no_sentence_of_the_server_names_routes_or_headers_in_a_shell() {
        let mut seen = 0;
        for name in ["server", "session", "model", "store"] {
            let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
            for sentence in sentences(&sources) {
                let said = of_shell(&sentence);
                seen += usize::from(said != sentence);
                let found = NAMES.iter().find(|name| said.contains(**name));
                assert!(found.is_none(), "{name}: {said:?} names {found:?}: add its words to PHRASES");
            }
        }
        assert!(seen > 10, "only {seen} sentences were found that are said otherwise");
    }

    const NAMES: [&str; 9] =
        ["X-Ash", "Prefer:", "Authorization", "the header", "POST ", "PATCH ", "DELETE ", "GET ", "PUT "];
    /// Sentences about requests that this client never makes.
    const OF_OTHERS: [&str; 4] =
        ["Idempotency-Key", "Prefer: wait= takes", "DELETE FROM", "POST /api/sessions/{id}/"];

    fn sentences(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).expect("sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                // The document is about routes and headers, for readers of HTTP.
                let is_about_http = ["openapi", "wire", "tests"].iter().any(|name| path.ends_with(name));
                found.extend(if is_about_http { Vec::new() } else { sentences(&path) });
            } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).expect("a source");
                let code = text.split("#[cfg(test)]").next().unwrap_or_default().lines();
                // Log lines and documentation never reach a client.
                let code = code.filter(|line| {
                    !["//", "#[arg", "tracing"].iter().any(|word| line.trim_start().starts_with(word))
                });
                found.extend(code.flat_map(literals).filter(|text| is_sentence(text)));
            }
        }
        found
    }

    fn is_sentence(text: &str) -> bool {
        text.split_whitespace().count() > 3 && !OF_OTHERS.iter().any(|other| text.contains(other))
    }

    /// The string literals in one line of source.
    fn literals(line: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut rest = line;
        while let Some((_, after)) = rest.split_once('"') {
            let (mut text, mut escaped, mut end) = (String::new(), false, after.len());
            for (at, c) in after.char_indices() {
                match c {
                    '"' if !escaped => {
                        end = at;
                        break;
                    }
                    '\\' if !escaped => escaped = true,
                    c => {
                        text.push(c);
                        escaped = false;
                    }
                }
            }
            // As `format!` prints them.
            found.push(
                text.replace("{{", "{").replace("}}", "}").replace("{id}", "ID").replace("{name}", "NAME"),
            );
            rest = after.get(end + 1..).unwrap_or_default();
        }
        found
    }
}
