//! The binary `ash`. `serve` is the server, hidden commands are helper processes that it starts, and everything else is
//! a client.

#[macro_use]
mod terminal;

mod api;
mod args;
mod commands;
mod session_stream;
mod settings;
mod shell_messages;

use clap::CommandFactory;
use std::{ffi::OsString, process::ExitCode};
use terminal::{TerminalStyle, paint_err};

fn main() -> ExitCode {
    // Checked first: helper processes run once per sandbox, must start fast, and must not have threads.
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
    let command = args::parse().command;
    if !matches!(command, args::CliCommand::Serve(_)) {
        reset_sigpipe();
    }
    match command {
        args::CliCommand::Serve(serve) => commands::serve::run(*serve),
        // Without the async runtime of a client: this command must start as fast as git.
        args::CliCommand::Snapshot { place, command } => {
            exit_code_of(commands::snapshot::run(&place, command))
        }
        args::CliCommand::Completions { shell } => {
            clap_complete::generate(shell, &mut args::CliArgs::command(), "ash", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
        client => finish(client),
    }
}

/// `ash … | head` ends the process by SIGPIPE when the reader closes the pipe, as for other programs.
fn reset_sigpipe() {
    // SAFETY: SIG_DFL runs no code, and there is one thread.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

fn finish(command: args::CliCommand) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ran = match runtime {
        Ok(runtime) => runtime.block_on(commands::run(command)),
        Err(error) => Err(api::CliError::from_io("cannot start")(error)),
    };
    exit_code_of(ran)
}

fn exit_code_of(ran: api::Result<u8>) -> ExitCode {
    match ran {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("{} {failure}", paint_err(TerminalStyle::Red, "error:"));
            ExitCode::from(failure.exit_code())
        }
    }
}
