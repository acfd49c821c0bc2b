//! THE HAND: the binary `ash`. `serve` is the server; the hidden commands are what it starts of itself.

use clap::{Parser, Subcommand};
use std::{ffi::OsString, process::ExitCode};
use tracing_subscriber::EnvFilter;

#[derive(Parser)]
#[command(name = "ash", version, about = "Keeps AI-agent sessions alive")]
struct Ash {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server
    Serve(Box<Serve>),
}

#[derive(clap::Args)]
struct Serve {
    #[command(flatten)]
    config: ash_server::Config,
    /// What to log, as in RUST_LOG
    #[arg(long, env = "ASH_LOG", default_value = "info")]
    log: String,
    /// Log as JSON lines
    #[arg(long, env = "ASH_LOG_JSON")]
    log_json: bool,
}

fn main() -> ExitCode {
    // Looked at before anything else: these run once per sandbox, must be quick, and must not have threads.
    let mut args = std::env::args_os().skip(1);
    let inner: Option<fn(Vec<OsString>) -> i32> =
        match args.next().as_deref().and_then(|first| first.to_str()) {
            Some("shim") => Some(|_| ash_sandbox::shim_main()),
            Some("confine") => Some(ash_sandbox::confine_main),
            Some("builtin-agent") => Some(ash_agent::main),
            _ => None,
        };
    if let Some(inner) = inner {
        return ExitCode::from(u8::try_from(inner(args.collect())).unwrap_or(1));
    }
    match Ash::parse().command {
        Command::Serve(serve) => run(*serve),
    }
}

fn run(serve: Serve) -> ExitCode {
    let filter = EnvFilter::try_new(&serve.log).unwrap_or_else(|_| EnvFilter::new("info"));
    let logging = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if serve.log_json {
        logging.json().init();
    } else {
        let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
        logging.with_target(false).with_ansi(colours).init();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let served = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| Ok(runtime.block_on(ash_server::serve(serve.config))?));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ash: {error:#}");
            ExitCode::FAILURE
        }
    }
}
