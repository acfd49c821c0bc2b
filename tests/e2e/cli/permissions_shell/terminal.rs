//! A terminal that only the test uses.

use crate::support::eventually;
use std::{
    io::{Read, Write},
    os::fd::{FromRawFd, OwnedFd},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

pub struct Terminal {
    keys: std::fs::File,
    screen: Arc<Mutex<String>>,
    child: std::process::Child,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Terminal {
    /// As wide as most terminals.
    pub fn run(command: Command) -> Terminal {
        Terminal::of_width(command, 80)
    }

    pub fn of_width(mut command: Command, columns: u16) -> Terminal {
        let (mut ours, mut theirs) = (0, 0);
        let size = libc::winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: both numbers are written before it returns 0, the size is only read, and the other two may be null.
        let opened = unsafe {
            libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null_mut(), &size)
        };
        assert_eq!(opened, 0, "no terminal");
        // SAFETY: both were opened above, and no other code uses them.
        let (keys, theirs) = unsafe { (std::fs::File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        let end = || Stdio::from(theirs.try_clone().expect("a handle"));
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("ash");
        drop((command, theirs));
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut from, shown) = (keys.try_clone().expect("a handle"), screen.clone());
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // The read fails when the last process at the other end exits.
            while let Ok(read) = from.read(&mut piece) {
                shown.lock().expect("whole").push_str(&String::from_utf8_lossy(&piece[..read]));
            }
        });
        Terminal { keys, screen, child, reader: Some(reader) }
    }

    pub fn seen(&self) -> String {
        self.screen.lock().expect("whole").clone()
    }

    pub async fn until(&self, words: &str) {
        eventually(words, async || self.seen().contains(words).then_some(())).await;
    }

    pub fn type_line(&mut self, line: &str) {
        writeln!(self.keys, "{line}").expect("typed");
    }

    /// Ctrl-D at the beginning of a line.
    pub fn hang_up(&mut self) {
        self.keys.write_all(b"\x04").expect("typed");
    }

    pub async fn end(mut self) -> String {
        let status = eventually("it ends", async || self.child.try_wait().expect("wait")).await;
        let reader = self.reader.take().expect("the reader is taken once");
        tokio::task::spawn_blocking(|| reader.join()).await.expect("waited").expect("all is read");
        let screen = self.seen();
        assert!(status.success(), "{status}: {screen}");
        screen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- terminal ---\n{}", self.seen());
        }
        // Most have exited.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
