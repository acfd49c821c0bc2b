//! The attempts of a hostile agent, as a program. Outside a sandbox each attempt must succeed; as the agent inside a
//! sandbox each must fail. `attacker LIST REPORT` reads one attempt per line: words separated by tabs, the first is the
//! name. Other arguments make it flood a reader or exceed a limit. With Claude Code's arguments, it is the agent.

mod agent;
mod bombs;
mod calls;
mod files;
mod network;
mod processes;

use std::{
    fs,
    io::{self, Read, Write},
    os::fd::FromRawFd,
    time::Duration,
};

/// What the attempt reached, or why it failed.
type Tried = io::Result<String>;
type Attempt = fn(&[String]) -> Tried;

/// Seconds. An attempt that hangs counts as failed.
const PATIENCE: u32 = 5;

/// Keeps what the bomb took for this long, so that periodic measurements see it. A sleep, because no event tells this
/// process that it was measured.
fn hold_on(time: Duration) {
    std::thread::sleep(time);
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["-p", ..] => agent::live(),
        ["bomb", ..] => bombs::go_off(&words[1..]),
        ["complain", count] => complain(count.parse().expect("a number")),
        ["euid"] => println!("euid {}", files::euid()),
        ["lines", count] => lines(count.parse().expect("a number")),
        ["endless", megabytes] => endless(io::stdout().lock(), megabytes.parse().expect("a number")),
        ["forge", what] => processes::forge(what),
        ["pester", socket] => println!("{}", network::pester(socket)),
        [list, report] => all(&fs::read_to_string(list).expect("a list"), report),
        _ => panic!("attacker LIST REPORT"),
    }
}

fn lines(count: u64) {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for number in 0..count {
        if writeln!(out, "{{\"type\":\"system\",\"line\":{number}}}").is_err() {
            return;
        }
    }
}

fn complain(count: u64) {
    let mut err = io::BufWriter::new(io::stderr().lock());
    for number in 0..count {
        if writeln!(err, "complaint {number}").is_err() {
            return;
        }
    }
}

/// One line that does not end.
fn endless(mut out: impl Write, megabytes: u32) {
    let much = vec![b'x'; 1 << 20];
    for _ in 0..megabytes {
        if out.write_all(&much).is_err() {
            return;
        }
    }
}

fn all(list: &str, report: &str) {
    let mut said = String::new();
    for line in list.lines() {
        let words: Vec<String> = line.split('\t').map(str::to_owned).collect();
        let (name, what) = words.split_first().expect("a name");
        let (kind, args) = what.split_first().expect("a kind");
        let (mark, text) = match alone(attempt(kind), args) {
            Ok(got) => ("reached", got),
            Err(why) => ("refused", why),
        };
        said.push_str(&format!("{name}\t{mark}\t{}\n", text.replace(['\n', '\t', '\0'], " ")));
    }
    fs::write(report, said).expect("a report");
}

fn attempt(kind: &str) -> Attempt {
    let mut known =
        [files::ATTEMPTS, calls::ATTEMPTS, processes::ATTEMPTS, network::ATTEMPTS].into_iter().flatten();
    known.find(|(name, _)| *name == kind).unwrap_or_else(|| panic!("no attempt {kind}")).1
}

/// Runs an attempt in a child process: some attempts change the process's user or directory, and some end in its death.
fn alone(attempt: Attempt, args: &[String]) -> Result<String, String> {
    let mut ends = [0; 2];
    // SAFETY: there is one thread; the child only tries, writes and ends.
    let child = unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        libc::fork()
    };
    assert!(child >= 0, "not even one process");
    if child == 0 {
        // SAFETY: as above; nothing after it returns to the caller.
        unsafe {
            libc::close(ends[0]);
            libc::alarm(PATIENCE);
            let (first, text) = match attempt(args) {
                Ok(got) => ('+', got),
                Err(e) => ('-', format!("{e}")),
            };
            let mut pipe = fs::File::from_raw_fd(ends[1]);
            let _ = write!(pipe, "{first}{}", text.chars().take(300).collect::<String>());
            libc::_exit(0);
        }
    }
    let mut said = String::new();
    let mut status = 0;
    // SAFETY: both ends are ours, and the child is.
    unsafe {
        libc::close(ends[1]);
        fs::File::from_raw_fd(ends[0]).read_to_string(&mut said).ok();
        libc::waitpid(child, &mut status, 0);
    }
    match said.strip_prefix('+') {
        Some(got) => Ok(got.to_owned()),
        None if said.is_empty() => Err(format!("ended with status {status}")),
        None => Err(said[1..].to_owned()),
    }
}

/// The result of a raw system call.
fn answer(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn word(args: &[String], n: usize) -> &str {
    args.get(n).map(String::as_str).expect("a word for it")
}

fn c(text: &str) -> std::ffi::CString {
    std::ffi::CString::new(text).expect("no NUL")
}
