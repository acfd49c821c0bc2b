//! Permission requests and questions of agents: show them, and send the answers.

mod call_details;

use super::sessions::path;
use crate::{
    api::{ApiClient, CliError, Result, percent_encode},
    terminal::{self, TerminalStyle, paint, paint_err},
};
use call_details::{Before, choices, details, first, rule};
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeSet, VecDeque},
    fs::File,
    io::{IsTerminal, Read, Write},
    os::fd::AsFd,
    time::Duration,
};
use tokio::io::{Interest, unix::AsyncFd};

/// A file that a call replaces is compared with the new content up to this size.
const MAX_COMPARED_BYTES: u64 = 1 << 20;
const UNREAD: &str = "what it replaces, if anything, cannot be read";
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn list(api: &ApiClient, id: &str, as_json: bool) -> Result<u8> {
    let id = api.session_id(id).await?;
    let answer = api.get(&path(&id, "/permissions")).await?;
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    let found = entries(&answer);
    if found.is_empty() {
        eprintln!("no permission request or question is open");
        return Ok(0);
    }
    for asked in found {
        let text = |name: &str| asked[name].as_str().unwrap_or_default();
        println!(
            "{}  {}  {}",
            paint(TerminalStyle::Bold, text("id")),
            paint(TerminalStyle::Cyan, text("tool")),
            paint(TerminalStyle::Dim, &format!("until {}", text("expiresAt")))
        );
        println!("{}", full_description(asked, &current_file_content(api, &id, asked).await).trim_end());
        for (n, suggestion) in (1..).zip(suggestions(asked)) {
            println!("  --always {n}  {}", rule(suggestion));
        }
    }
    Ok(0)
}

/// The whole call or question.
fn full_description(asked: &Value, before: &Before) -> String {
    match asked["question"] == true && !questions(asked).is_empty() {
        true => choices(asked),
        false => details(asked["tool"].as_str().unwrap_or_default(), &asked["input"], before),
    }
}

fn suggestions(asked: &Value) -> &[Value] {
    asked["suggestions"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// `answers`: QUESTION=CHOICE each, or only the choice if there is one question.
pub(crate) async fn allow(
    api: &ApiClient,
    (id, permission): (&str, &str),
    (answers, always): (&[String], Option<usize>),
    as_json: bool,
) -> Result<u8> {
    let id = api.session_id(id).await?;
    let mut body = json!({ "behavior": "allow" });
    if !answers.is_empty() || always.is_some() {
        let pending = api.get(&path(&id, "/permissions")).await?;
        let asked = entries(&pending).iter().find(|asked| asked["id"] == permission);
        if let (Some(number), Some(asked)) = (always, asked) {
            let chosen = number.checked_sub(1).and_then(|n| suggestions(asked).get(n));
            let chosen = chosen.ok_or_else(|| {
                let there = suggestions(asked).len();
                CliError::invalid(format!(
                    "--always {number}: its agent suggests {there} rules; `ash session permissions` lists them"
                ))
            })?;
            body["updatedPermissions"] = json!([chosen]);
        }
        // The server reports what happened to a request that is no longer open.
        if let (false, Some(asked)) = (answers.is_empty(), asked) {
            body["answers"] = Value::Object(chosen(&questions(asked), answers)?);
        }
    }
    send_verdict(api, (&id, permission), &body, as_json).await
}

pub(crate) async fn deny(
    api: &ApiClient,
    (id, permission): (&str, &str),
    message: Option<&str>,
    as_json: bool,
) -> Result<u8> {
    let id = api.session_id(id).await?;
    send_verdict(api, (&id, permission), &json!({ "behavior": "deny", "message": message }), as_json).await
}

async fn send_verdict(
    api: &ApiClient,
    (id, permission): (&str, &str),
    body: &Value,
    as_json: bool,
) -> Result<u8> {
    let told = api.post(&path(id, &format!("/permissions/{}", percent_encode(permission))), body).await;
    let answer = api.unless_ended(id, told).await?;
    if as_json {
        terminal::json(&answer);
    } else {
        eprintln!("{}", if answer["behavior"] == "allow" { "allowed" } else { "denied" });
    }
    Ok(0)
}

fn entries(answer: &Value) -> &[Value] {
    answer["permissions"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn questions(asked: &Value) -> Vec<&str> {
    let all = asked["input"]["questions"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter_map(|question| question["question"].as_str()).collect()
}

fn chosen(questions: &[&str], given: &[String]) -> Result<Map<String, Value>> {
    let mut answers = Map::new();
    for answer in given {
        let named = questions.iter().find_map(|question| {
            let choice = answer.strip_prefix(question)?.strip_prefix('=')?;
            Some((*question, choice))
        });
        let (question, choice) = match (named, questions) {
            (Some(named), _) => named,
            (None, [only]) => (*only, answer.as_str()),
            (None, _) => {
                return Err(CliError::invalid(format!(
                    "\"{answer}\" names no question; write it as QUESTION=CHOICE with one of: {}",
                    questions.join(" | ")
                )));
            }
        };
        answers.insert(question.to_owned(), json!(choice));
    }
    Ok(answers)
}

/// A call in one line, or the question.
pub(crate) fn summary(asked: &Value) -> String {
    let questions = questions(asked);
    if asked["question"] == true && !questions.is_empty() {
        return questions.join(" / ");
    }
    let input = &asked["input"];
    let first = input.as_object().and_then(|input| input.values().find_map(Value::as_str));
    first.map_or_else(|| input.to_string(), str::to_owned)
}

/// Waits for `answer`. Meanwhile it announces open requests on stderr, one line of JSON each.
pub(crate) async fn announce_while_waiting<T>(
    api: &ApiClient,
    id: &str,
    answer: impl Future<Output = T>,
) -> T {
    let mut answer = std::pin::pin!(answer);
    let mut seen = BTreeSet::new();
    loop {
        tokio::select! {
            answer = &mut answer => return answer,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        // A failed request is repeated at the next interval.
        let pending = api.get(&path(id, "/permissions")).await.unwrap_or_default();
        for asked in entries(&pending) {
            if seen.insert(asked["id"].to_string()) {
                let line = json!({ "event": "permission_request", "data": asked });
                eprintln!("{}", terminal::escaped(&line.to_string()));
            }
        }
    }
}

/// Asks the user at the terminal, if there is one, about one request at a time.
pub(crate) struct PermissionPrompter {
    api: ApiClient,
    session: String,
    waiting: VecDeque<Value>,
    asking: Option<(Value, BoxFuture<'static, std::io::Result<Option<Value>>>)>,
}

/// The result of a request.
pub(crate) enum PermissionPromptResult {
    /// The request body with the decision.
    Answer { id: String, body: Value },
    /// No user is at the terminal, or the user leaves the request open.
    Unanswered { asked: Value },
}

impl PermissionPrompter {
    pub(crate) fn new(api: &ApiClient, session: &str) -> PermissionPrompter {
        PermissionPrompter {
            api: api.clone(),
            session: session.to_owned(),
            waiting: VecDeque::new(),
            asking: None,
        }
    }

    pub(crate) fn enqueue(&mut self, asked: Value) {
        self.waiting.push_back(asked);
    }

    /// Removes a request that another client has answered or that is no longer open. True: its prompt was on the
    /// screen.
    pub(crate) fn cancel(&mut self, id: &Value) -> bool {
        self.waiting.retain(|asked| asked["id"] != *id);
        self.asking.take_if(|(asked, _)| asked["id"] == *id).is_some()
    }

    /// Pending while there is no request. The caller may drop the future without losing a request.
    pub(crate) async fn next_decision(&mut self) -> PermissionPromptResult {
        if self.asking.is_none() {
            let Some(asked) = self.waiting.pop_front() else { return std::future::pending().await };
            if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
                return PermissionPromptResult::Unanswered { asked };
            }
            let (question, api, session) = (asked.clone(), self.api.reconnected(), self.session.clone());
            let asking = async move {
                let before = current_file_content(&api, &session, &question).await;
                ask(&question, &before).await
            };
            self.asking = Some((asked, Box::pin(asking)));
        }
        let Some((_, asking)) = &mut self.asking else { return std::future::pending().await };
        let said = asking.await;
        let Some((asked, _)) = self.asking.take() else { return std::future::pending().await };
        match said {
            Ok(Some(body)) => PermissionPromptResult::Answer {
                id: asked["id"].as_str().unwrap_or_default().to_owned(),
                body,
            },
            Ok(None) | Err(_) => PermissionPromptResult::Unanswered { asked },
        }
    }
}

/// The whole request, for output without a terminal.
pub(super) async fn described(api: &ApiClient, session: &str, asked: &Value) -> String {
    full_description(asked, &current_file_content(api, session, asked).await)
}

/// The current content of the file that a call replaces.
async fn current_file_content(api: &ApiClient, session: &str, asked: &Value) -> Before {
    let Some(file) = asked["input"]["file_path"].as_str().filter(|_| asked["tool"] == "Write") else {
        return Before::Nothing;
    };
    let Some(name) = name_in_workspace(file) else {
        return Before::Unknown("outside the workspace: what it replaces, if anything, cannot be shown");
    };
    let name: Vec<String> = name.into_iter().map(percent_encode).collect();
    let request = api.request(reqwest::Method::GET, &path(session, &format!("/files/{}", name.join("/"))));
    match api.send(request).await {
        Ok(found) if found.content_length().is_some_and(|size| size <= MAX_COMPARED_BYTES) => {
            found.text().await.map_or(Before::Unknown(UNREAD), Before::Text)
        }
        Ok(_) => Before::Unknown("it replaces a file that is too large to be compared"),
        Err(failure) if failure.kind == ash_model::FailureKind::NotFound => Before::Nothing,
        Err(_) => Before::Unknown(UNREAD),
    }
}

/// The segments of a path in the workspace; `None`: the path may lie elsewhere. The agent chose the path, and a server
/// would resolve `..` in a URL. What `..` means in a path also depends on links, so it is not resolved here.
fn name_in_workspace(file: &str) -> Option<Vec<&str>> {
    let mut names = file.split('/').filter(|name| !name.is_empty() && *name != ".").peekable();
    if file.starts_with('/') {
        names.next_if_eq(&"workspace")?;
    }
    let names: Vec<&str> = names.collect();
    (!names.is_empty() && !names.contains(&"..")).then_some(names)
}

/// The answer in the form of the API; `None`: stdin is closed.
async fn ask(asked: &Value, before: &Before) -> std::io::Result<Option<Value>> {
    if asked["question"] == true {
        return ask_questions(asked).await;
    }
    let tool = asked["tool"].as_str().unwrap_or("a tool");
    let all = full_description(asked, before);
    let (mut shown, mut hidden) = first(&all);
    eprintln!("{}", paint_err(TerminalStyle::Yellow, &format!("? {tool}")));
    loop {
        eprintln!("{shown}");
        for (n, suggestion) in (1..).zip(suggestions(asked)) {
            eprintln!("  a{n}. always: {}", rule(suggestion));
        }
        let more = match hidden.lines().count() {
            0 => String::new(),
            lines => format!(", m: show more ({})", terminal::plural(lines as u64, "line")),
        };
        let always = if suggestions(asked).is_empty() { "" } else { ", a1: allow always" };
        let Some(said) = prompt(&format!("allow? [y/N{more}{always}, or why not] ")).await? else {
            return Ok(None);
        };
        if said.eq_ignore_ascii_case("m") && !hidden.is_empty() {
            (shown, hidden) = first(hidden);
            continue;
        }
        return Ok(Some(parse_verdict(&said, suggestions(asked))));
    }
}

fn parse_verdict(said: &str, suggestions: &[Value]) -> Value {
    let always = said.to_lowercase().strip_prefix('a').and_then(|number| match number {
        "" => suggestions.first(),
        number => number.parse::<usize>().ok()?.checked_sub(1).and_then(|n| suggestions.get(n)),
    });
    match (said.to_lowercase().as_str(), always) {
        (_, Some(rule)) => json!({ "behavior": "allow", "updatedPermissions": [rule] }),
        ("y" | "yes", _) => json!({ "behavior": "allow" }),
        ("" | "n" | "no", _) => json!({ "behavior": "deny" }),
        (_, None) => json!({ "behavior": "deny", "message": said }),
    }
}

async fn ask_questions(asked: &Value) -> std::io::Result<Option<Value>> {
    let mut answers = Map::new();
    for question in asked["input"]["questions"].as_array().into_iter().flatten() {
        let words = question["question"].as_str().unwrap_or_default();
        let labels: Vec<&str> = question["options"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|choice| choice["label"].as_str().unwrap_or_default())
            .collect();
        let only = json!({ "input": { "questions": [question] } });
        eprintln!("{} {}", paint_err(TerminalStyle::Yellow, "?"), choices(&only));
        let several = if question["multiSelect"] == true { "s, with commas between" } else { "" };
        let Some(said) = prompt(&format!("number{several}, or your own words: ")).await? else {
            return Ok(None);
        };
        if said.is_empty() {
            return Ok(Some(json!({ "behavior": "deny", "message": "The user did not want to answer." })));
        }
        answers.insert(words.to_owned(), json!(choice(&labels, &said)));
    }
    Ok(Some(json!({ "behavior": "allow", "answers": answers })))
}

/// A number selects a choice; any other text is the answer itself.
fn choice(choices: &[&str], said: &str) -> String {
    let number = |word: &str| word.trim().parse::<usize>().ok()?.checked_sub(1);
    let picked: Option<Vec<&str>> = said.split(',').map(|word| choices.get(number(word)?).copied()).collect();
    picked.map_or_else(|| said.to_owned(), |picked| picked.join(", "))
}

/// Reads one line from the terminal. It does not use std's buffer: a cancelled prompt must not consume a line.
async fn prompt(words: &str) -> std::io::Result<Option<String>> {
    eprint!("{}", paint_err(TerminalStyle::Bold, words));
    std::io::stderr().flush()?;
    let keyboard = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    // SAFETY: a file has the same descriptor, and keeps it open, as long as it lives.
    let keyboard = unsafe { AsyncFd::register_with_interest(keyboard, Interest::READABLE) }?;
    keyboard.readable().await?.retain_ready();
    let mut line = vec![0; 4096];
    let read = keyboard.get_ref().read(&mut line)?;
    line.truncate(read);
    Ok((read > 0).then(|| String::from_utf8_lossy(&line).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_for_choices_and_words_for_themselves() {
        let choices = ["red", "blue"];
        for (said, meant) in
            [("2", "blue"), ("1, 2", "red, blue"), ("3", "3"), ("0", "0"), ("green", "green")]
        {
            assert_eq!(choice(&choices, said), meant);
        }
    }

    #[test]
    fn only_a_path_that_stays_in_the_workspace_names_a_file_of_it() {
        for (file, expected) in [
            ("/workspace/a", Some(vec!["a"])),
            ("/workspace//a/./b", Some(vec!["a", "b"])),
            ("//workspace/a", Some(vec!["a"])),
            ("./a b/c", Some(vec!["a b", "c"])),
            ("...", Some(vec!["..."])),
            ("/workspace/../home/agent/.bashrc", None),
            ("/workspace/../../../api-keys", None),
            ("/workspace/a/../b", None),
            ("../../api-keys", None),
            ("..", None),
            ("/workspaces/a", None),
            ("/etc/passwd", None),
            ("/workspace/", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(name_in_workspace(file), expected, "{file}");
        }
    }

    #[tokio::test]
    async fn no_path_outside_the_workspace_is_requested_or_called_new() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let api = ApiClient::new(&crate::settings::ClientSettings::without_key(url));
        for file in ["/workspace/../home/agent/x", "/workspace/../../../api-keys", "../x", "/etc/passwd"] {
            let asked = json!({ "tool": "Write", "input": { "file_path": file, "content": "x" } });
            let shown = described(&api, "s", &asked).await;
            assert!(shown.starts_with(&format!("{file} (outside the workspace")), "{shown}");
        }
        listener.set_nonblocking(true).expect("set");
        assert!(listener.accept().is_err(), "a request was made");
    }

    #[test]
    fn only_a_yes_gives_permission() {
        assert_eq!(parse_verdict("Yes", &[]), json!({"behavior": "allow"}));
        for no in ["", "n", "NO"] {
            assert_eq!(parse_verdict(no, &[]), json!({"behavior": "deny"}));
        }
        assert_eq!(parse_verdict("use tabs", &[]), json!({"behavior": "deny", "message": "use tabs"}));
    }

    #[test]
    fn always_takes_one_of_the_agents_own_suggestions() {
        let rules = [json!({"type": "addRules"}), json!({"type": "setMode"})];
        for (said, rule) in [("a", &rules[0]), ("A1", &rules[0]), ("a2", &rules[1])] {
            assert_eq!(
                parse_verdict(said, &rules),
                json!({"behavior": "allow", "updatedPermissions": [rule]})
            );
        }
        for no in ["a3", "a0", "always"] {
            assert_eq!(parse_verdict(no, &rules)["behavior"], "deny", "{no}");
        }
        assert_eq!(parse_verdict("a", &[])["behavior"], "deny");
    }

    #[test]
    fn a_choice_names_its_question_unless_there_is_only_one() {
        let one = chosen(&["Which = best?"], &["A=B".to_owned()]).expect("answers");
        assert_eq!(Value::Object(one), json!({"Which = best?": "A=B"}));
        let two = chosen(&["A?", "B?"], &["B?=x".to_owned(), "A?=y".to_owned()]).expect("answers");
        assert_eq!(Value::Object(two), json!({"A?": "y", "B?": "x"}));
        assert!(chosen(&["A?", "B?"], &["x".to_owned()]).is_err());
        assert!(chosen(&[], &["x".to_owned()]).is_err());
    }
}
