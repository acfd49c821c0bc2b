//! Controls the server in the background: start, stop, restart, status, logs.

use super::parse_key_values;
use crate::{
    api::{ApiClient, CliError, Result},
    args::DaemonArgs,
    settings::{ClientSettings, RunningServer, data_dir, running_server},
    terminal::{self, TerminalStyle, paint},
};
use ash_model::FailureKind;
use std::{
    fs,
    io::{Read, Seek},
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tokio::time::Instant;

const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Running turns get ten seconds, and captures may take longer.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);
const PREVIOUS_EXIT_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

fn place() -> Result<PathBuf> {
    data_dir().ok_or_else(|| CliError::invalid("HOME is not set: name the data directory with ASH_DATA_DIR"))
}

fn log_file(data: &Path) -> PathBuf {
    data.join("server.log")
}

pub(crate) async fn start(daemon: DaemonArgs) -> Result<()> {
    let data = place()?;
    if let Some(running) = wait_for_previous_exit().await {
        eprintln!("ash {} is running already at {} (pid {})", running.version, running.url, running.pid);
        if !daemon.env.is_empty() || daemon.port.is_some() || daemon.take_over {
            eprintln!(
                "{} nothing was changed: -e, --port and --take-over take effect only when a server starts. `ash restart` with the same flags restarts it with them; its sessions continue",
                terminal::paint_err(TerminalStyle::Yellow, "!")
            );
        }
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&data)
        .map_err(CliError::from_io("cannot make the data directory"))?;
    let spinner = terminal::spinner("starting the server");
    let pid = spawn(&daemon, &data)?;
    let started = wait_until_up(pid, &data).await;
    spinner.finish_and_clear();
    let running = started?;
    eprintln!(
        "{} ash {} at {} (pid {})",
        terminal::paint_err(TerminalStyle::Green, "✓"),
        running.version,
        running.url,
        running.pid
    );
    Ok(())
}

/// A killed server holds its lock for a moment longer. A server that answers is alive.
async fn wait_for_previous_exit() -> Option<RunningServer> {
    let until = Instant::now() + PREVIOUS_EXIT_TIMEOUT;
    loop {
        let running = running_server()?;
        let settings = ClientSettings::without_key(running.url.clone());
        if ApiClient::new(&settings).get("/health").await.is_ok() || Instant::now() >= until {
            return Some(running);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn spawn(daemon: &DaemonArgs, data: &Path) -> Result<u32> {
    let exe = std::env::current_exe().map_err(CliError::from_io("cannot find my own program"))?;
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log_file(data))
        .map_err(CliError::from_io("cannot open the log"))?;
    let mut command = Command::new(exe);
    command.arg("serve").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).current_dir("/");
    // Its own process group: Ctrl-C in this terminal must not stop the server.
    command.process_group(0);
    command.envs(parse_key_values(&daemon.env)?);
    if let Some(port) = daemon.port {
        command.env("ASH_PORT", port.to_string());
    }
    if daemon.take_over {
        command.arg("--take-over");
    }
    let child = command.spawn().map_err(CliError::from_io("cannot start the server"))?;
    Ok(child.id())
}

async fn wait_until_up(pid: u32, data: &Path) -> Result<RunningServer> {
    let until = Instant::now() + START_TIMEOUT;
    loop {
        if let Some(running) = running_server().filter(|running| running.pid == pid) {
            return Ok(running);
        }
        let ended = !Path::new(&format!("/proc/{pid}")).exists() || is_zombie(pid);
        if ended || Instant::now() >= until {
            let last = last_lines(&log_file(data), 5);
            let message =
                format!("the server did not start. The end of {}:\n{last}", log_file(data).display());
            return Err(CliError::new(FailureKind::Unavailable, message));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn is_zombie(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

fn last_lines(file: &Path, count: usize) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

pub(crate) async fn stop() -> Result<()> {
    let Some(running) = running_server() else {
        eprintln!("no server is running here");
        return Ok(());
    };
    let spinner = terminal::spinner("stopping: running turns get 10 s, then every session is saved");
    end(running.pid, libc::SIGTERM).await?;
    spinner.finish_and_clear();
    eprintln!("{} stopped; every session is saved", terminal::paint_err(TerminalStyle::Green, "✓"));
    Ok(())
}

pub(crate) async fn restart(daemon: DaemonArgs) -> Result<()> {
    if let Some(running) = running_server() {
        // Unlike a stop, SIGHUP leaves the sandboxes to the next server.
        end(running.pid, libc::SIGHUP).await?;
    }
    start(daemon).await
}

async fn end(pid: u32, signal: i32) -> Result<()> {
    let Ok(target) = i32::try_from(pid) else { return Ok(()) };
    // SAFETY: kill has no memory effects; the pid is of the server that wrote the note in our data directory.
    if unsafe { libc::kill(target, signal) } != 0 {
        return Err(CliError::from_io("cannot signal the server")(std::io::Error::last_os_error()));
    }
    let until = Instant::now() + STOP_TIMEOUT;
    while Path::new(&format!("/proc/{pid}")).exists() && !is_zombie(pid) {
        if Instant::now() >= until {
            return Err(CliError::new(
                FailureKind::Unavailable,
                format!("the server (pid {pid}) does not stop; see `ash logs`"),
            ));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

pub(crate) async fn status(settings: &ClientSettings) -> Result<()> {
    let health = ApiClient::new(settings).get("/health").await?;
    if settings.json {
        terminal::json(&health);
        return Ok(());
    }
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    println!(
        "{} at {}",
        terminal::status(health["status"].as_str().unwrap_or("?")),
        settings.server_url().unwrap_or_default()
    );
    let own = running_server().filter(|own| Some(&own.url) == settings.server_url().as_ref());
    if let Some(running) = own {
        println!("  pid       {}", running.pid);
    }
    println!("  version   {}", health["version"].as_str().unwrap_or("?"));
    println!("  up        {}", duration(number(&health["uptime"])));
    println!("  sessions  {} active", number(&health["activeSessions"]));
    let pool = &health["pool"];
    println!(
        "  sandboxes {} running, {} waiting, at most {}",
        number(&pool["running"]),
        number(&pool["waiting"]),
        number(&pool["maxCapacity"])
    );
    Ok(())
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        _ => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
    }
}

pub(crate) async fn health(settings: &ClientSettings) -> Result<()> {
    terminal::json(&ApiClient::new(settings).get("/health").await?);
    Ok(())
}

pub(crate) async fn logs(follow: bool) -> Result<()> {
    let path = log_file(&place()?);
    let mut file = fs::File::open(&path).map_err(|_| {
        CliError::new(
            FailureKind::NotFound,
            format!("there is no log at {}; `ash start` writes one", path.display()),
        )
    })?;
    loop {
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(CliError::from_io("cannot read the log"))?;
        if terminal::print_bytes(&text).is_err() || !follow {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        if file.metadata().map(|meta| meta.len()).unwrap_or(0) < file.stream_position().unwrap_or(0) {
            println!("{}", paint(TerminalStyle::Dim, "(the log was cut)"));
            file.rewind().map_err(CliError::from_io("cannot read the log"))?;
        }
    }
}
