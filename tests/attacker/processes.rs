//! Attempts on other processes: finding, reading, controlling and ending them; and attempts to exceed process limits.

use crate::{Attempt, Tried, answer, c, word};
use std::{
    fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

pub(crate) const ATTEMPTS: &[(&str, Attempt)] = &[
    ("hunt", |args| hunt(word(args, 0))),
    ("signal", |args| {
        // SAFETY: numbers only; signal 0 only checks the permission.
        answer(unsafe { libc::kill(number(word(args, 0)), 0) }.into()).map(|_| "signalled".to_owned())
    }),
    ("signal-by-handle", |args| {
        // SAFETY: numbers only.
        unsafe {
            let handle = answer(libc::syscall(libc::SYS_pidfd_open, number(word(args, 0)), 0))?;
            answer(libc::syscall(libc::SYS_pidfd_send_signal, handle, 0, 0, 0))?;
        }
        Ok("signalled".to_owned())
    }),
    ("end", |args| end(number(word(args, 0)))),
    ("trace", |_| with_victim(trace)),
    ("read-memory", |_| with_victim(|victim| carry(libc::SYS_process_vm_readv, victim))),
    ("write-memory", |_| with_victim(|victim| carry(libc::SYS_process_vm_writev, victim))),
    ("take-descriptor", |_| {
        with_victim(|victim| {
            // SAFETY: numbers only.
            unsafe {
                let handle = answer(libc::syscall(libc::SYS_pidfd_open, victim, 0))?;
                answer(libc::syscall(libc::SYS_pidfd_getfd, handle, 1, 0))?;
            }
            Ok("taken".to_owned())
        })
    }),
    ("compare", |_| {
        with_victim(|victim| {
            let own = std::process::id() as i32;
            // SAFETY: numbers only. 0 is KCMP_FILE.
            answer(unsafe { libc::syscall(libc::SYS_kcmp, own, victim, 0, 1, 1) })?;
            Ok("compared".to_owned())
        })
    }),
    ("shared-memory", |args| shared_memory(number(word(args, 0)))),
    ("message-queue", |args| {
        // SAFETY: the name outlives the call.
        answer(unsafe { libc::mq_open(c(word(args, 0)).as_ptr(), libc::O_RDONLY) }.into())?;
        Ok("opened".to_owned())
    }),
    ("fork", |args| many_processes(number(word(args, 0)))),
    ("memory", |args| {
        let mut much = vec![0_u8; (number(word(args, 0)) as usize) << 20];
        much.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        Ok(format!("{} MiB", much.iter().step_by(4096).filter(|byte| **byte == 1).count() >> 8))
    }),
    ("open-files", |args| {
        // SAFETY: plain structures of numbers.
        unsafe {
            let mut most = std::mem::zeroed();
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut most);
            most.rlim_cur = most.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &most);
        }
        let wanted = number(word(args, 0)) as usize;
        let open = (0..wanted).map(|_| fs::File::open("/dev/null")).collect::<io::Result<Vec<_>>>()?;
        Ok(format!("{} files", open.len()))
    }),
];

fn number(text: &str) -> i32 {
    text.parse().expect("a number")
}

/// Searches everything that /proc shows of any process for a word that only another process knows.
fn hunt(word: &str) -> Tried {
    let own = std::process::id();
    let mut pids = fs::read_dir("/proc")?.flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        (pid != own).then(|| entry.path())
    });
    let knows = |path: PathBuf| {
        let texts = ["environ", "cmdline", "maps", "mountinfo"].map(|name| fs::read(path.join(name)));
        let links = ["root", "cwd", "exe"].map(|name| fs::read_link(path.join(name)));
        let text = texts.into_iter().flatten().any(|text| String::from_utf8_lossy(&text).contains(word));
        text || links.into_iter().flatten().any(|link| link.to_string_lossy().contains(word))
    };
    if pids.any(knows) {
        return Ok("found".to_owned());
    }
    Err(io::Error::other("no process shows it"))
}

fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| matches!(state, 'R' | 'S' | 'D'))
}

/// Every call that ends or stops another process.
fn end(pid: i32) -> Tried {
    for signal in [libc::SIGSTOP, libc::SIGTERM, libc::SIGSEGV, libc::SIGABRT, libc::SIGKILL] {
        // SAFETY: numbers only.
        unsafe { libc::kill(pid, signal) };
    }
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        if !runs(pid) {
            return Ok("ended".to_owned());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(io::Error::other("it goes on"))
}

static SECRET: [u8; 8] = *b"a secret";

/// A child that waits to be attacked, with the same memory layout as this process.
fn with_victim(attack: impl Fn(i32) -> Tried) -> Tried {
    // SAFETY: one thread; the child waits for its end and does nothing else.
    unsafe {
        let victim = libc::fork();
        if victim == 0 {
            loop {
                libc::pause();
            }
        }
        let tried = attack(victim);
        libc::kill(victim, libc::SIGKILL);
        libc::waitpid(victim, std::ptr::null_mut(), 0);
        tried
    }
}

fn trace(victim: i32) -> Tried {
    // SAFETY: the address is of a static in a copy of this process.
    unsafe {
        answer(libc::ptrace(libc::PTRACE_ATTACH, victim, 0, 0))?;
        libc::waitpid(victim, std::ptr::null_mut(), libc::__WALL);
        let word = libc::ptrace(libc::PTRACE_PEEKDATA, victim, SECRET.as_ptr(), 0);
        Ok(String::from_utf8_lossy(&word.to_ne_bytes()).into_owned())
    }
}

/// Reads its memory or writes into it.
fn carry(call: i64, victim: i32) -> Tried {
    let mut bytes = [b'x'; 8];
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 8 };
    let mut theirs = *b"a secret";
    let there = libc::iovec { iov_base: theirs.as_mut_ptr().cast(), iov_len: 8 };
    // The child was forked before this variable existed, but its stack is mapped at the same address, which is enough.
    // SAFETY: our part is valid; theirs is in another process.
    let carried =
        answer(unsafe { libc::syscall(call, i64::from(victim), &here, 1_i64, &there, 1_i64, 0_i64) })?;
    Ok(format!("{carried} bytes"))
}

fn shared_memory(key: i32) -> Tried {
    // SAFETY: attached, read within its size, and left to the end of this process.
    unsafe {
        let id = answer(libc::shmget(key, 0, 0).into())?;
        let at = libc::shmat(id as i32, std::ptr::null(), libc::SHM_RDONLY);
        if at as isize == -1 {
            return Err(io::Error::last_os_error());
        }
        let text = std::ffi::CStr::from_ptr(at.cast());
        Ok(text.to_string_lossy().into_owned())
    }
}

pub(crate) fn many_processes(wanted: i32) -> Tried {
    let mut made = Vec::new();
    let mut refused = None;
    for _ in 0..wanted {
        // SAFETY: the children only wait for their end.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: waits.
                unsafe { libc::pause() };
            },
            -1 => {
                refused = Some(io::Error::last_os_error());
                break;
            }
            pid => made.push(pid),
        }
    }
    // SAFETY: these are our children.
    made.iter().for_each(|pid| unsafe {
        libc::kill(*pid, libc::SIGKILL);
        libc::waitpid(*pid, std::ptr::null_mut(), 0);
    });
    refused.map_or_else(|| Ok(format!("{} processes", made.len())), Err)
}

/// Writes to the agent's output pipe, if the pipe can be opened.
pub(crate) fn forge(what: &str) {
    let agent = fs::read_dir("/proc").expect("/proc").flatten().find(|entry| {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains("/.ash/ash\0builtin-agent")
    });
    let pipe = agent.expect("an agent").path().join("fd/1");
    match fs::OpenOptions::new().write(true).open(pipe) {
        Err(e) => println!("{e}"),
        Ok(out) if what == "endless" => crate::endless(out, 40),
        Ok(mut out) => {
            // Half a message, an invalid line, a message about another session, and bytes that are not text.
            let frames: [&[u8]; 4] = [
                b"{\"type\":\"assist\n",
                b"\n",
                b"{\"type\":\"result\",\"user_message_uuid\":5}\n",
                b"\xff\xfe\0\n",
            ];
            let done: io::Result<()> =
                frames.iter().cycle().take(1000).try_for_each(|frame| io::Write::write_all(&mut out, frame));
            println!("{}", done.map_or_else(|e| e.to_string(), |()| "forged".to_owned()));
        }
    }
}
