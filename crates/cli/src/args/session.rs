//! `ash session`: everything that is done to one session, and lists of them.

use super::values;
use ash_model::SessionStatus;
use clap::{Args, Subcommand};
use std::{path::PathBuf, time::Duration};

#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// Start a session
    Create {
        #[arg(default_value = "default")]
        agent: String,
        /// Its id [default: a random one]
        #[arg(long)]
        id: Option<String>,
        /// A workspace that it shares with other sessions, by its name
        #[arg(short, long, value_name = "NAME")]
        workspace: Option<String>,
        #[arg(long)]
        model: Option<String>,
        /// Whose it is, if your key has no owner
        #[arg(long)]
        owner: Option<String>,
        /// Something to find it again by
        #[arg(short, long = "metadata", value_name = "NAME=VALUE")]
        metadata: Vec<String>,
        /// End it and put it in the trash so long after its last activity, for example 24h or 7d
        #[arg(long, value_name = "DURATION", value_parser = ash_model::parse_duration)]
        ttl: Option<Duration>,
        /// What needs leave: with bypassPermissions nothing does
        #[arg(long, value_name = "MODE", value_parser = values::PERMISSION_MODES)]
        permission_mode: Option<String>,
        #[command(flatten)]
        options: SessionOptionArgs,
        /// A variable for its environment, with NAME alone that of this shell
        #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
        env: Vec<String>,
        /// Copy a folder into its workspace
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// Copy what .gitignore names too, and .git
        #[arg(long, requires = "dir")]
        all: bool,
    },
    /// Send a message and print the answer as it comes
    Send {
        id: String,
        message: String,
        /// If it is at work: wait in line, be refused, end the turn that runs, or be heard in it [default: as the session is set]
        #[arg(long, value_name = "HOW", value_parser = values::ON_BUSY)]
        on_busy: Option<String>,
        /// Print every event as it is
        #[arg(long)]
        raw: bool,
    },
    /// What runs and what waits, in order; with --first or --cancel, after that
    Queue {
        id: String,
        /// Let this message go before the others that wait; several in this order
        #[arg(long, value_name = "TURN")]
        first: Vec<String>,
        /// Take a message back that waits
        #[arg(long, value_name = "TURN")]
        cancel: Vec<String>,
    },
    /// Have it to yourself; prints a token, without which nobody else can change it
    Lock {
        id: String,
        /// How long it lasts unless it is used
        #[arg(long, value_name = "DURATION", value_parser = ash_model::parse_duration, default_value = "60s")]
        ttl: Duration,
        /// How others are told who has it
        #[arg(long, value_name = "NAME")]
        holder: Option<String>,
        /// From whoever has it
        #[arg(long)]
        takeover: bool,
    },
    /// Give the lock up whose token is in --lock or ASH_LOCK
    Unlock { id: String },
    /// Change its options; a live agent goes on with them at once or from its next turn on
    Config {
        id: String,
        #[command(flatten)]
        options: SessionOptionArgs,
    },
    /// All sessions, newest first
    List(ListSessionsArgs),
    /// Replace what is noted on it; without any, nothing is
    Label {
        id: String,
        #[arg(value_name = "NAME=VALUE")]
        metadata: Vec<String>,
    },
    /// End sessions that nobody has used for long; lists them and asks first
    Prune(PruneArgs),
    /// One session
    Get { id: String },
    /// Save it and let it rest; its sandbox stays warm
    Pause { id: String },
    /// Bring it back, then follow it
    Resume {
        id: String,
        #[command(flatten)]
        options: SessionOptionArgs,
        /// Do not follow
        #[arg(short, long)]
        detach: bool,
    },
    /// Save it and end its sandbox
    Stop { id: String },
    /// End it for good; its last checkpoint stays
    End {
        id: String,
        /// And forget it: nobody sees it any more, and after a week it is gone
        #[arg(long)]
        purge: bool,
    },
    /// Make a copy that goes its own way
    Fork {
        id: String,
        /// The copy's id
        #[arg(long = "as", value_name = "ID")]
        new: Option<String>,
        /// As it was at this checkpoint
        #[arg(long, value_name = "N")]
        checkpoint: Option<u64>,
        /// In the shared workspace that it works in itself, instead of in a copy
        #[arg(long)]
        same_workspace: bool,
    },
    /// Its checkpoints, newest first
    Checkpoints {
        id: String,
        #[arg(long, default_value_t = 50, value_parser = values::limit())]
        limit: u32,
        /// Only those before this one
        #[arg(long, value_name = "N")]
        before: Option<u64>,
    },
    /// One checkpoint
    Checkpoint { id: String, number: u64 },
    /// Go to a checkpoint, back or forward: conversation, agent and files together
    Rewind {
        id: String,
        checkpoint: u64,
        /// In a shared workspace: the files of all its sessions, too
        #[arg(long)]
        files: bool,
    },
    /// Stop the turn that runs
    Interrupt { id: String },
    /// What its agent waits for: leave to make a call, or the answer to a question
    Permissions { id: String },
    /// Let its agent make a call, or answer its question
    Allow {
        id: String,
        permission: String,
        /// To a question: the choice, or QUESTION=CHOICE if there are several
        #[arg(short, long = "answer", value_name = "CHOICE")]
        answers: Vec<String>,
        /// And need not ask again: by this one of the rules that it suggests
        #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1")]
        always: Option<usize>,
    },
    /// Do not let its agent make a call
    Deny {
        id: String,
        permission: String,
        /// What the agent is told
        #[arg(short, long)]
        message: Option<String>,
    },
    /// Run a command in its sandbox; exits as the command does
    Exec {
        id: String,
        command: String,
        /// How long it may take, for example 500ms, 30s or 5m
        #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = values::patience)]
        timeout: Duration,
    },
    /// What its agent and its scripts printed
    Logs { id: String },
    /// Follow its events
    Tail {
        id: String,
        /// Only events of this name
        #[arg(short = 't', long = "type")]
        kind: Option<String>,
        /// Only what came after this: the id of an event, or how long ago (10m, 2h) [default: everything]
        #[arg(long, value_name = "EVENT|DURATION")]
        since: Option<String>,
    },
    /// Its files, or one of them
    Files {
        id: String,
        path: Option<String>,
        /// As they were at this checkpoint
        #[arg(long, value_name = "N")]
        checkpoint: Option<u64>,
    },
    /// Its agent's plan
    Plan {
        id: String,
        /// As it was at this checkpoint
        #[arg(long, value_name = "N")]
        checkpoint: Option<u64>,
    },
    /// Documents that its agent made beside the project, or one of them
    Artifacts {
        id: String,
        path: Option<String>,
        /// Write it to this file instead of showing it
        #[arg(short, long, value_name = "FILE", requires = "path")]
        out: Option<PathBuf>,
        /// As they were at this checkpoint
        #[arg(long, value_name = "N")]
        checkpoint: Option<u64>,
    },
    /// What changed in its workspace: since a folder was copied in, since a checkpoint, or between two
    Diff {
        id: String,
        /// Count from this checkpoint
        #[arg(value_name = "N")]
        from: Option<u64>,
        /// Compare with this one [default: the files as they are now]
        #[arg(value_name = "M")]
        to: Option<u64>,
        /// Names only
        #[arg(long)]
        name_only: bool,
    },
    /// Bring the changes back into a folder
    Pull {
        id: String,
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Overwrite files that were changed here too
        #[arg(long)]
        force: bool,
    },
    /// Copy a folder into its workspace
    Push {
        id: String,
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Copy what .gitignore names too, and .git
        #[arg(long)]
        all: bool,
    },
}

#[derive(Args)]
pub(crate) struct SessionOptionArgs {
    /// An option, as the API names it; the value is JSON or text: -o reasoningEffort=high -o 'availableTools=["Read"]'
    #[arg(short, long = "option", value_name = "NAME=VALUE")]
    pub(crate) option: Vec<String>,
    /// Options as a JSON object in a file, or - for standard input: for keys, which others would see in an argument
    #[arg(long, value_name = "FILE")]
    pub(crate) options: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ListSessionsArgs {
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// Which are so
    #[arg(long, value_parser = SessionStatus::ALL.map(SessionStatus::as_str))]
    pub(crate) status: Option<String>,
    /// In this shared workspace
    #[arg(short, long, value_name = "NAME")]
    pub(crate) workspace: Option<String>,
    /// Whose id begins so
    #[arg(long, value_name = "PREFIX")]
    pub(crate) id_prefix: Option<String>,
    #[arg(long)]
    pub(crate) owner: Option<String>,
    /// On which this is noted
    #[arg(short, long = "metadata", value_name = "NAME=VALUE")]
    pub(crate) metadata: Vec<String>,
    /// Last active longer ago, for example 24h or 7d
    #[arg(long, value_name = "DURATION", value_parser = values::age)]
    pub(crate) older_than: Option<String>,
    /// Last active since
    #[arg(long, value_name = "DURATION", value_parser = values::age)]
    pub(crate) newer_than: Option<String>,
    #[arg(long, default_value_t = 50, value_parser = values::limit())]
    pub(crate) limit: u32,
}

#[derive(Args)]
pub(crate) struct PruneArgs {
    /// Last active longer ago, for example 24h or 7d
    #[arg(long, value_name = "DURATION", value_parser = values::age)]
    pub(crate) older_than: String,
    /// Only those that are so; sessions at work are left alone
    #[arg(long, value_parser = values::RESTING)]
    pub(crate) status: Option<String>,
    #[arg(long)]
    pub(crate) owner: Option<String>,
    /// And put them in the trash, also those that have ended
    #[arg(long)]
    pub(crate) purge: bool,
    /// Say what would go, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}
