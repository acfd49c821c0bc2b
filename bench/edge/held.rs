//! Holds connections whose clients have stopped, in processes of their own, because one process may not open as many
//! files.

use crate::{process::open_many_files, server::KEY};
use anyhow::{Context, Result, ensure};
use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(30);
/// The client stops after this many bytes of a 100 MiB file, which it sends as base64 in JSON.
const SENT: usize = 12 << 20;
const FILE: usize = 140_000_000;

/// Where a client stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Stop {
    /// In rotation: no byte, half a header, a whole request and its response.
    Idle,
    /// In the middle of downloading a large file.
    Reading,
    /// In the middle of uploading a large file.
    Sending,
}

#[derive(clap::Args)]
pub(crate) struct Holding {
    /// Be a process that holds connections to this address
    #[arg(long, hide = true)]
    pub(crate) hold: Option<SocketAddr>,
    #[arg(long, hide = true, default_value_t = 0)]
    count: usize,
    #[arg(long, hide = true, value_enum, default_value_t = Stop::Idle)]
    stop: Stop,
    #[arg(long, hide = true, default_value = "")]
    session: String,
}

/// A process that holds connections until this value is dropped.
pub(crate) struct Holder {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Holder {
    /// Returns when every client of the process has reached the place where it stops.
    pub(crate) fn start(address: SocketAddr, count: usize, stop: Stop, session: &str) -> Result<Holder> {
        let stop = match stop {
            Stop::Idle => "idle",
            Stop::Reading => "reading",
            Stop::Sending => "sending",
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--hold", &address.to_string(), "--count", &count.to_string(), "--stop", stop]);
        let mut child =
            command.args(["--session", session]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut holder = Holder { child, said };
        holder.hear()?;
        Ok(holder)
    }

    /// How many of its connections the server has not closed.
    pub(crate) fn open(&mut self) -> Result<usize> {
        self.child.stdin.as_mut().context("a pipe")?.write_all(b"?\n")?;
        self.hear()
    }

    fn hear(&mut self) -> Result<usize> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        line.trim().parse().context("a process that holds connections failed")
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What the process of a `Holder` runs.
pub(crate) fn hold(address: SocketAddr, asked: &Holding) -> Result<()> {
    open_many_files()?;
    let mut sockets = Vec::new();
    for number in 0..asked.count {
        sockets.push(stopped(address, number, asked)?);
    }
    println!("{}", sockets.len());
    for line in std::io::stdin().lines() {
        line?;
        println!("{}", sockets.iter_mut().filter_map(|socket| is_open(socket).then_some(())).count());
    }
    Ok(())
}

fn stopped(address: SocketAddr, number: usize, asked: &Holding) -> Result<TcpStream> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let session = &asked.session;
    let head = format!("host: localhost\r\nauthorization: Bearer {KEY}\r\n");
    match asked.stop {
        Stop::Idle => idle(&mut socket, number)?,
        Stop::Reading => {
            write!(socket, "GET /api/sessions/{session}/files/big HTTP/1.1\r\n{head}\r\n")?;
            socket.peek(&mut [0])?;
        }
        Stop::Sending => {
            let length =
                format!("content-length: {FILE}\r\n\r\n{{\"files\":[{{\"path\":\"x\",\"content\":\"");
            write!(socket, "POST /api/sessions/{session}/files HTTP/1.1\r\n{head}{length}")?;
            socket.write_all(&vec![b'A'; SENT])?;
        }
    }
    Ok(socket)
}

/// The server may close the connection meanwhile, so errors after connecting do not count.
fn idle(socket: &mut TcpStream, number: usize) -> Result<()> {
    match number % 3 {
        0 => {}
        1 => write!(socket, "GET /health HTTP/1.1\r\nhost: loc")?,
        _ => {
            write!(socket, "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
            let read = socket.read(&mut [0; 4096])?;
            ensure!(read > 0, "the server closed a connection instead of an answer");
        }
    }
    Ok(())
}

fn is_open(socket: &mut TcpStream) -> bool {
    socket.set_nonblocking(true).ok();
    loop {
        match socket.read(&mut [0; 4096]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}
