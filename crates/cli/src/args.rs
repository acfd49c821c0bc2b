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
    /// Talk to an agent; Ctrl-C interrupts the turn, a second one exits
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
    /// The audit log, newest first: who created, changed, removed, ran, deployed or permitted what, and refused keys
    Audit {
        #[command(flatten)]
        settings: ClientSettings,
        /// Only this session
        #[arg(long, value_name = "ID")]
        session: Option<String>,
        /// Only after this: an age such as 24h or 7d, or a time
        #[arg(long, value_name = "WHEN", value_parser = values::when)]
        since: Option<String>,
        #[arg(long, default_value_t = 50, value_parser = values::limit())]
        limit: u32,
    },
    /// Usage of models and its cost
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
    /// List sessions; with --from the sessions in an object store, without restoring them
    Sessions {
        #[command(flatten)]
        settings: ClientSettings,
        /// URL of the object store: s3://bucket/prefix, gs://…, az://…, file:///…; credentials come from the
        /// environment
        #[arg(long, value_name = "URL")]
        from: Option<String>,
    },
    /// Rebuild agents, sessions and their files on an empty machine from an object store
    Restore {
        /// URL of the object store: s3://bucket/prefix, gs://…, az://…, file:///…; credentials come from the
        /// environment
        #[arg(long, value_name = "URL")]
        from: String,
        /// Fetch files only when a session is resumed; the server then needs ASH_SNAPSHOT_URL
        #[arg(long)]
        lazy: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Repair the database from packs and the object store; no server may run
    ///
    /// Without --yes it only prints what it would do.
    Repair {
        /// Apply the repair
        #[arg(long)]
        yes: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run the server in the foreground
    Serve(Box<ServeArgs>),
    /// Start the server in the background
    Start(DaemonArgs),
    /// Stop the server: turns get 10 s, every session is saved and paused
    Stop,
    /// Restart the server; sandboxes and their turns continue meanwhile
    Restart(DaemonArgs),
    /// Show the state of the server
    Status(ClientArgs),
    /// Show the log of the server in the background
    Logs {
        /// Follow the log
        #[arg(short, long)]
        follow: bool,
    },
    /// Show the server's health as JSON
    Health(ClientArgs),
    /// Check this machine and the running server, with a remedy for each problem
    Doctor(ClientArgs),
    /// Use another server from now on, with the key in ASH_API_KEY
    Link {
        /// URL of the server, for example https://ash.example.com
        url: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Use the local server again
    Unlink,
    /// Tools for tests and demonstrations
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
    /// What to log, in the syntax of RUST_LOG
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
    /// Take over the object store at once from another server that has claimed it
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Set an environment variable of the server; keys are taken from this shell's environment
    #[arg(short, long = "env", value_name = "NAME=VALUE", value_parser = values::Setting)]
    pub(crate) env: Vec<String>,
}

#[derive(Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) settings: ClientSettings,
    /// Name of the agent [default: default, or the session's agent]
    pub(crate) agent: Option<String>,
    /// Send this message, print the answer, and exit
    pub(crate) message: Option<String>,
    /// Resume a session (without an id: the last one)
    #[arg(short, long, value_name = "ID", num_args = 0..=1, default_missing_value = "")]
    pub(crate) resume: Option<String>,
    /// Use the session with this id
    #[arg(short, long, value_name = "ID", conflicts_with = "resume")]
    pub(crate) session_id: Option<String>,
    /// Copy a folder into the workspace first
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Include .git and files that .gitignore excludes
    #[arg(long, requires = "dir")]
    pub(crate) all: bool,
    /// End the session afterwards
    #[arg(long)]
    pub(crate) end: bool,
}

#[derive(Subcommand)]
pub(crate) enum WorkspaceCommand {
    /// Create a workspace for the sessions of one agent
    Create {
        /// Lowercase letters, digits and '-'
        name: String,
        #[arg(long, default_value = "default")]
        agent: String,
    },
    /// List all workspaces
    List,
    /// Show a workspace and its sessions
    Info { name: String },
    /// End the sandbox and delete the files for good; conversations stay readable
    Delete { name: String },
    /// List the files
    Files { name: String },
    /// List the checkpoints, newest first
    Checkpoints { name: String },
}

#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a key; it is shown once
    Create {
        #[arg(long)]
        label: Option<String>,
        /// Restrict the key to this owner's sessions and workspaces [default: everything of the tenant]
        #[arg(long)]
        owner: Option<String>,
    },
    /// List all keys, without their secrets
    List,
    /// Delete a key; requests with it are refused from now on
    Delete { id: String },
}

#[derive(Args)]
pub(crate) struct DeployArgs {
    #[command(flatten)]
    pub(crate) settings: ClientSettings,
    /// Folder of the agent, with CLAUDE.md, AGENTS.md or ash.toml
    pub(crate) path: PathBuf,
    /// Name of the agent [default: the folder's]
    #[arg(short, long)]
    pub(crate) name: Option<String>,
    /// Environment variable of its sessions; NAME alone takes the shell's value; .env and .env.local are read too
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
}

#[derive(Subcommand)]
pub(crate) enum AgentCommand {
    /// List all agents
    List,
    /// Show one agent
    Info { name: String },
    /// Delete an agent; its sessions continue, only new ones are refused
    Delete { name: String },
}

#[derive(Subcommand)]
pub(crate) enum DevCommand {
    /// Run a Messages API that answers from a script or from directives, without a model
    ModelServer(ModelServerArgs),
    /// Make stopped sessions in the data directory, for benchmarks of lists; no server may run on it
    Fill {
        /// How many
        #[arg(long, value_name = "N")]
        sessions: usize,
    },
}

#[derive(Args)]
pub(crate) struct ModelServerArgs {
    /// Address to listen on (port 0: any free one)
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", conflicts_with = "unix")]
    pub(crate) listen: SocketAddr,
    /// Unix socket to listen on instead
    #[arg(long, value_name = "PATH")]
    pub(crate) unix: Option<PathBuf>,
    /// Script with rules for the answers: a JSON list, or one rule per line
    #[arg(long, value_name = "FILE")]
    pub(crate) script: Option<PathBuf>,
    /// Write every request to this file as a line of JSON, before it is answered
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Refuse requests with more tokens than this, the room for the answer included, as a model does
    #[arg(long, value_name = "TOKENS")]
    pub(crate) window: Option<u64>,
}

#[derive(Args)]
pub(crate) struct UsageArgs {
    /// Group by turn, session, agent, owner, model or day
    #[arg(long, default_value = "session", value_parser = ["turn", "session", "agent", "owner", "model", "day"])]
    pub(crate) by: String,
    /// Only this session
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Only this agent's sessions
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// Only this owner's sessions
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: Option<String>,
    /// Only after this: an age such as 24h or 7d, or a time
    #[arg(long, value_name = "WHEN", value_parser = values::when)]
    pub(crate) since: Option<String>,
    /// Only before this: an age or a time
    #[arg(long, value_name = "WHEN", value_parser = values::when)]
    pub(crate) until: Option<String>,
    #[arg(long, default_value_t = 100, value_parser = values::limit())]
    pub(crate) limit: u32,
}

#[cfg(test)]
mod tests {
    use super::CliArgs;
    use clap::CommandFactory;

    /// The text of `docs/configuration.md`, generated from the clap definitions so that it matches the settings.
    fn page() -> String {
        let command = CliArgs::command();
        let serve = command.find_subcommand("serve").expect("serve");
        let mut page =
            "# Configuration\n\nEvery setting of `ash serve`, as a flag and as an environment variable. Secrets have no flag. \
            (Generated from the code by `UPDATE_DOCS=1 cargo test -p ash-cli --bin ash configuration_page`.)\n\n\
            At the start the server refuses a setting with which it cannot work. The message names the variable, the allowed values and \
            the remedy. The maximum for seconds is 3153600000 (a hundred years).\n\n\
            | variable | flag | default | meaning |\n|---|---|---|---|\n"
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
            "\nThe client reads `ASH_SERVER_URL` and `ASH_API_KEY` (or `--server`, or the server that `ash link` saved in \
             `~/.ash/config.json`). Without them it uses the local server. `NO_COLOR` switches colours off.\n",
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
