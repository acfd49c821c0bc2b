//! The command line, as a table.

mod snapshot;

pub(crate) use snapshot::{Repository, Snapshot};

use crate::settings::Settings;
use clap::{Args, Parser, Subcommand};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

#[derive(Parser)]
#[command(
    name = "ash",
    version,
    about = "Keeps AI-agent sessions alive",
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Ash {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Talk to an agent; Ctrl-C interrupts its turn, a second one leaves
    Chat(Chat),
    /// Sessions: create, send, list, pause, resume, fork, …
    Session {
        #[command(flatten)]
        settings: Settings,
        #[command(subcommand)]
        command: Session,
    },
    /// Deploy a folder as an agent
    Deploy(Deploy),
    /// Agents: list, info, delete
    Agent {
        #[command(flatten)]
        settings: Settings,
        #[command(subcommand)]
        command: Agent,
    },
    /// Workspaces that several sessions share: create, list, info, delete, files, checkpoints
    Workspace {
        #[command(flatten)]
        settings: Settings,
        #[command(subcommand)]
        command: Workspace,
    },
    /// API keys: create, list, delete
    Key {
        #[command(flatten)]
        settings: Settings,
        #[command(subcommand)]
        command: Key,
    },
    /// Who ordered what: every deletion, and every key made or removed, newest first
    Audit {
        #[command(flatten)]
        settings: Settings,
        /// Only of this session
        #[arg(long, value_name = "ID")]
        session: Option<String>,
        /// Not before this: how long ago, as 24h or 7d, or a time
        #[arg(long, value_name = "WHEN")]
        since: Option<String>,
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// What models' answers used, and what that costs
    Usage {
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        usage: Spent,
    },
    /// Snapshots of any folder, without a server: save, list, restore, diff, verify, gc, …
    Snapshot {
        #[command(flatten)]
        place: Repository,
        #[command(subcommand)]
        command: Snapshot,
    },
    /// List sessions; with --from those in an object store, without restoring anything
    Sessions {
        #[command(flatten)]
        settings: Settings,
        /// s3://bucket/prefix, gs://…, az://…, file:///…; credentials come from the environment
        #[arg(long, value_name = "URL")]
        from: Option<String>,
    },
    /// Rebuild agents, sessions and their files on an empty machine from an object store
    Restore {
        /// s3://bucket/prefix, gs://…, az://…, file:///…; credentials come from the environment
        #[arg(long, value_name = "URL")]
        from: String,
        /// Leave files there until a session is resumed; the server then needs ASH_SNAPSHOT_URL
        #[arg(long)]
        lazy: bool,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Bring back what packs and the object store know better than the database; no server may run
    ///
    /// Without --yes it only says what it would do.
    Repair {
        /// Do it
        #[arg(long)]
        yes: bool,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Run the server here
    Serve(Box<Serve>),
    /// Start the server in the background
    Start(Daemon),
    /// Stop it: turns get 10 s, every session is saved and paused
    Stop,
    /// Restart it; sandboxes and their turns go on meanwhile
    Restart(Daemon),
    /// How the server is
    Status(Client),
    /// What the server in the background logged
    Logs {
        /// Go on as it grows
        #[arg(short, long)]
        follow: bool,
    },
    /// The server's health
    Health(Client),
    /// Check this machine: what works, and what to do about what does not
    Doctor(Client),
    /// Talk to another server from now on, with the key in ASH_API_KEY
    Link {
        /// Its address, for example https://ash.example.com
        url: String,
        #[command(flatten)]
        client: Client,
    },
    /// Talk to the local server again
    Unlink,
    /// What tests and demonstrations play against
    Dev {
        #[command(subcommand)]
        command: Dev,
    },
    /// Print completions for a shell
    Completions { shell: clap_complete::Shell },
}

#[derive(Args)]
pub(crate) struct Client {
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) config: ash_server::Config,
    /// What to log, as in RUST_LOG
    #[arg(long, env = "ASH_LOG", default_value = "info")]
    pub(crate) log: String,
    /// Log as JSON lines
    #[arg(long, env = "ASH_LOG_JSON")]
    pub(crate) log_json: bool,
}

#[derive(Args)]
pub(crate) struct Daemon {
    /// Port to listen on
    #[arg(long, env = "ASH_PORT")]
    pub(crate) port: Option<u16>,
    /// Take the object store over from another server that has claimed it, at once
    #[arg(long)]
    pub(crate) take_over: bool,
    /// A setting of the server, as an environment variable
    #[arg(short, long = "env", value_name = "KEY=VALUE")]
    pub(crate) env: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// The agent
    #[arg(default_value = "default")]
    pub(crate) agent: String,
    /// Say this, print the answer, and leave
    pub(crate) message: Option<String>,
    /// Come back to a session (the last one, if no id is given)
    #[arg(short, long, value_name = "ID", num_args = 0..=1, default_missing_value = "")]
    pub(crate) resume: Option<String>,
    /// Use this session
    #[arg(short, long, value_name = "ID", conflicts_with = "resume")]
    pub(crate) session_id: Option<String>,
    /// Copy a folder into the workspace first
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Copy what .gitignore names too, and .git
    #[arg(long, requires = "dir")]
    pub(crate) all: bool,
    /// End the session afterwards
    #[arg(long)]
    pub(crate) end: bool,
}

#[derive(Subcommand)]
pub(crate) enum Workspace {
    /// Make one, for the sessions of one agent
    Create {
        /// Lowercase letters, digits and '-'
        name: String,
        #[arg(long, default_value = "default")]
        agent: String,
    },
    /// All of them
    List,
    /// One, with its sessions
    Info { name: String },
    /// End its sandbox and remove its files for good; conversations stay readable
    Delete { name: String },
    /// What is in it
    Files { name: String },
    /// Its checkpoints, newest first
    Checkpoints { name: String },
}

#[derive(Subcommand)]
pub(crate) enum Session {
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
        #[arg(long, value_name = "DURATION", value_parser = ash_model::duration)]
        ttl: Option<Duration>,
        /// What needs leave: bypassPermissions (nothing), default, acceptEdits, plan or dontAsk
        #[arg(long, value_name = "MODE")]
        permission_mode: Option<String>,
        #[command(flatten)]
        options: Options,
        /// A variable for its environment
        #[arg(short, long = "env", value_name = "KEY=VALUE")]
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
        /// If it is at work: queue (wait in line), reject, interrupt or steer [default: as the session is set]
        #[arg(long, value_name = "HOW")]
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
        #[arg(long, value_name = "DURATION", value_parser = ash_model::duration, default_value = "60s")]
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
        options: Options,
    },
    /// All sessions, newest first
    List(Listing),
    /// Replace what is noted on it; without any, nothing is
    Label {
        id: String,
        #[arg(value_name = "NAME=VALUE")]
        metadata: Vec<String>,
    },
    /// End sessions that nobody has used for long; lists them and asks first
    Prune(Prune),
    /// One session
    Get { id: String },
    /// Save it and let it rest; its sandbox stays warm
    Pause { id: String },
    /// Bring it back, then follow it
    Resume {
        id: String,
        #[command(flatten)]
        options: Options,
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
        #[arg(long, default_value_t = 50)]
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
        /// Milliseconds
        #[arg(long, default_value_t = 30_000)]
        timeout: u64,
    },
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
pub(crate) struct Options {
    /// An option, as the API names it; the value is JSON or text: -o reasoningEffort=high -o 'availableTools=["Read"]'
    #[arg(short, long = "option", value_name = "NAME=VALUE")]
    pub(crate) option: Vec<String>,
    /// Options as a JSON object in a file, or - for standard input: for keys, which others would see in an argument
    #[arg(long, value_name = "FILE")]
    pub(crate) options: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Listing {
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// starting, active, paused, stopped, error or ended
    #[arg(long)]
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
    #[arg(long, value_name = "DURATION")]
    pub(crate) older_than: Option<String>,
    /// Last active since
    #[arg(long, value_name = "DURATION")]
    pub(crate) newer_than: Option<String>,
    #[arg(long, default_value_t = 50)]
    pub(crate) limit: u32,
}

#[derive(Args)]
pub(crate) struct Prune {
    /// Last active longer ago, for example 24h or 7d
    #[arg(long, value_name = "DURATION")]
    pub(crate) older_than: String,
    /// Only those that are paused, stopped, error or ended
    #[arg(long)]
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

#[derive(Subcommand)]
pub(crate) enum Key {
    /// Make one; it is shown once
    Create {
        #[arg(long)]
        label: Option<String>,
        /// It opens only what belongs to this owner [default: everything of the tenant]
        #[arg(long)]
        owner: Option<String>,
    },
    /// All of them, without their texts
    List,
    /// Whoever has it is locked out from now on
    Delete { id: String },
}

/// Where snapshots are kept.
#[derive(Args)]
pub(crate) struct Deploy {
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// The agent's folder, with CLAUDE.md, AGENTS.md or ash.toml
    pub(crate) path: PathBuf,
    /// Its name [default: the folder's]
    #[arg(short, long)]
    pub(crate) name: Option<String>,
    /// A variable for the environment of its sessions; .env and .env.local are read too
    #[arg(short, long = "env", value_name = "KEY=VALUE")]
    pub(crate) env: Vec<String>,
}

#[derive(Subcommand)]
pub(crate) enum Agent {
    /// All agents
    List,
    /// One agent
    Info { name: String },
    /// Delete one; its sessions stay readable
    Delete { name: String },
}

#[derive(Subcommand)]
pub(crate) enum Dev {
    /// A Messages API that answers from a script, or by itself, without any model
    ModelServer(ModelServer),
}

#[derive(Args)]
pub(crate) struct ModelServer {
    /// Listen here; with port 0 on any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", conflicts_with = "unix")]
    pub(crate) listen: SocketAddr,
    /// Listen on this socket instead
    #[arg(long, value_name = "PATH")]
    pub(crate) unix: Option<PathBuf>,
    /// Rules for what to answer: a JSON list, or one per line
    #[arg(long, value_name = "FILE")]
    pub(crate) script: Option<PathBuf>,
    /// Write every request here, a line of JSON each, before it is answered
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Refuse what has more tokens than this, with the room for its answer, as a model does
    #[arg(long, value_name = "TOKENS")]
    pub(crate) window: Option<u64>,
}

#[derive(Args)]
pub(crate) struct Spent {
    /// What is summed apart: turn, session, agent, owner, model or day
    #[arg(long, default_value = "session", value_parser = ["turn", "session", "agent", "owner", "model", "day"])]
    pub(crate) by: String,
    /// Only of this session
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Only of this agent's sessions
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// Only of this owner's sessions
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: Option<String>,
    /// Not before this: how long ago, as 24h or 7d, or a time
    #[arg(long, value_name = "WHEN")]
    pub(crate) since: Option<String>,
    /// Before this
    #[arg(long, value_name = "WHEN")]
    pub(crate) until: Option<String>,
    #[arg(long, default_value_t = 100)]
    pub(crate) limit: u32,
}

#[cfg(test)]
mod tests {
    use super::Ash;
    use clap::CommandFactory;

    /// `docs/configuration.md`, made from the settings themselves.
    fn page() -> String {
        let command = Ash::command();
        let serve = command.find_subcommand("serve").expect("serve");
        let mut page =
            "# Configuration\n\nEvery setting of `ash serve`, as a flag and as an environment variable; secrets as variables alone. \
            (Made from the code; `UPDATE_DOCS=1 cargo test -p ash-cli` makes it anew.)\n\n\
            | variable | flag | default | what it is |\n|---|---|---|---|\n"
                .to_owned();
        for (variable, help) in ash_server::SECRETS {
            page.push_str(&format!("| `{variable}` |  |  | {help} |\n"));
        }
        for arg in serve.get_arguments() {
            let (Some(env), Some(flag)) = (arg.get_env(), arg.get_long()) else { continue };
            let defaults: Vec<String> =
                arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default().replace('|', "\\|");
            page.push_str(&format!(
                "| `{}` | `--{flag}` | {} | {help} |\n",
                env.to_string_lossy(),
                defaults.join(" ")
            ));
        }
        page.push_str(
            "\nThe client reads `ASH_SERVER_URL` and `ASH_API_KEY` (or `--server`, or what `ash link` saved in \
             `~/.ash/config.json`), and finds a local server by itself. `NO_COLOR` switches colours off.\n",
        );
        page
    }

    #[test]
    fn the_configuration_page_is_as_the_code_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, page()).expect("write");
        }
        assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), page(), "run it with UPDATE_DOCS=1");
    }

    #[test]
    fn the_command_line_is_consistent() {
        Ash::command().debug_assert();
    }
}
