//! `ash session`: create, send, list, and all other commands on sessions.

use super::{
    artifacts, checkpoints, client_tools, environment, parse_key_values, permission, prune_and_audit,
    push_pull, queue_and_lock, show,
};
use crate::{
    api::{ApiClient, CliError, Result, percent_encode},
    args::{ListSessionsArgs, SessionCommand, SessionOptionArgs},
    session_stream::{SessionStream, SessionStreamItem},
    terminal::{self, TerminalStyle, TextTable, paint},
};
use ash_model::FailureKind;
use reqwest::Method;
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

pub(crate) async fn run(api: &ApiClient, command: SessionCommand, as_json: bool) -> Result<u8> {
    match command {
        SessionCommand::Create {
            agent,
            id,
            workspace,
            model,
            owner,
            metadata,
            ttl,
            permission_mode,
            options: more,
            env,
            dir,
            all,
        } => {
            let dir = dir.map(|dir| push_pull::canonical_folder(&dir)).transpose()?;
            let mut options = json!({
                "sessionId": id, "workspace": workspace, "model": model, "permissionMode": permission_mode,
                "extraEnv": environment(&env)?.into_iter().collect::<BTreeMap<_, _>>(),
                "owner": owner, "metadata": map(&metadata)?, "ttl": ttl.map(|ttl| ttl.as_secs()),
            });
            for (name, value) in option_values(&more)? {
                options[name] = value;
            }
            let made = create(api, &agent, options).await?;
            let id = made["session"]["id"].as_str().unwrap_or_default().to_owned();
            name_ignored(&made["session"]);
            // Printed before the folder is copied: the session exists even if the copy fails.
            if as_json {
                terminal::json(&made)
            } else {
                println!("{id}")
            }
            match dir {
                Some(dir) => {
                    Ok(push_pull::push(api, &id, &dir, push_pull::FileSelection::of(all)).await?.exit_code())
                }
                None => Ok(0),
            }
        }
        SessionCommand::Send { id, message, on_busy, raw } => {
            let body = json!({ "content": message, "onBusy": on_busy });
            send(api, &id, body, (raw, as_json)).await
        }
        SessionCommand::Queue { id, first, cancel } => {
            queue_and_lock::queue(api, &id, (&first, &cancel), as_json).await
        }
        SessionCommand::Lock { id, ttl, holder, takeover } => {
            queue_and_lock::lock(api, &id, (ttl, holder, takeover), as_json).await
        }
        SessionCommand::Unlock { id } => queue_and_lock::unlock(api, &id, as_json).await,
        SessionCommand::Config { id, options } => {
            let id = api.session_id(&id).await?;
            let answer = api.patch(&path(&id, "/config"), &Value::Object(option_values(&options)?)).await?;
            name_ignored(&answer["session"]);
            terminal::json(if as_json { &answer } else { &answer["session"]["config"] });
            Ok(0)
        }
        SessionCommand::List(listing) => list(api, listing, as_json).await,
        SessionCommand::Prune(prune) => prune_and_audit::prune(api, prune, as_json).await,
        SessionCommand::Label { id, metadata } => {
            let id = api.session_id(&id).await?;
            let answer = api.patch(&path(&id, ""), &json!({ "metadata": map(&metadata)? })).await?;
            if as_json {
                terminal::json(&answer)
            }
            Ok(0)
        }
        SessionCommand::Get { id } => {
            let id = api.session_id(&id).await?;
            let answer = api.get(&path(&id, "")).await?;
            if as_json {
                terminal::json(&answer)
            } else {
                show::session(&answer["session"])
            }
            Ok(0)
        }
        SessionCommand::Pause { id } => post_action(api, &id, "pause", as_json).await,
        SessionCommand::Stop { id } => post_action(api, &id, "stop", as_json).await,
        SessionCommand::Resume { id, options, detach } => {
            let options = Value::Object(option_values(&options)?);
            resume(api, &id, &options, (detach, as_json)).await
        }
        SessionCommand::End { id, purge } => {
            let id = api.session_id(&id).await?;
            let answer = api.delete(&path(&id, if purge { "?purge=true" } else { "" })).await?;
            if as_json {
                terminal::json(&answer)
            } else if purge {
                eprintln!("{} is in the trash, and will be gone for good", short(&id))
            } else {
                eprintln!("{} ended; its last checkpoint stays", short(&id))
            }
            Ok(0)
        }
        SessionCommand::Fork { id, new, checkpoint, same_workspace } => {
            let id = api.session_id(&id).await?;
            let mut body = json!({ "sessionId": new, "checkpoint": checkpoint });
            if same_workspace {
                let parent = api.get(&path(&id, "")).await?;
                // A private workspace has no name; the server explains the refusal.
                body["workspace"] = json!(parent["session"]["workspace"].as_str().unwrap_or("private"));
            }
            let answer = api
                .post(&path(&id, "/fork"), &body)
                .await
                .map_err(|failure| checkpoints::named(&id, failure))?;
            if as_json {
                terminal::json(&answer)
            } else {
                println!("{}", answer["session"]["id"].as_str().unwrap_or_default())
            }
            Ok(0)
        }
        SessionCommand::Interrupt { id } => {
            let id = api.session_id(&id).await?;
            let answer = api.post(&path(&id, "/interrupt"), &json!({})).await?;
            let ran = !answer["turn"].is_null();
            if as_json {
                terminal::json(&answer)
            } else {
                eprintln!("{}", if ran { "interrupted" } else { "no turn runs" })
            }
            Ok(0)
        }
        SessionCommand::Permissions { id } => permission::list(api, &id, as_json).await,
        SessionCommand::Allow { id, permission, answers, always } => {
            permission::allow(api, (&id, &permission), (&answers, always), as_json).await
        }
        SessionCommand::Deny { id, permission, message } => {
            permission::deny(api, (&id, &permission), message.as_deref(), as_json).await
        }
        SessionCommand::Tools { id } => client_tools::list(api, &id, as_json).await,
        SessionCommand::Answer { id, call, result, error } => {
            client_tools::answer(api, (&id, &call), (result.as_deref(), error.as_deref()), as_json).await
        }
        SessionCommand::Exec { id, command, timeout } => exec(api, &id, &command, timeout, as_json).await,
        SessionCommand::Logs { id } => logs(api, &id, as_json).await,
        SessionCommand::Tail { id, kind, since } => {
            tail(api, &id, (kind.as_deref(), since.as_deref()), as_json).await
        }
        SessionCommand::Checkpoints { id, limit, before } => {
            checkpoints::list(api, &id, (limit, before), as_json).await
        }
        SessionCommand::Checkpoint { id, number } => {
            checkpoints::show_checkpoint(api, &id, number, as_json).await
        }
        SessionCommand::Rewind { id, checkpoint, files } => {
            checkpoints::rewind(api, &id, (checkpoint, files), as_json).await
        }
        SessionCommand::Files { id, path, checkpoint } => {
            files(api, &id, (path.as_deref(), checkpoint), as_json).await
        }
        SessionCommand::Plan { id, checkpoint } => artifacts::plan(api, &id, checkpoint, as_json).await,
        SessionCommand::Artifacts { id, path: None, checkpoint, .. } => {
            artifacts::list(api, &id, checkpoint, as_json).await
        }
        SessionCommand::Artifacts { id, path: Some(name), out, checkpoint } => {
            artifacts::read(api, (&id, &name), out.as_deref(), checkpoint).await
        }
        SessionCommand::Diff { id, from, to, name_only } => {
            let id = api.session_id(&id).await?;
            let between = push_pull::CheckpointRange { from, to };
            let diff = push_pull::diff(api, &id, between, (name_only, as_json)).await;
            diff.map_err(|failure| checkpoints::named(&id, failure))
        }
        SessionCommand::Pull { id, dir, force } => {
            let id = api.session_id(&id).await?;
            let local = if force {
                push_pull::LocalChangePolicy::Overwrite
            } else {
                push_pull::LocalChangePolicy::KeepLocal
            };
            push_pull::pull(api, &id, &dir, local, as_json).await
        }
        SessionCommand::Push { id, dir, all } => {
            let id = api.session_id(&id).await?;
            let pushed = push_pull::push(api, &id, &dir, push_pull::FileSelection::of(all)).await?;
            if as_json {
                terminal::json(&pushed.json());
            }
            Ok(pushed.exit_code())
        }
    }
}

pub(crate) fn path(id: &str, rest: &str) -> String {
    format!("/api/sessions/{}{rest}", percent_encode(id))
}

fn short(id: &str) -> String {
    if terminal::is_custom_id(id) { id.to_owned() } else { id.chars().take(8).collect() }
}

fn map(metadata: &[String]) -> Result<BTreeMap<String, String>> {
    Ok(parse_key_values(metadata)?.into_iter().collect())
}

/// Options that are seconds in the API.
const DURATIONS: [&str; 5] = ["ttl", "idleTimeout", "permissionTimeout", "toolTimeout", "maxWait"];

/// A duration with its unit, as everywhere on the command line. `null` stands for the default.
fn seconds(name: &str, text: &str) -> Result<Value> {
    if text == "null" {
        return Ok(Value::Null);
    }
    let duration = ash_model::parse_duration(text)
        .map_err(|error| CliError::invalid(format!("{name}={text} is not valid: {error}")))?;
    Ok(json!(duration.as_secs()))
}

/// Options from a file, then from the command line, which takes precedence.
fn option_values(options: &SessionOptionArgs) -> Result<serde_json::Map<String, Value>> {
    let mut all = match &options.options {
        None => serde_json::Map::new(),
        Some(file) => {
            let text = match file.as_os_str() == "-" {
                true => std::io::read_to_string(std::io::stdin()),
                false => std::fs::read_to_string(file),
            };
            let text = text.map_err(CliError::from_io(&format!("cannot read {}", file.display())))?;
            serde_json::from_str(&text).map_err(|error| not_an_object(file, &error))?
        }
    };
    for option in &options.option {
        let (name, value) = option
            .split_once('=')
            .ok_or_else(|| CliError::invalid(format!("{option:?} is not of the form NAME=VALUE")))?;
        let value = match DURATIONS.contains(&name) {
            true => seconds(name, value)?,
            false => serde_json::from_str(value).unwrap_or_else(|_| json!(value)),
        };
        if name == "provider" && (value["apiKey"].is_string() || value["headers"].is_object()) {
            return Err(CliError::invalid(
                "keys are not taken as flags, which every user of this machine can read: put the provider into a file, and give that with --options FILE (- is standard input)",
            ));
        }
        all.insert(name.to_owned(), value);
    }
    Ok(all)
}

fn not_an_object(file: &std::path::Path, error: &serde_json::Error) -> CliError {
    let place = match (error.classify(), error.line()) {
        (serde_json::error::Category::Data, _) | (_, 0) => String::new(),
        (_, line) => format!(": it cannot be read from line {line}, column {} on", error.column()),
    };
    CliError::invalid(format!("{} is no JSON object{place}", file.display()))
}

/// Starts a session; it omits `options` that are null.
pub(crate) async fn create(api: &ApiClient, agent: &str, options: Value) -> Result<Value> {
    let mut body = json!({ "agent": agent });
    for (name, value) in options.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        body[name] = value.clone();
    }
    api.post("/api/sessions", &body).await.map_err(|failure| match failure.kind {
        ash_model::FailureKind::NotFound => CliError {
            message: format!(
                "{}; `ash agent list` shows what there is, `ash deploy DIR` adds one",
                failure.message
            ),
            ..failure
        },
        _ => failure,
    })
}

/// Names the options that were accepted but have no effect with this agent's runtime.
fn name_ignored(session: &Value) {
    let ignored: Vec<&str> =
        session["ignoredOptions"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !ignored.is_empty() {
        let runtime = session["runtime"].as_str().unwrap_or_default();
        eprintln!("an agent of runtime \"{runtime}\" has no use for {}", ignored.join(", "));
    }
}

async fn post_action(api: &ApiClient, id: &str, action: &str, as_json: bool) -> Result<u8> {
    let id = api.session_id(id).await?;
    let spinner = terminal::spinner(&format!("{action}: saving the workspace"));
    let answer = api.post(&path(&id, &format!("/{action}")), &json!({})).await;
    spinner.finish_and_clear();
    let answer = answer?;
    if as_json {
        terminal::json(&answer);
    } else {
        eprintln!(
            "{} {}",
            short(&id),
            terminal::status(answer["session"]["status"].as_str().unwrap_or_default())
        );
        eprintln!("  resume: ash chat --resume {}", api.short_id(&id).await);
    }
    Ok(0)
}

async fn resume(api: &ApiClient, id: &str, options: &Value, (detach, as_json): (bool, bool)) -> Result<u8> {
    // A session that the server does not know may be in its object store, under its full id.
    let (id, unknown) = match api.session_id(id).await {
        Ok(id) => (id, None),
        Err(failure) if failure.kind == FailureKind::NotFound => (id.to_owned(), Some(failure)),
        Err(failure) => return Err(failure),
    };
    let answer = match (resume_with_progress(api, &id, options).await, unknown) {
        (Err(failure), Some(unknown)) if failure.kind == FailureKind::NotFound => return Err(unknown),
        (answer, _) => answer?,
    };
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    show::receipt(&answer["resume"]);
    if detach {
        return Ok(0);
    }
    eprintln!(
        "{}",
        terminal::paint_err(TerminalStyle::Dim, "following; Ctrl-C exits, and the session keeps running")
    );
    follow(api, &id, &last_event(api, &id).await?, (None, false)).await
}

async fn last_event(api: &ApiClient, id: &str) -> Result<String> {
    let last = api.get(&path(id, "/events?limit=1000&type=lifecycle")).await?;
    let last = last["events"].as_array().and_then(|events| events.last());
    Ok(last.map(|event| event["sequence"].to_string()).unwrap_or_default())
}

/// Resumes a session, and shows progress if it takes long. Returns the server's answer.
pub(super) async fn resume_with_progress(api: &ApiClient, id: &str, options: &Value) -> Result<Value> {
    let bar = terminal::spinner("resuming");
    let answer = {
        let to = path(id, "/resume");
        let mut answer = std::pin::pin!(api.post(&to, options));
        let mut watching = std::pin::pin!(watch(api, id, &bar));
        tokio::select! {
            answer = &mut answer => answer,
            () = &mut watching => answer.await,
        }
    };
    bar.finish_and_clear();
    answer
}

/// Only updates the progress bar: an error here does not affect the resume.
async fn watch(api: &ApiClient, id: &str, bar: &indicatif::ProgressBar) {
    // A server that knows the session only from its object store has no stream at first.
    let mut stream = loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let Ok(last) = last_event(api, id).await else { continue };
        match SessionStream::follow(api, id, &last).await {
            Ok(stream) => break stream,
            Err(_) => continue,
        }
    };
    while let Ok(SessionStreamItem::Frame(frame)) = stream.next().await {
        if frame.event == "restore_progress" {
            terminal::show_restore_progress(bar, &frame.data);
        }
    }
}

async fn send(api: &ApiClient, id: &str, body: Value, (raw, as_json): (bool, bool)) -> Result<u8> {
    let id = api.session_id(id).await?;
    if as_json {
        let request = api.request(Method::POST, &path(&id, "/messages")).header("accept", "application/json");
        let sent = api.send(request.json(&body));
        let answer: Value =
            permission::announce_while_waiting(api, &id, sent).await?.json().await.unwrap_or_default();
        terminal::json(&answer);
        return exit_code(api, &id, &answer).await;
    }
    let stream = SessionStream::send(api, &id, body).await?;
    if raw { print_raw(stream, api, &id).await } else { show::turn(stream, api, &id).await }
}

/// The exit code for a turn that was answered as JSON.
pub(super) async fn exit_code(api: &ApiClient, id: &str, answer: &Value) -> Result<u8> {
    match is_cut(answer) {
        true => show::after_cut(api, id, answer["turn"].as_str().unwrap_or_default(), 1).await,
        false => Ok(u8::from(answer["status"] != "done")),
    }
}

async fn print_raw(mut stream: SessionStream, api: &ApiClient, session: &str) -> Result<u8> {
    let mut cut = None;
    loop {
        match stream.next().await? {
            SessionStreamItem::Frame(frame) => {
                println!("[{}] {}", frame.event, terminal::escaped(&frame.data.to_string()));
                if frame.event == "error" && frame.data["code"] == "session_ended" {
                    return Err(CliError::ended());
                }
                if frame.event == "done" && is_cut(&frame.data) {
                    cut = frame.data["turn"].as_str().map(str::to_owned);
                }
            }
            SessionStreamItem::Reconnecting => eprintln!("(waiting for the server)"),
            SessionStreamItem::Ended => {
                return match &cut {
                    Some(turn) => show::after_cut(api, session, turn, 0).await,
                    None => Ok(0),
                };
            }
        }
    }
}

/// Whether the turn was interrupted or cancelled.
fn is_cut(answer: &Value) -> bool {
    matches!(answer["status"].as_str(), Some("interrupted" | "cancelled"))
}

/// Follows from the start, or from `since`, until the user stops or the stream ends.
async fn tail(
    api: &ApiClient,
    id: &str,
    (kind, since): (Option<&str>, Option<&str>),
    as_json: bool,
) -> Result<u8> {
    if let Some(kind) = kind.filter(|kind| !ash_server::EVENTS.contains(kind)) {
        let own = ash_server::EVENTS.join(", ");
        eprintln!(
            "{} {kind} is none of the server's events, so only its agent's own can be. They are: {own}",
            terminal::paint_err(TerminalStyle::Yellow, "!")
        );
    }
    let id = api.session_id(id).await?;
    let last = match since {
        None => String::new(),
        Some(since) => event_before(api, &id, since).await?,
    };
    follow(api, &id, &last, (kind, as_json)).await
}

/// The last event before `since`, which is an event id as `tail` shows it, or an age.
async fn event_before(api: &ApiClient, id: &str, since: &str) -> Result<String> {
    if since.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ':')) && !since.is_empty() {
        return Ok(since.to_owned());
    }
    let ago = ash_model::parse_duration(since).map_err(|error| {
        CliError::invalid(format!("--since {since:?}: {error}, or give the id of an event as tail shows it"))
    })?;
    let from = jiff::Timestamp::now().saturating_sub(jiff::SignedDuration::try_from(ago).unwrap_or_default());
    let from = from.unwrap_or(jiff::Timestamp::MIN);
    let mut before = 0;
    loop {
        let page = api.get(&path(id, &format!("/events?limit=1000&after={before}"))).await?;
        let events = page["events"].as_array().cloned().unwrap_or_default();
        if events.is_empty() {
            return Ok(before.to_string());
        }
        for event in &events {
            let at = event["createdAt"].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
            if at.is_some_and(|at| at >= from) {
                return Ok(before.to_string());
            }
            before = event["sequence"].as_u64().unwrap_or(before);
        }
    }
}

/// Prints a line for each event until the user stops or the stream ends.
async fn follow(api: &ApiClient, id: &str, last: &str, (kind, as_json): (Option<&str>, bool)) -> Result<u8> {
    // The first event has no cursor before it.
    let last = if last == "0" { "" } else { last };
    let mut stream = SessionStream::follow(api, id, last).await?;
    loop {
        let next = tokio::select! {
            next = stream.next() => next?,
            _ = tokio::signal::ctrl_c() => return Ok(0),
        };
        match next {
            SessionStreamItem::Frame(frame) if kind.is_some_and(|kind| kind != frame.event) => {}
            SessionStreamItem::Frame(frame) if as_json => {
                let line = json!({ "id": frame.id, "event": frame.event, "data": frame.data });
                println!("{}", terminal::escaped(&line.to_string()));
            }
            // The events beside it have the same content.
            SessionStreamItem::Frame(frame) if kind.is_none() && frame.event == "message" => {}
            SessionStreamItem::Frame(frame) => println!(
                "{} {}",
                paint(TerminalStyle::Cyan, &format!("{:>8} {:<14}", frame.id, frame.event)),
                terminal::shortened(&frame.data.to_string(), 160)
            ),
            SessionStreamItem::Reconnecting => {
                eprintln!("{}", terminal::paint_err(TerminalStyle::Dim, "(waiting for the server)"))
            }
            SessionStreamItem::Ended => return Ok(0),
        }
    }
}

/// The stdout and stderr of the agent, as the server stored them.
async fn logs(api: &ApiClient, id: &str, as_json: bool) -> Result<u8> {
    let id = api.session_id(id).await?;
    let answer = api.get(&path(&id, "/logs")).await?;
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    let lines = answer["logs"].as_array().map(Vec::as_slice).unwrap_or_default();
    if lines.is_empty() {
        eprintln!("nothing was printed since its sandbox began");
    }
    lines.iter().for_each(|line| println!("{}", line["text"].as_str().unwrap_or_default()));
    Ok(0)
}

async fn exec(api: &ApiClient, id: &str, command: &str, timeout: Duration, as_json: bool) -> Result<u8> {
    let id = api.session_id(id).await?;
    let timeout = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let answer = api.post(&path(&id, "/exec"), &json!({ "command": command, "timeout": timeout })).await?;
    let code = u8::try_from(answer["exitCode"].as_i64().unwrap_or(1)).unwrap_or(1);
    if as_json {
        terminal::json(&answer);
        return Ok(code);
    }
    terminal::print_bytes(answer["stdout"].as_str().unwrap_or_default().as_bytes()).ok();
    eprint!("{}", answer["stderr"].as_str().unwrap_or_default());
    if answer["timedOut"] == true {
        eprintln!(
            "{}",
            terminal::paint_err(
                TerminalStyle::Yellow,
                &format!("(ended after {timeout} ms; allow more with --timeout)")
            )
        );
    }
    Ok(code)
}

async fn files(
    api: &ApiClient,
    id: &str,
    (file, checkpoint): (Option<&str>, Option<u64>),
    as_json: bool,
) -> Result<u8> {
    let id = api.session_id(id).await?;
    let at = checkpoint.map(|number| format!("?checkpoint={number}")).unwrap_or_default();
    let named = |failure| checkpoints::named(&id, failure);
    if let Some(file) = file {
        let name: Vec<String> = file.split('/').map(percent_encode).collect();
        let url = path(&id, &format!("/files/{}{at}", name.join("/")));
        let response = api.send(api.request(Method::GET, &url)).await.map_err(named)?;
        let source = response.headers().get("x-ash-source").and_then(|source| source.to_str().ok());
        let source = source.unwrap_or_default().to_owned();
        let bytes = response.bytes().await.map_err(|error| api.unreachable(&error))?;
        terminal::print_bytes(&bytes).map_err(CliError::from_io("cannot write"))?;
        tell_source(&source, checkpoint);
        return Ok(0);
    }
    let answer = api.get(&path(&id, &format!("/files{at}"))).await.map_err(named)?;
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    tell_source(answer["source"].as_str().unwrap_or_default(), checkpoint);
    let now = jiff::Timestamp::now();
    let mut table = TextTable::new(&["PATH", "SIZE", "CHANGED"]);
    for file in answer["files"].as_array().into_iter().flatten() {
        let text = |name: &str| file[name].as_str().unwrap_or_default().to_owned();
        let size = terminal::format_bytes(file["size"].as_u64().unwrap_or(0));
        table.row(vec![
            (text("path"), None),
            (size, None),
            (terminal::format_age(&text("modifiedAt"), now), Some(TerminalStyle::Dim)),
        ]);
    }
    table.print();
    Ok(0)
}

/// Prints the source of the files to stderr: a stopped session has no sandbox that could change them.
fn tell_source(source: &str, checkpoint: Option<u64>) {
    let words = match (checkpoint, source) {
        (Some(number), _) => format!("from checkpoint {number}"),
        (None, "sandbox") => "from its sandbox".to_owned(),
        (None, _) => "from its snapshot: it has no sandbox now".to_owned(),
    };
    eprintln!("{}", terminal::paint_err(TerminalStyle::Dim, &words));
}

/// The latest hundred sessions of all owners.
pub(crate) async fn all(api: &ApiClient, as_json: bool) -> Result<u8> {
    listed(api, "/api/sessions?limit=100", as_json).await
}

async fn list(api: &ApiClient, listing: ListSessionsArgs, as_json: bool) -> Result<u8> {
    let ListSessionsArgs {
        agent,
        status,
        workspace,
        id_prefix,
        owner,
        metadata,
        older_than,
        newer_than,
        limit,
    } = listing;
    let mut query = format!("/api/sessions?limit={limit}");
    let asked = [
        ("agent", agent),
        ("status", status),
        ("workspace", workspace),
        ("idPrefix", id_prefix),
        ("owner", owner),
        ("olderThan", older_than),
        ("newerThan", newer_than),
    ];
    for (name, value) in asked.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        query.push_str(&format!("&{name}={}", percent_encode(&value)));
    }
    for (name, value) in parse_key_values(&metadata)? {
        query.push_str(&format!("&metadata.{}={}", percent_encode(&name), percent_encode(&value)));
    }
    listed(api, &query, as_json).await
}

async fn listed(api: &ApiClient, query: &str, as_json: bool) -> Result<u8> {
    let answer = api.get(query).await?;
    if as_json {
        terminal::json(&answer);
        return Ok(0);
    }
    let sessions = answer["sessions"].as_array().cloned().unwrap_or_default();
    if sessions.is_empty() {
        eprintln!("no sessions; `ash chat` starts one");
        return Ok(0);
    }
    show::sessions(&sessions);
    let total = answer["total"].as_u64().unwrap_or(0) as usize;
    if total > sessions.len() {
        eprintln!(
            "{}",
            terminal::paint_err(
                TerminalStyle::Dim,
                &format!("{} of {total}; see more with --limit", sessions.len())
            )
        );
    }
    Ok(0)
}
