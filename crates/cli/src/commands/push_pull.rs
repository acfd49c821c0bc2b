//! `push` copies a folder into a session's workspace, `diff` shows the changes there, and `pull` copies them back.

mod apply;
mod bundle;
mod changes;
mod collect;
mod folder_checkpoints;
mod patch;

pub(crate) use collect::FileSelection;

use crate::{
    api::{ApiClient, CliError, Result},
    commands::sessions::path,
    terminal::{self, TerminalStyle, paint_err, plural},
};
use apply::{Deed, PullConflict, PullPlan};
use ash_model::FailureKind;
use changes::{ServerWorkspace, WorkspaceChangeKind, WorkspaceDiff};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The server's limit for one bundle and for one file.
const LARGEST_FILE: u64 = 100 << 20;

/// A file that was not copied, and why.
#[derive(Debug)]
pub(crate) struct SkippedFile {
    path: String,
    why: String,
}

#[derive(Debug)]
pub(crate) struct PushReport {
    files: usize,
    bytes: u64,
    checkpoint: u64,
    left_out: Vec<SkippedFile>,
}

impl PushReport {
    pub(crate) fn json(&self) -> Value {
        let PushReport { files, bytes, checkpoint, left_out } = self;
        json!({ "files": files, "bytes": bytes, "checkpoint": checkpoint, "leftOut": shown(left_out) })
    }

    /// Not zero if files were skipped, so that a script notices.
    pub(crate) fn exit_code(&self) -> u8 {
        u8::from(!self.left_out.is_empty())
    }
}

fn shown(left_out: &[SkippedFile]) -> Vec<Value> {
    left_out.iter().map(|left| json!({ "path": left.path, "why": left.why })).collect()
}

fn warn_of(left_out: &[SkippedFile]) {
    for left in left_out {
        let line = format!("left out: {} ({})", printable(&left.path), left.why);
        eprintln!("{} {line}", paint_err(TerminalStyle::Yellow, "!"));
    }
}

/// Replaces control characters, so that a name stays in one line.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Copies the folder, and makes this state the base of later comparisons. Writes messages to stderr.
pub(crate) async fn push(api: &ApiClient, id: &str, dir: &Path, which: FileSelection) -> Result<PushReport> {
    let session = api.get(&path(id, "")).await?["session"].take();
    if session["openTurns"].as_u64().unwrap_or(0) > 0 {
        let remedy = format!("wait until it is over, or stop it with `ash session interrupt {id}`");
        return Err(CliError::new(FailureKind::Conflict, format!("a turn runs in this session; {remedy}")));
    }
    let dir = canonical_folder(dir)?;
    let found = collect::collect(&dir, which)?;
    if !session["config"]["base"].is_null() {
        checkpoint_changes(api, id).await?;
    }
    let bar = terminal::bar("copying", found.bytes);
    let sent = bundle::send(api, id, &dir, &found, &bar).await?;
    bar.set_message("saving");
    let answer = api.post(&path(id, "/checkpoints"), &json!({ "base": true })).await?;
    bar.finish_and_clear();
    let checkpoint = answer["checkpoint"].as_u64().unwrap_or(0);
    folder_checkpoints::store_checkpoint(
        session["workspaceId"].as_str().unwrap_or_default(),
        &dir,
        checkpoint,
    );
    let left_out = found.left_out.into_iter().chain(sent.left_out).collect();
    let pushed = PushReport { files: sent.files, bytes: sent.bytes, checkpoint, left_out };
    warn_of(&pushed.left_out);
    let words = format!("{}, {}", plural(pushed.files as u64, "file"), terminal::format_bytes(pushed.bytes));
    eprintln!("{} {words}", paint_err(TerminalStyle::Green, "✓"));
    Ok(pushed)
}

/// A push may overwrite what the agent did since the last push, so a checkpoint saves it first.
async fn checkpoint_changes(api: &ApiClient, id: &str) -> Result<()> {
    let count = ServerWorkspace::of(api, id).await?.changes().await?.files.len();
    if count > 0 {
        let answer = api.post(&path(id, "/checkpoints"), &json!({})).await?;
        let changes = plural(count as u64, "change");
        let kept = format!("kept as checkpoint {}: {changes} since the last push", answer["checkpoint"]);
        eprintln!("{} {kept}", paint_err(TerminalStyle::Dim, "·"));
    }
    Ok(())
}

/// The canonical path of the folder.
pub(crate) fn canonical_folder(dir: &Path) -> Result<PathBuf> {
    let found =
        fs::canonicalize(dir).map_err(CliError::from_io(&format!("cannot read {}", dir.display())))?;
    if found.is_dir() {
        return Ok(found);
    }
    Err(CliError::invalid(format!("{} is not a folder", dir.display())))
}

/// The checkpoints to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckpointRange {
    /// `None`: the checkpoint of the last push.
    pub(crate) from: Option<u64>,
    /// `None`: the current files.
    pub(crate) to: Option<u64>,
}

/// Prints a patch that `git apply` understands.
pub(crate) async fn diff(
    api: &ApiClient,
    id: &str,
    between: CheckpointRange,
    (name_only, as_json): (bool, bool),
) -> Result<u8> {
    let server = ServerWorkspace::between(api, id, between).await?;
    if as_json {
        terminal::json(&server.fetch_json().await?);
        return Ok(0);
    }
    let changes = server.changes().await?;
    warn_of_unnamed(&changes);
    if changes.files.is_empty() {
        eprintln!("{}", paint_err(TerminalStyle::Dim, "no changes"));
    }
    for change in &changes.files {
        let text = if name_only {
            format!("{}\n", printable(&change.path))
        } else {
            patch::format_patch(&server, change).await?
        };
        // A reader that closes the pipe early, as `head` does, is no error.
        if terminal::print_bytes(text.as_bytes()).is_err() {
            return Ok(0);
        }
    }
    Ok(0)
}

fn warn_of_unnamed(changes: &WorkspaceDiff) {
    if changes.unnamed > 0 {
        let count = plural(changes.unnamed as u64, "file");
        let words = format!("{count} with a name that is not UTF-8 cannot be shown or pulled");
        eprintln!("{} {words}", paint_err(TerminalStyle::Yellow, "!"));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalChangePolicy {
    /// Files that were also changed here stay, and then nothing else is written either.
    KeepLocal,
    Overwrite,
}

/// Applies new changes to a folder: all of them or, if there is a conflict, none.
pub(crate) async fn pull(
    api: &ApiClient,
    id: &str,
    dir: &Path,
    local: LocalChangePolicy,
    as_json: bool,
) -> Result<u8> {
    fs::create_dir_all(dir).map_err(CliError::from_io(&format!("cannot make {}", dir.display())))?;
    let dir = canonical_folder(dir)?;
    let server = ServerWorkspace::of(api, id).await?;
    let spinner = terminal::spinner("comparing");
    // Created before anything is read, so that the next pull includes later changes.
    let captured = create_checkpoint(api, id).await;
    let known = folder_checkpoints::checkpoint(server.workspace(), &dir);
    let (server, changes) = server.changes_since(known).await?;
    spinner.finish_and_clear();
    warn_of_unnamed(&changes);
    let bar = terminal::bar("fetching", changes.bytes());
    let plan = apply::plan(&dir, changes, (&server, local), &|bytes| bar.inc(bytes)).await;
    bar.finish_and_clear();
    let plan = plan?;
    if !plan.conflicts.is_empty() {
        return refused(&plan, as_json);
    }
    let done = plan.apply()?;
    warn_of(&plan.left_out);
    // Also if files were skipped: otherwise the next pull would take the files that this one wrote for local changes.
    if let Some(captured) = captured {
        folder_checkpoints::store_checkpoint(server.workspace(), &dir, captured);
    }
    let exit_code = u8::from(!plan.left_out.is_empty());
    if as_json {
        let files: Vec<Value> = done.0.iter().map(deed).collect();
        let count = |how| done.count(how);
        terminal::json(&json!({
            "changed": count(WorkspaceChangeKind::Modified), "added": count(WorkspaceChangeKind::Added), "deleted": count(WorkspaceChangeKind::Deleted),
            "files": files, "conflicts": [], "leftOut": shown(&plan.left_out),
        }));
        return Ok(exit_code);
    }
    done.0.iter().for_each(list);
    eprintln!("{} {done}", paint_err(TerminalStyle::Green, "✓"));
    Ok(exit_code)
}

fn deed(deed: &Deed) -> Value {
    let mut shown = json!({ "path": deed.path, "change": deed.how.as_str() });
    if let Some(target) = &deed.target {
        shown["target"] = json!(target);
    }
    shown
}

/// Uses the letters of `git status`.
fn list(deed: &Deed) {
    let (letter, colour) = match deed.how {
        WorkspaceChangeKind::Added => ("A", TerminalStyle::Green),
        WorkspaceChangeKind::Modified => ("M", TerminalStyle::Yellow),
        WorkspaceChangeKind::Deleted => ("D", TerminalStyle::Red),
    };
    let leads = deed.target.as_ref().map_or_else(String::new, |target| format!(" -> {}", printable(target)));
    println!("{} {}{leads}", terminal::paint(colour, letter), printable(&deed.path));
}

/// Creates a checkpoint of the current workspace. `None`: a turn runs or the session has ended, and the files can still
/// be read.
async fn create_checkpoint(api: &ApiClient, id: &str) -> Option<u64> {
    api.post(&path(id, "/checkpoints"), &json!({})).await.ok()?["checkpoint"].as_u64()
}

fn refused(plan: &PullPlan, as_json: bool) -> Result<u8> {
    if as_json {
        let shown = |(path, why): &(String, PullConflict)| json!({ "path": path, "why": why.as_str() });
        let conflicts: Vec<Value> = plan.conflicts.iter().map(shown).collect();
        terminal::json(
            &json!({ "changed": 0, "added": 0, "deleted": 0, "files": [], "conflicts": conflicts, "leftOut": [] }),
        );
    }
    for (path, why) in &plan.conflicts {
        eprintln!("{} {}: {}", paint_err(TerminalStyle::Yellow, "!"), printable(path), why.as_str());
    }
    let in_the_way = plan.conflicts.iter().any(|(_, why)| *why == PullConflict::InTheWay);
    let remedy = if in_the_way { "move the files that are in the way" } else { "overwrite with --force" };
    let words = format!("{}; nothing was changed. Pull into another folder, or {remedy}", conflicts(plan));
    Err(CliError::new(FailureKind::Conflict, words))
}

fn conflicts(plan: &PullPlan) -> String {
    plural(plan.conflicts.len() as u64, "conflict")
}
