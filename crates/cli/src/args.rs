//! The command line, as a table.

mod session;
mod snapshot;
mod values;
mod variables;

pub(crate) use session::{ListSessionsArgs, PruneArgs, SessionCommand, SessionOptionArgs};
pub(crate) use snapshot::{RepositoryArgs, SnapshotCommand};
pub(crate) use values::NoKey;
pub(crate) use variables::parse;

use crate::settings::ClientSettings;
use clap::{Args, Parser, Subcommand};
use std::{net::SocketAddr, path::PathBuf};

#[derive(Parser)]
#[command(
    name = "ash",
    version,
    about = "Keeps AI-agent sessions alive",
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct CliArgs {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Subcommand)]
pub(crate) enum CliCommand {
    /// Talk to an agent; Ctrl-C interrupts its turn, a second one leaves
    Chat(ChatArgs),
    /// Sessions: create, send, list, pause, resume, fork, …
    Session {
        #[command(flatten)]
        settings: ClientSettings,
        #[command(subcommand)]
        command: SessionCommand,
    },
    /// Deploy a folder as an agent
    Deploy(DeployArgs),
    /// Agents: list, info, delete
    Agent {
        #[command(flatten)]
        settings: ClientSettings,
        #[command(subcommand)]
        command: AgentCommand,
    },
    /// Workspaces that several sessions share: create, list, info, delete, files, checkpoints
    Workspace {
        #[command(flatten)]
        settings: ClientSettings,
        #[command(subcommand)]
        command: WorkspaceCommand,
    },
    /// API keys: create, list, delete
    Key {
        #[command(flatten)]
        settings: ClientSettings,
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Who ordered what, newest first: sessions and keys made or removed, deploys, commands, changes, permission answers, refused keys
    Audit {
        #[command(flatten)]
        settings: ClientSettings,
        /// Only of this session
        #[arg(long, value_name = "ID")]
        session: Option<String>,
        /// Not before this: how long ago, as 24h or 7d, or a time
        #[arg(long, value_name = "WHEN", value_parser = values::when)]
        since: Option<String>,
        #[arg(long, default_value_t = 50, value_parser = values::limit())]
        limit: u32,
    },
    /// What models' answers used, and what that costs
    Usage {
        #[command(flatten)]
        settings: ClientSettings,
        #[command(flatten)]
        usage: UsageArgs,
    },
    /// Snapshots of any folder, without a server: save, list, restore, diff, verify, gc, …
    Snapshot {
        #[command(flatten)]
        place: RepositoryArgs,
        #[command(subcommand)]
        command: SnapshotCommand,
    },
    /// List sessions; with --from those in an object store, without restoring anything
    Sessions {
        #[command(flatten)]
        settings: ClientSettings,
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
    Serve(Box<ServeArgs>),
    /// Start the server in the background
    Start(DaemonArgs),
    /// Stop it: turns get 10 s, every session is saved and paused
    Stop,
    /// Restart it; sandboxes and their turns go on meanwhile
    Restart(DaemonArgs),
    /// How the server is
    Status(ClientArgs),
    /// What the server in the background logged
    Logs {
        /// Go on as it grows
        #[arg(short, long)]
        follow: bool,
    },
    /// The server's health
    Health(ClientArgs),
    /// Check this machine: what works, and what to do about what does not
    Doctor(ClientArgs),
    /// Talk to another server from now on, with the key in ASH_API_KEY
    Link {
        /// Its address, for example https://ash.example.com
        url: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Talk to the local server again
    Unlink,
    /// What tests and demonstrations play against
    Dev {
        #[command(subcommand)]
        command: DevCommand,
    },
    /// Print completions for a shell
    Completions { shell: clap_complete::Shell },
}

#[derive(Args)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    pub(crate) settings: ClientSettings,
}

#[derive(Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) config: ash_server::ServerConfig,
    /// What to log, as in RUST_LOG
    #[arg(long, env = "ASH_LOG", default_value = "info")]
    pub(crate) log: String,
    /// Log as JSON lines
    #[arg(long, env = "ASH_LOG_JSON")]
    pub(crate) log_json: bool,
}

#[derive(Args)]
pub(crate) struct DaemonArgs {
    /// Port to listen on
    #[arg(long, env = "ASH_PORT")]
    pub(crate) port: Option<u16>,
    /// Take the object store over from another server that has claimed it, at once
    #[arg(long)]
    pub(crate) take_over: bool,
    /// A setting of the server, as an environment variable; keys it takes from this shell's environment
    #[arg(short, long = "env", value_name = "NAME=VALUE", value_parser = values::Setting)]
    pub(crate) env: Vec<String>,
}

#[derive(Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) settings: ClientSettings,
    /// The agent [default: default, or that of the session]
    pub(crate) agent: Option<String>,
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
pub(crate) enum WorkspaceCommand {
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
pub(crate) enum KeyCommand {
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

#[derive(Args)]
pub(crate) struct DeployArgs {
    #[command(flatten)]
    pub(crate) settings: ClientSettings,
    /// The agent's folder, with CLAUDE.md, AGENTS.md or ash.toml
    pub(crate) path: PathBuf,
    /// Its name [default: the folder's]
    #[arg(short, long)]
    pub(crate) name: Option<String>,
    /// A variable for the environment of its sessions, with NAME alone that of this shell; .env and .env.local are read too
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
}

#[derive(Subcommand)]
pub(crate) enum AgentCommand {
    /// All agents
    List,
    /// One agent
    Info { name: String },
    /// Delete one; its sessions go on, and only new ones of it are refused
    Delete { name: String },
}

#[derive(Subcommand)]
pub(crate) enum DevCommand {
    /// A Messages API that answers from a script, or by itself, without any model
    ModelServer(ModelServerArgs),
}

#[derive(Args)]
pub(crate) struct ModelServerArgs {
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
pub(crate) struct UsageArgs {
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
    #[arg(long, value_name = "WHEN", value_parser = values::when)]
    pub(crate) since: Option<String>,
    /// Before this
    #[arg(long, value_name = "WHEN", value_parser = values::when)]
    pub(crate) until: Option<String>,
    #[arg(long, default_value_t = 100, value_parser = values::limit())]
    pub(crate) limit: u32,
}

#[cfg(test)]
mod tests {
    use super::CliArgs;
    use clap::CommandFactory;

    /// `docs/configuration.md`, made from the settings themselves.
    fn page() -> String {
        let command = CliArgs::command();
        let serve = command.find_subcommand("serve").expect("serve");
        let mut page =
            "# Configuration\n\nEvery setting of `ash serve`, as a flag and as an environment variable; secrets as variables alone. \
            (Made from the code; `UPDATE_DOCS=1 cargo test -p ash-cli` makes it anew.)\n\n\
            A setting with which the server would be of no use is refused at the start, with its variable, the values that it takes, and \
            what to do. Seconds go up to 3153600000 (a hundred years).\n\n\
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
        CliArgs::command().debug_assert();
    }
}
