//! Bombs: each takes more than its share of bytes, files, names, memory or processors until a limit stops it. It
//! prints how far it got, so a run without limits shows that the same bomb does harm there.

use crate::{Tried, answer, c, hold_on, processes::many_processes, word};
use std::{
    ffi::CString,
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixListener},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Files in one folder, so that no folder of these is slow by itself.
const FOLDER: u64 = 5_000;
const MIB: usize = 1 << 20;

type Bomb = fn(&[String]) -> Tried;

const BOMBS: &[(&str, Bomb)] = &[
    ("fill", |args| fill(Path::new(word(args, 0)), number(args, 1))),
    ("empty", |args| many(word(args, 0), number(args, 1), |path| File::create(path).map(drop))),
    ("names", |args| names(word(args, 0), number(args, 1))),
    ("attributes", |args| attributes(word(args, 0), number(args, 1))),
    ("nest", |args| nest(word(args, 0), number(args, 1))),
    ("depth", |args| depth(word(args, 0))),
    ("sparse", |args| {
        let file = File::create(place(word(args, 0))?.join("sparse"))?;
        file.set_len(number(args, 1))?;
        Ok(format!("{} bytes", file.metadata()?.len()))
    }),
    ("odd", |args| odd(&place(word(args, 0))?)),
    ("grow", |args| grow(number(args, 0), libc::MAP_PRIVATE)),
    ("grow-shared", |args| grow(number(args, 0), libc::MAP_SHARED)),
    ("share", |args| share(number(args, 0), number(args, 1))),
    ("open", |args| nameless(args, Ok)),
    ("mapped", |args| nameless(args, map)),
    ("behind", |args| behind(args)),
    ("apart", |args| apart(args)),
    ("hidden", |args| {
        // SAFETY: takes numbers only.
        answer(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }.into())?;
        bomb(args)
    }),
    ("spin", |args| spin(number(args, 0), Duration::from_secs(number(args, 1)))),
    ("processes", |args| many_processes(word(args, 0).parse().expect("a number"))),
    ("forks", |_| forks()),
];

/// Runs a bomb and prints its outcome on stdout.
pub(crate) fn go_off(words: &[String]) {
    match bomb(words) {
        Ok(got) => println!("reached {got}"),
        Err(why) => println!("refused {why}"),
    }
}

fn bomb(words: &[String]) -> Tried {
    let (kind, args) = words.split_first().expect("a bomb");
    BOMBS.iter().find(|(name, _)| name == kind).unwrap_or_else(|| panic!("no bomb {kind}")).1(args)
}

/// Another bomb, in a process whose first thread has ended: /proc no longer shows what it holds under its own pid.
fn behind(words: &[String]) -> Tried {
    let words = words.to_vec();
    std::thread::spawn(move || {
        go_off(&words);
        std::process::exit(0);
    });
    // SAFETY: ends this thread alone, which holds nothing that the other needs.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("this thread has ended")
}

/// Another bomb, in a thread with descriptors of its own, which its process does not have.
fn apart(words: &[String]) -> Tried {
    let words = words.to_vec();
    let thread = std::thread::spawn(move || {
        // SAFETY: takes a number only.
        answer(unsafe { libc::unshare(libc::CLONE_FILES) }.into())?;
        bomb(&words)
    });
    thread.join().expect("no panic")
}

fn number(args: &[String], n: usize) -> u64 {
    word(args, n).parse().expect("a number")
}

fn place(dir: &str) -> io::Result<PathBuf> {
    let dir = Path::new(dir).join("bomb");
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// Incompressible bytes.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state: u64 = 0x5eed;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes / 8).flat_map(|_| next()).collect()
}

fn fill(dir: &Path, megabytes: u64) -> Tried {
    let dir = place(&dir.to_string_lossy())?;
    let mut buffer = noise(MIB);
    for n in 0..megabytes {
        buffer[..8].copy_from_slice(&n.to_le_bytes());
        fs::write(dir.join(n.to_string()), &buffer)?;
    }
    Ok(format!("{megabytes} MiB"))
}

fn many(dir: &str, count: u64, make: impl Fn(&Path) -> io::Result<()>) -> Tried {
    let mut dir = place(dir)?;
    for n in 0..count {
        if n % FOLDER == 0 {
            dir = dir.parent().unwrap_or(&dir).join(format!("f{n}"));
            fs::create_dir_all(&dir)?;
        }
        make(&dir.join(n.to_string()))?;
    }
    Ok(format!("{count} files"))
}

/// Many names for few files: one file may have tens of thousands.
fn names(dir: &str, count: u64) -> Tried {
    let dir = place(dir)?;
    for n in 0..count {
        let of = dir.join(format!("of{}", n / FOLDER));
        if n % FOLDER == 0 {
            File::create(&of)?;
        }
        fs::hard_link(&of, dir.join(format!("name{n}")))?;
    }
    Ok(format!("{count} names"))
}

/// Attributes as large as the file system allows: less than a block in some, 64 KiB in others.
fn attributes(dir: &str, count: u64) -> Tried {
    let dir = place(dir)?;
    let value = noise(64 << 10);
    let mut bytes = 0;
    for n in 0..count {
        let path = dir.join(n.to_string());
        File::create(&path)?;
        let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
        let fits = [64 << 10, 16 << 10, 3 << 10, 1 << 10].into_iter().find(|size| {
            // SAFETY: pointers and length are of values that outlive the call.
            let done = unsafe {
                let name = c("user.bomb");
                libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), *size, 0)
            };
            done == 0
        });
        bytes += fits.ok_or_else(io::Error::last_os_error)?;
    }
    Ok(format!("{count} files with {bytes} bytes beside them"))
}

/// Descends by relative steps, because the whole path is longer than the kernel accepts.
fn nest(dir: &str, count: u64) -> Tried {
    let mut at: OwnedFd = File::open(place(dir)?)?.into();
    let step = c("d");
    for _ in 0..count {
        // SAFETY: the name outlives the call.
        answer(unsafe { libc::mkdirat(at.as_raw_fd(), step.as_ptr(), 0o755) }.into())?;
        at = below(&at)?;
    }
    Ok(format!("{count} deep"))
}

fn below(at: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: the name outlives the call; the new descriptor has no other owner.
    unsafe {
        let next = libc::openat(at.as_raw_fd(), c("d").as_ptr(), libc::O_DIRECTORY | libc::O_NOFOLLOW);
        Ok(OwnedFd::from_raw_fd(answer(next.into())? as i32))
    }
}

/// Descends the folders that `nest` has made.
fn depth(dir: &str) -> Tried {
    let (mut at, mut deep): (OwnedFd, usize) = (File::open(place(dir)?)?.into(), 0);
    while let Ok(next) = below(&at) {
        (at, deep) = (next, deep + 1);
    }
    Ok(format!("{deep} deep"))
}

/// Special files, and names that are not text.
fn odd(dir: &Path) -> Tried {
    let newlines = "\n".repeat(255);
    fs::write(dir.join(&newlines), "kept")?;
    fs::write(dir.join(std::ffi::OsStr::from_bytes(&[0xff; 255])), "kept")?;
    let named = |name: &str| CString::new(dir.join(name).as_os_str().as_bytes()).expect("no NUL");
    let numbers = [("pipe", libc::S_IFIFO | 0o666), ("whiteout", libc::S_IFCHR)];
    for (name, mode) in numbers {
        // SAFETY: a name that outlives the call, and numbers.
        answer(unsafe { libc::mknod(named(name).as_ptr(), mode, 0) }.into())?;
    }
    UnixListener::bind(dir.join("socket"))?;
    // Held open on both sides, so that opening it does not block.
    let pipe = File::options().read(true).write(true).open(dir.join("pipe"))?;
    (&pipe).write_all(b"endless")?;
    Ok("a name of newlines, a pipe, a socket, a device".to_owned())
}

/// Unlinked files, each held in some way for that many seconds.
fn nameless<T>(args: &[String], hold: fn(File) -> io::Result<T>) -> Tried {
    let dir = place(word(args, 0))?;
    let mut held = Vec::new();
    for n in 0..number(args, 1) {
        let path = dir.join(n.to_string());
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        fs::remove_file(&path)?;
        file.write_all(&noise(MIB))?;
        held.push(hold(file)?);
    }
    hold_on(Duration::from_secs(number(args, 2)));
    Ok(format!("{} MiB without a name", held.len()))
}

/// A mapping of the file, which is closed then.
fn map(file: File) -> io::Result<&'static mut [u8]> {
    memory(MIB, libc::MAP_SHARED, file.as_raw_fd())
}

fn memory(bytes: usize, flags: i32, fd: i32) -> io::Result<&'static mut [u8]> {
    // SAFETY: new memory of this size, which no other code uses and which is never freed.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0);
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(std::slice::from_raw_parts_mut(at.cast(), bytes))
    }
}

/// That many processes share one piece of memory, as honest programs do too.
fn share(processes: u64, megabytes: u64) -> Tried {
    let all = memory(megabytes as usize * MIB, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)?;
    for _ in 0..processes {
        // SAFETY: one thread; the child touches memory and ends.
        if unsafe { libc::fork() } == 0 {
            all.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            hold_on(Duration::from_secs(3));
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
    }
    let (mut status, mut whole) = (0, 0);
    // SAFETY: writes one integer; all children are ours.
    while unsafe { libc::wait(&mut status) } > 0 {
        whole += u64::from(status == 0);
    }
    let said = format!("{megabytes} MiB in {whole} processes");
    if whole == processes { Ok(said) } else { Err(io::Error::other(said)) }
}

/// Grows step by step, like a leak.
fn grow(megabytes: u64, flags: i32) -> Tried {
    let mut all: Vec<&'static mut [u8]> = Vec::new();
    for n in 0..megabytes / 20 {
        let more = memory(20 * MIB, flags | libc::MAP_ANONYMOUS, -1)?;
        more.iter_mut().step_by(4096).for_each(|byte| *byte = n as u8 | 1);
        all.push(more);
        hold_on(Duration::from_millis(50));
    }
    hold_on(Duration::from_secs(1));
    let held = all.iter().flat_map(|part| part.iter()).step_by(4096).filter(|byte| **byte != 0).count();
    Ok(format!("{} MiB", held >> 8))
}

/// Measures how much processor time that many processes get in this time.
fn spin(processes: u64, time: Duration) -> Tried {
    let until = Instant::now() + time;
    for _ in 0..processes {
        // SAFETY: one thread; the child counts and ends.
        if unsafe { libc::fork() } == 0 {
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
    }
    // SAFETY: a plain structure of numbers; all children are ours.
    let usage = unsafe {
        while libc::wait(std::ptr::null_mut()) > 0 {}
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let millis = usage.ru_utime.tv_sec * 1000 + i64::from(usage.ru_utime.tv_usec as i32) / 1000;
    // A low figure, so that it counts as much even on a busy machine.
    let allowed = i64::try_from(time.as_millis()).expect("a short time") / 10;
    if millis > allowed { Ok(format!("{millis} ms")) } else { Err(io::Error::other(format!("{millis} ms"))) }
}

/// The real fork bomb: each remaining process forks again and leaves its parents.
fn forks() -> Tried {
    loop {
        // SAFETY: numbers only, in processes of one thread each.
        unsafe {
            if libc::fork() == 0 {
                libc::setsid();
            }
        }
    }
}
