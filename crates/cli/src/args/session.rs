//! `ash session`: the commands for one session, and lists of sessions.

use super::values;
use ash_model::SessionStatus;
use clap::{Args, Subcommand};
use std::{path::PathBuf, time::Duration};

#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// Create a session
    Create {
        #[arg(default_value = "default")]
        agent: String,
        /// Id of the session [default: a random one]
        #[arg(long)]
        id: Option<String>,
        /// Name of a workspace to share with other sessions
        #[arg(short, long, value_name = "NAME")]
        workspace: Option<String>,
        #[arg(long)]
        model: Option<String>,
        /// Owner of the session, if your key has no owner
        #[arg(long)]
        owner: Option<String>,
        /// Metadata, by which lists can be filtered
        #[arg(short, long = "metadata", value_name = "NAME=VALUE")]
        metadata: Vec<String>,
        /// End the session and move it to the trash this long after its last activity, for example 24h or 7d
        #[arg(long, value_name = "DURATION", value_parser = ash_model::parse_duration)]
        ttl: Option<Duration>,
        /// Which calls need permission; with bypassPermissions none do
        #[arg(long, value_name = "MODE", value_parser = values::PERMISSION_MODES)]
        permission_mode: Option<String>,
        #[command(flatten)]
        options: SessionOptionArgs,
        /// Environment variable of the session; NAME alone takes the shell's value
        #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
        env: Vec<String>,
        /// Copy a folder into the workspace
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// Include .git and files that .gitignore excludes
        #[arg(long, requires = "dir")]
        all: bool,
    },
    /// Send a message and print the answer as it comes
    Send {
        id: String,
        message: String,
        /// During a turn: wait in the queue, be refused, interrupt the turn, or join it [default: the session's
        /// option]
        #[arg(long, value_name = "HOW", value_parser = values::ON_BUSY)]
        on_busy: Option<String>,
        /// Print every event unchanged
        #[arg(long)]
        raw: bool,
    },
    /// Show the running and queued messages in order, after --first and --cancel are applied
    Queue {
        id: String,
        /// Move this message to the front of the queue; several in this order
        #[arg(long, value_name = "TURN")]
        first: Vec<String>,
        /// Withdraw a queued message
        #[arg(long, value_name = "TURN")]
        cancel: Vec<String>,
    },
    /// Lock a session; prints a token, without which no client can change the session
    Lock {
        id: String,
        /// How long the lock holds; each use renews it
        #[arg(long, value_name = "DURATION", value_parser = ash_model::parse_duration, default_value = "60s")]
        ttl: Duration,
        /// Name of the holder, shown to other clients
        #[arg(long, value_name = "NAME")]
        holder: Option<String>,
        /// Take the lock from its holder
        #[arg(long)]
        takeover: bool,
    },
    /// Release the lock whose token is in --lock or ASH_LOCK
    Unlock { id: String },
    /// Change the options; a running agent uses them at once or from its next turn on
    Config {
        id: String,
        #[command(flatten)]
        options: SessionOptionArgs,
    },
    /// List sessions, newest first
    List(ListSessionsArgs),
    /// Replace the metadata; without arguments, remove it
    Label {
        id: String,
        #[arg(value_name = "NAME=VALUE")]
        metadata: Vec<String>,
    },
    /// End sessions that have been unused for long; lists them and asks first
    Prune(PruneArgs),
    /// Show a session
    Get { id: String },
    /// Save and pause a session; its sandbox stays warm
    Pause { id: String },
    /// Resume a session, then follow it
    Resume {
        id: String,
        #[command(flatten)]
        options: SessionOptionArgs,
        /// Do not follow the session
        #[arg(short, long)]
        detach: bool,
    },
    /// Save a session and end its sandbox
    Stop { id: String },
    /// End a session for good; its last checkpoint stays
    End {
        id: String,
        /// Also purge it: it is hidden at once, and deleted after a week
        #[arg(long)]
        purge: bool,
    },
    /// Fork a session: a copy that continues independently
    Fork {
        id: String,
        /// Id of the copy
        #[arg(long = "as", value_name = "ID")]
        new: Option<String>,
        /// As of this checkpoint
        #[arg(long, value_name = "N")]
        checkpoint: Option<u64>,
        /// Stay in the parent's shared workspace, instead of a copy
        #[arg(long)]
        same_workspace: bool,
    },
    /// List checkpoints, newest first
    Checkpoints {
        id: String,
        #[arg(long, default_value_t = 50, value_parser = values::limit())]
        limit: u32,
        /// Only checkpoints before this one
        #[arg(long, value_name = "N")]
        before: Option<u64>,
    },
    /// Show one checkpoint
    Checkpoint { id: String, number: u64 },
    /// Rewind to a checkpoint, back or forward: conversation, agent and files together
    Rewind {
        id: String,
        checkpoint: u64,
        /// In a shared workspace: also the files, for all of its sessions
        #[arg(long)]
        files: bool,
    },
    /// Interrupt the running turn
    Interrupt { id: String },
    /// List open permission requests and questions
    Permissions { id: String },
    /// Permit a call, or answer a question
    Allow {
        id: String,
        permission: String,
        /// Answer to a question: the choice, or QUESTION=CHOICE if there are several questions
        #[arg(short, long = "answer", value_name = "CHOICE")]
        answers: Vec<String>,
        /// Also accept this one of the rules that the agent suggests, so that it does not ask again
        #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1")]
        always: Option<usize>,
    },
    /// Deny a call
    Deny {
        id: String,
        permission: String,
        /// Reason for the agent
        #[arg(short, long)]
        message: Option<String>,
    },
    /// List the tools that clients execute, and the agent's calls that wait for an answer
    Tools { id: String },
    /// Answer a call of a client's tool
    #[command(group = clap::ArgGroup::new("output").required(true))]
    Answer {
        id: String,
        call: String,
        /// The result: JSON, or a text
        #[arg(long, value_name = "RESULT", group = "output")]
        result: Option<String>,
        /// Why there is no result, for the model
        #[arg(long, value_name = "WHY", group = "output")]
        error: Option<String>,
    },
    /// Run a command in the sandbox; exits with the command's code
    Exec {
        id: String,
        command: String,
        /// Time limit, for example 500ms, 30s or 5m
        #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = values::patience)]
        timeout: Duration,
    },
    /// Show the output of the agent and its scripts
    Logs { id: String },
    /// Follow the events of a session
    Tail {
        id: String,
        /// Only events of this name
        #[arg(short = 't', long = "type")]
        kind: Option<String>,
        /// Only events after this: the id of an event, or an age (10m, 2h) [default: all]
        #[arg(long, value_name = "EVENT|DURATION")]
        since: Option<String>,
    },
    /// List the files, or print one of them
    Files {
        id: String,
        path: Option<String>,
        /// As of this checkpoint
        #[arg(long, value_name = "N")]
        checkpoint: Option<u64>,
    },
    /// Print the agent's plan
    Plan {
        id: String,
        /// As of this checkpoint
        #[arg(long, value_name = "N")]
        checkpoint: Option<u64>,
    },
    /// List the documents that the agent made beside the project, or print one of them
    Artifacts {
        id: String,
        path: Option<String>,
        /// Write the document to this file instead of printing it
        #[arg(short, long, value_name = "FILE", requires = "path")]
        out: Option<PathBuf>,
        /// As of this checkpoint
        #[arg(long, value_name = "N")]
        checkpoint: Option<u64>,
    },
    /// Show changes of the workspace: since a folder was copied in, since a checkpoint, or between two checkpoints
    Diff {
        id: String,
        /// Compare from this checkpoint
        #[arg(value_name = "N")]
        from: Option<u64>,
        /// Compare with this checkpoint [default: the current files]
        #[arg(value_name = "M")]
        to: Option<u64>,
        /// Names only
        #[arg(long)]
        name_only: bool,
    },
    /// Copy the changes back into a folder
    Pull {
        id: String,
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Overwrite files that were also changed here
        #[arg(long)]
        force: bool,
    },
    /// Copy a folder into the workspace
    Push {
        id: String,
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Include .git and files that .gitignore excludes
        #[arg(long)]
        all: bool,
    },
}

#[derive(Args)]
pub(crate) struct SessionOptionArgs {
    /// Option, named as in the API; the value is JSON or text: -o reasoningEffort=high -o 'availableTools=["Read"]'
    #[arg(short, long = "option", value_name = "NAME=VALUE")]
    pub(crate) option: Vec<String>,
    /// File with options as a JSON object, or - for standard input; use it for keys, because other users can see
    /// arguments
    #[arg(long, value_name = "FILE")]
    pub(crate) options: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ListSessionsArgs {
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// Only with this status
    #[arg(long, value_parser = SessionStatus::ALL.map(SessionStatus::as_str))]
    pub(crate) status: Option<String>,
    /// Only in this shared workspace
    #[arg(short, long, value_name = "NAME")]
    pub(crate) workspace: Option<String>,
    /// Only with ids that begin with this
    #[arg(long, value_name = "PREFIX")]
    pub(crate) id_prefix: Option<String>,
    #[arg(long)]
    pub(crate) owner: Option<String>,
    /// Only with this metadata
    #[arg(short, long = "metadata", value_name = "NAME=VALUE")]
    pub(crate) metadata: Vec<String>,
    /// Only if last active longer ago than this, for example 24h or 7d
    #[arg(long, value_name = "DURATION", value_parser = values::age)]
    pub(crate) older_than: Option<String>,
    /// Only if last active within this time
    #[arg(long, value_name = "DURATION", value_parser = values::age)]
    pub(crate) newer_than: Option<String>,
    #[arg(long, default_value_t = 50, value_parser = values::limit())]
    pub(crate) limit: u32,
}

#[derive(Args)]
pub(crate) struct PruneArgs {
    /// Only if last active longer ago than this, for example 24h or 7d
    #[arg(long, value_name = "DURATION", value_parser = values::age)]
    pub(crate) older_than: String,
    /// Only with this status; sessions at work are never pruned
    #[arg(long, value_parser = values::RESTING)]
    pub(crate) status: Option<String>,
    #[arg(long)]
    pub(crate) owner: Option<String>,
    /// Also move them to the trash, those that have ended included
    #[arg(long)]
    pub(crate) purge: bool,
    /// Print what would be removed, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
}
