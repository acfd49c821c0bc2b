//! Prints turns, sessions and receipts for a user.

use super::permission::{PermissionPromptResult, PermissionPrompter, described, summary};
use crate::{
    api::{ApiClient, CliError, Result},
    session_stream::{SessionStream, SessionStreamFrame, SessionStreamItem},
    shell_messages,
    terminal::{self, TerminalStyle, TextTable, paint, paint_err},
};
use ash_model::FailureKind;
use serde_json::{Value, json};
use std::io::Write;

/// Number of characters of a tool's call and result to show.
const FOLDED: usize = 100;

pub(crate) fn sessions(sessions: &[Value]) {
    let now = jiff::Timestamp::now();
    let ids: Vec<&str> = sessions.iter().filter_map(|session| session["id"].as_str()).collect();
    let mut table = TextTable::new(&["ID", "AGENT", "STATUS", "TURNS", "ACTIVE", "TITLE"]);
    for session in sessions {
        let text = |name: &str| session[name].as_str().unwrap_or_default().to_owned();
        let id = text("id");
        table.row(vec![
            (shortest(&id, &ids), Some(TerminalStyle::Bold)),
            (text("agentName"), None),
            (text("status"), Some(colour(&text("status")))),
            (session["turns"].to_string(), None),
            (terminal::format_age(&text("lastActiveAt"), now), Some(TerminalStyle::Dim)),
            (terminal::shortened(&text("title"), 48), None),
        ]);
    }
    table.print();
}

fn shortest(id: &str, all: &[&str]) -> String {
    let ends = id.char_indices().map(|(at, c)| at + c.len_utf8()).skip(7);
    let unique = |prefix: &str| all.iter().filter(|other| other.starts_with(prefix)).count() <= 1;
    if terminal::is_custom_id(id) {
        return id.to_owned();
    }
    ends.map(|end| &id[..end]).find(|prefix| unique(prefix)).unwrap_or(id).to_owned()
}

fn colour(status: &str) -> TerminalStyle {
    match status {
        "active" => TerminalStyle::Green,
        "starting" => TerminalStyle::Cyan,
        "paused" | "stopped" => TerminalStyle::Yellow,
        "error" => TerminalStyle::Red,
        _ => TerminalStyle::Dim,
    }
}

pub(crate) fn session(session: &Value) {
    let now = jiff::Timestamp::now();
    let text = |name: &str| session[name].as_str().unwrap_or_default().to_owned();
    println!("{}  {}", paint(TerminalStyle::Bold, &text("id")), terminal::status(&text("status")));
    let line = |name: &str, value: String| println!("  {name:<11} {value}");
    if !text("title").is_empty() {
        line("title", text("title"));
    }
    line("agent", format!("{} version {} ({})", text("agentName"), session["agentVersion"], text("runtime")));
    line("turns", format!("{} ({} open)", session["turns"], session["openTurns"]));
    let number = |name: &str| session["checkpoint"][name].as_u64();
    let local = number("local").map_or_else(|| "none yet".to_owned(), |n| n.to_string());
    line(
        "checkpoint",
        number("remote").map_or(local.clone(), |n| format!("{local} ({n} in the object store)")),
    );
    line("created", terminal::format_age(&text("createdAt"), now));
    line("active", terminal::format_age(&text("lastActiveAt"), now));
    if let Some(parent) = session["parentSessionId"].as_str() {
        line("fork of", parent.to_owned());
    }
    if let Some(owner) = session["owner"].as_str() {
        line("owner", owner.to_owned());
    }
    for (name, value) in session["metadata"].as_object().into_iter().flatten() {
        line("noted", format!("{name}={}", value.as_str().unwrap_or_default()));
    }
    if let Some(expires) = session["expiresAt"].as_str() {
        line("goes", expires.to_owned());
    }
    for asked in session["pending"].as_array().into_iter().flatten() {
        let (tool, id) =
            (asked["tool"].as_str().unwrap_or_default(), asked["id"].as_str().unwrap_or_default());
        let what = terminal::shortened(&format!("{tool} {}", summary(asked)), FOLDED);
        line("waits for", format!("{what} ({id})"));
    }
    if let Some(error) = session["error"]["error"].as_str() {
        line("error", paint(TerminalStyle::Red, &shell_messages::of_shell(error)));
    }
    if !text("lastText").is_empty() {
        line("last said", text("lastText"));
    }
}

/// Prints to stderr what a resume restored.
pub(crate) fn receipt(receipt: &Value) {
    let Some(path) = receipt["path"].as_str() else {
        eprintln!("{} it was active already", paint_err(TerminalStyle::Green, "✓"));
        return;
    };
    let from = match (path, receipt["from"].as_str(), receipt["source"].as_str()) {
        ("warm", _, _) => "its sandbox was still warm".to_owned(),
        (_, Some("live"), _) => "from its files on this machine".to_owned(),
        (_, _, Some("fresh")) => "from the agent's own files".to_owned(),
        (_, _, Some("cloud")) => format!("from checkpoint {} in the object store", receipt["checkpoint"]),
        _ => format!("from checkpoint {}", receipt["checkpoint"]),
    };
    let lost: Vec<&str> =
        receipt["lost"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if lost.is_empty() {
        eprintln!("{} back, {from}; nothing was lost", paint_err(TerminalStyle::Green, "✓"));
    } else {
        eprintln!(
            "{} back, {from}, but this is missing: {}",
            paint_err(TerminalStyle::Yellow, "!"),
            lost.join("; ")
        );
    }
    if let Some(salvage) = receipt["salvage"].as_u64() {
        eprintln!("  the files on disk could not be trusted and are kept as checkpoint {salvage}");
    }
}

/// Prints a turn while it runs. Ctrl-C interrupts the turn, a second one exits. Returns the exit code.
pub(crate) async fn turn(mut stream: SessionStream, api: &ApiClient, session: &str) -> Result<u8> {
    let mut printer = TurnPrinter::new();
    let mut interrupted = false;
    let mut desk = PermissionPrompter::new(api, session);
    loop {
        let next = tokio::select! {
            next = stream.next() => next?,
            decided = desk.next_decision() => {
                decide(decided, &mut printer, api, session).await?;
                continue;
            }
            _ = tokio::signal::ctrl_c() => {
                if interrupted {
                    printer.note("exited; the turn continues");
                    return Ok(130);
                }
                interrupted = true;
                printer.note("interrupting; Ctrl-C again exits");
                api.post(&super::sessions::path(session, "/interrupt"), &json!({})).await?;
                continue;
            }
        };
        match next {
            SessionStreamItem::Frame(frame) if frame.event == "permission_request" => {
                printer.close();
                desk.enqueue(frame.data);
            }
            SessionStreamItem::Frame(frame) if frame.event == "permission_answered" => {
                if desk.cancel(&frame.data["id"]) {
                    eprintln!();
                    let said = |name: &str| frame.data[name].as_str().unwrap_or_default();
                    printer.note(&format!("{} by {}", said("behavior"), said("by")));
                }
            }
            SessionStreamItem::Frame(frame) => printer.frame(&frame),
            SessionStreamItem::Reconnecting => printer.note("the connection is lost; waiting for the server"),
            SessionStreamItem::Ended => {
                let code = printer.finish();
                return match &printer.cut {
                    Some(turn) => after_cut(api, session, turn, code).await,
                    None => Ok(code),
                };
            }
        }
    }
}

/// The exit code of an interrupted or cancelled turn: that of an ended session, if the end of the session is the
/// reason.
pub(crate) async fn after_cut(api: &ApiClient, session: &str, turn: &str, code: u8) -> Result<u8> {
    let path = super::sessions::path;
    // A session that is ending does not have the status yet, but it refuses every command. This command has no effect:
    // the turn is over.
    let first = api.patch(&path(session, "/queue"), &json!({ "order": [turn] })).await;
    let refused = first.is_err_and(|refused| refused.kind == FailureKind::Gone);
    let is_ended =
        refused || api.get(&path(session, "")).await.is_ok_and(|found| found["session"]["status"] == "ended");
    if is_ended { Err(CliError::ended()) } else { Ok(code) }
}

async fn decide(
    decided: PermissionPromptResult,
    printer: &mut TurnPrinter,
    api: &ApiClient,
    session: &str,
) -> Result<()> {
    match decided {
        PermissionPromptResult::Answer { id, body } => {
            let answer = super::sessions::path(session, &format!("/permissions/{id}"));
            // The server may have restarted with another port.
            match api.reconnected().post(&answer, &body).await {
                Err(failure) if failure.kind == ash_model::FailureKind::Conflict => {
                    printer.note(&failure.message)
                }
                other => drop(other?),
            }
        }
        PermissionPromptResult::Unanswered { asked } => {
            let what = described(api, session, &asked).await;
            let (tool, id) =
                (asked["tool"].as_str().unwrap_or_default(), asked["id"].as_str().unwrap_or_default());
            printer.note(&format!("waits for permission: {} {what}", tool));
            printer.note(&format!("ash session allow {session} {id}, or deny"));
        }
    }
    Ok(())
}

struct TurnPrinter {
    spinner: indicatif::ProgressBar,
    /// The cursor is in the middle of a line.
    open: bool,
    /// The exit code of a failed turn.
    failed: Option<u8>,
    /// The id of the turn, if it was interrupted or cancelled.
    cut: Option<String>,
}

impl TurnPrinter {
    fn new() -> TurnPrinter {
        TurnPrinter { spinner: terminal::spinner("thinking"), open: false, failed: None, cut: None }
    }

    fn frame(&mut self, frame: &SessionStreamFrame) {
        match frame.event.as_str() {
            "text_delta" => self.text(frame.data["delta"].as_str().unwrap_or_default()),
            "tool_use" => {
                let input = &frame.data["input"];
                let shown = input
                    .as_object()
                    .and_then(|input| input.values().find_map(Value::as_str))
                    .map_or_else(|| input.to_string(), str::to_owned);
                let name = frame.data["name"].as_str().unwrap_or("tool");
                self.line(&format!(
                    "{} {}",
                    paint(TerminalStyle::Cyan, &format!("▸ {name}")),
                    paint(TerminalStyle::Dim, &terminal::shortened(&shown, FOLDED))
                ));
            }
            "tool_result" => self.result(&frame.data),
            "restore_progress" => terminal::show_restore_progress(&self.spinner, &frame.data),
            "session_start" => {
                self.spinner.finish_and_clear();
                self.spinner = terminal::spinner("thinking");
            }
            "turn_continued" => self.note("the turn was interrupted by a crash and continues"),
            "message" if frame.data["subtype"] == "api_retry" => {
                let seconds = frame.data["retry_delay_ms"].as_u64().unwrap_or(0).div_ceil(1000);
                self.note(&format!("the model does not answer; it is asked again in {seconds} s"));
            }
            "error" => {
                let text = |name: &str| frame.data[name].as_str().unwrap_or_default();
                let failure = CliError::from_server(FailureKind::Internal, text("code"), text("error"));
                self.close();
                eprintln!("{} {failure}", paint_err(TerminalStyle::Red, "error:"));
                self.failed = Some(failure.exit_code());
            }
            "done" => {
                self.close();
                match frame.data["status"].as_str() {
                    Some(how @ ("interrupted" | "cancelled")) => {
                        self.cut = frame.data["turn"].as_str().map(str::to_owned);
                        let code = u8::from(how == "cancelled");
                        self.failed = self.failed.or(Some(code));
                        eprintln!("{}", paint_err(TerminalStyle::Yellow, &format!("({how})")));
                    }
                    Some("done") => {}
                    _ => self.failed = self.failed.or(Some(1)),
                }
            }
            _ => {}
        }
    }

    fn result(&mut self, data: &Value) {
        let text = data["content"].as_str().map_or_else(|| data["content"].to_string(), str::to_owned);
        let lines = text.lines().count();
        let first = terminal::shortened(text.lines().next().unwrap_or_default(), FOLDED);
        let first = if text.trim().is_empty() { "(no output)".to_owned() } else { first };
        let more = if lines > 1 { format!(" (+{} lines)", lines - 1) } else { String::new() };
        let mark = if data["is_error"] == true {
            paint(TerminalStyle::Red, "  ✗")
        } else {
            paint(TerminalStyle::Dim, "  └")
        };
        self.line(&format!("{mark} {}", paint(TerminalStyle::Dim, &format!("{first}{more}"))));
        self.spinner = terminal::spinner("thinking");
    }

    fn text(&mut self, text: &str) {
        self.spinner.finish_and_clear();
        let text = text.to_owned();
        print!("{text}");
        std::io::stdout().flush().ok();
        self.open = !text.ends_with('\n');
    }

    fn line(&mut self, line: &str) {
        self.close();
        println!("{line}");
    }

    fn note(&mut self, note: &str) {
        self.close();
        eprintln!("{}", paint_err(TerminalStyle::Dim, &format!("({note})")));
    }

    fn close(&mut self) {
        self.spinner.finish_and_clear();
        if self.open {
            println!();
            self.open = false;
        }
    }

    fn finish(&mut self) -> u8 {
        self.close();
        self.failed.unwrap_or(0)
    }
}
