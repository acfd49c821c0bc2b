//! `ash serve`: runs the server in the foreground, with its logging and its memory protection.

use crate::args::ServeArgs;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

pub(crate) fn run(mut serve: ServeArgs) -> ExitCode {
    serve.config.settings_by_flag = super::doctor::settings_by_flag();
    // Before the process reads a key.
    if let Err(error) = ash_sandbox::keep_memory_private() {
        eprintln!("ash: the server's memory cannot be kept private: {error}");
        return ExitCode::FAILURE;
    }
    let filter = EnvFilter::try_new(&serve.log).unwrap_or_else(|_| EnvFilter::new("info"));
    let logging = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if serve.log_json {
        logging.json().init();
    } else {
        let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
        logging.with_target(false).with_ansi(colours).init();
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = ash_server::watch_poll_times(&mut runtime).enable_all().build();
    let served = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        runtime.block_on(ash_server::serve(serve.config)).map_err(|error| error.to_string())
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ash: {error}");
            ExitCode::FAILURE
        }
    }
}
