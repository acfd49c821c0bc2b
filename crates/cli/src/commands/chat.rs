//! `ash chat`: an interactive conversation with an agent.

use super::{permission, push_pull, sessions, show};
use crate::{
    api::{ApiClient, CliError, Result},
    args::ChatArgs,
    session_stream::SessionStream,
    settings::home,
    terminal::{TerminalStyle, paint_err},
};
use rustyline::{
    Completer, Config, Editor, Helper, Highlighter, Hinter,
    error::ReadlineError,
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};
use serde_json::json;
use std::io::{IsTerminal, Read};

pub(crate) async fn run(chat: ChatArgs) -> Result<u8> {
    let api = ApiClient::new(&chat.settings);
    let dir = chat.dir.as_deref().map(push_pull::canonical_folder).transpose()?;
    let (id, agent) = session(&api, &chat).await?;
    if let Some(dir) = &dir {
        push_pull::push(&api, &id, dir, push_pull::FileSelection::of(chat.all)).await?;
    }
    let message = match &chat.message {
        Some(message) => Some(message.clone()),
        None => read_piped_stdin()?,
    };
    let code = match message {
        Some(message) => one_shot(&api, (&id, &agent), &message, chat.settings.json).await?,
        None => run_interactive(&api, &id, &agent).await?,
    };
    if chat.end {
        api.delete(&sessions::path(&id, "")).await?;
    } else if !chat.settings.json {
        eprintln!(
            "{} ash chat --resume {}",
            paint_err(TerminalStyle::Dim, "Come back:"),
            api.short_id(&id).await
        );
    }
    Ok(code)
}

/// The id of the session and its agent. A resumed session already has an agent.
async fn session(api: &ApiClient, chat: &ChatArgs) -> Result<(String, String)> {
    match (&chat.resume, &chat.session_id) {
        (Some(id), _) | (None, Some(id)) => {
            let id = if id.is_empty() { api.last_session().await? } else { api.session_id(id).await? };
            let found = api.get(&sessions::path(&id, "")).await?;
            let agent = found["session"]["agentName"].as_str().unwrap_or_default();
            if let Some(other) = chat.agent.as_deref().filter(|other| *other != agent) {
                return Err(not_its_agent(&id, agent, other));
            }
            let answer = sessions::resume_with_progress(api, &id, &json!({})).await?;
            show::receipt(&answer["resume"]);
            Ok((id, agent.to_owned()))
        }
        (None, None) => {
            let agent = chat.agent.as_deref().unwrap_or("default");
            let made = sessions::create(api, agent, json!({})).await?;
            Ok((made["session"]["id"].as_str().unwrap_or_default().to_owned(), agent.to_owned()))
        }
    }
}

/// An unexpected second word is most likely a message, because the agent is the first argument.
fn not_its_agent(id: &str, agent: &str, other: &str) -> CliError {
    CliError::invalid(format!(
        "session {id} is one of agent \"{agent}\", and not of \"{other}\". To say something in it: ash chat --resume {id} {agent} \"message\""
    ))
}

/// A message from a pipe instead of the keyboard.
fn read_piped_stdin() -> Result<Option<String>> {
    if std::io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(CliError::from_io("cannot read the message"))?;
    if text.trim().is_empty() {
        return Err(CliError::invalid(
            "there is no terminal to talk on; give a message: ash chat AGENT \"message\"",
        ));
    }
    Ok(Some(text.trim_end().to_owned()))
}

async fn one_shot(api: &ApiClient, (id, agent): (&str, &str), message: &str, as_json: bool) -> Result<u8> {
    if as_json {
        let request = api
            .request(reqwest::Method::POST, &sessions::path(id, "/messages"))
            .header("accept", "application/json");
        let sent = api.send(request.json(&json!({ "content": message })));
        let mut answer: serde_json::Value =
            permission::announce_while_waiting(api, id, sent).await?.json().await.unwrap_or_default();
        answer["sessionId"] = json!(id);
        crate::terminal::json(&answer);
        return sessions::exit_code(api, id, &answer).await;
    }
    eprintln!("Session: {id}\nAgent: {agent}");
    show::turn(SessionStream::send(api, id, json!({ "content": message })).await?, api, id).await
}

async fn run_interactive(api: &ApiClient, id: &str, agent: &str) -> Result<u8> {
    eprintln!("{}", paint_err(TerminalStyle::Bold, &format!("Talking to {agent}.")));
    eprintln!(
        "{}",
        paint_err(
            TerminalStyle::Dim,
            "A line that ends with \\ continues; Ctrl-C interrupts, Ctrl-D exits. The session is kept."
        )
    );
    let mut editor = editor()?;
    loop {
        let read = tokio::task::spawn_blocking(move || (editor.readline("› "), editor)).await;
        let (line, back) = read.map_err(|_| CliError::invalid("the terminal is closed"))?;
        editor = back;
        match line {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) if matches!(line.trim(), "/quit" | "/exit") => return Ok(0),
            Ok(line) => {
                editor.add_history_entry(&line).ok();
                save(&mut editor);
                let message = line.replace("\\\n", "\n");
                show::turn(SessionStream::send(api, id, json!({ "content": message })).await?, api, id)
                    .await?;
                eprintln!();
            }
            Err(ReadlineError::Interrupted) => {
                eprintln!("{}", paint_err(TerminalStyle::Dim, "(Ctrl-D or /quit exits)"));
            }
            Err(ReadlineError::Eof) => return Ok(0),
            Err(error) => return Err(CliError::invalid(format!("the keyboard cannot be read: {error}"))),
        }
    }
}

#[derive(Completer, Helper, Highlighter, Hinter)]
struct ChatLineValidator;

impl Validator for ChatLineValidator {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        let goes_on = context.input().ends_with('\\');
        Ok(if goes_on { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

type ChatLineEditor = Editor<ChatLineValidator, FileHistory>;

fn editor() -> Result<ChatLineEditor> {
    let config =
        Config::builder().auto_add_history(false).max_history_size(1000).map(|builder| builder.build());
    let config = config.map_err(|error| CliError::invalid(error.to_string()))?;
    let mut editor =
        Editor::with_config(config).map_err(|error| CliError::invalid(format!("no terminal: {error}")))?;
    editor.set_helper(Some(ChatLineValidator));
    if let Some(path) = history() {
        // The history file does not exist on the first run.
        editor.load_history(&path).ok();
    }
    Ok(editor)
}

fn save(editor: &mut ChatLineEditor) {
    if let Some(path) = history() {
        editor.save_history(&path).ok();
    }
}

fn history() -> Option<std::path::PathBuf> {
    let dir = home()?.join(".ash");
    std::fs::create_dir_all(&dir).ok()?;
    Some(dir.join("chat-history"))
}
