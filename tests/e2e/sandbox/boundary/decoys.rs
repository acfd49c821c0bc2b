//! Decoys for the attacks outside: nothing real is ever attacked there.

use super::{attempts::World, program, put};
use std::{
    collections::BTreeMap,
    ffi::CString,
    fs,
    io::Write,
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::{PermissionsExt, chown},
            net::{SocketAddr, UnixListener},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

pub struct Decoys {
    /// The server's user.
    pub owner: u32,
    pub dir: PathBuf,
    /// A word that is in every decoy, and nowhere else.
    pub word: String,
    pub file: PathBuf,
    pub tcp: u16,
    pub tcp6: u16,
    pub udp: u16,
    /// Like the socket of an engine.
    pub socket: PathBuf,
    pub abstract_name: String,
    pub shared_memory: PathBuf,
    pub queue: String,
    /// A System V shared memory segment.
    pub key: i32,
    segment: i32,
    /// A process with the word in its environment, and as the name of a keyring; it must survive.
    pub process: Child,
    /// A process that may be killed.
    pub mortal: Child,
}

impl Decoys {
    /// `owner`: the server's user, so that no attempt fails only because of other ownership.
    pub fn new(owner: u32) -> Decoys {
        let id = uuid::Uuid::new_v4();
        let dir = std::env::temp_dir().join(format!("ash-test-{id}"));
        let word = format!("canary-{id}");
        for place in ["", "seen", "host", "apart", "owner", "nobody"] {
            fs::create_dir_all(dir.join(place)).expect("a directory");
            fs::set_permissions(dir.join(place), fs::Permissions::from_mode(0o777)).expect("a mode");
        }
        for place in ["host", "apart", "owner", "nobody"] {
            put(&program(), &dir.join(place).join("attacker"), 0o755);
        }
        let (file, socket) = (dir.join("seen/file"), dir.join("seen/docker.sock"));
        let shared_memory = PathBuf::from(format!("/dev/shm/ash-test-{id}"));
        let key = id.as_u128() as i32 | 1;
        let mut decoys = Decoys {
            owner,
            tcp: tcp("127.0.0.1:0", &word),
            tcp6: tcp("[::1]:0", &word),
            udp: udp(&word),
            abstract_name: format!("ash-test-{id}"),
            queue: format!("/ash-test-{id}"),
            segment: segment(key, &word),
            process: sleeper(&word, owner),
            mortal: sleeper("ash-test-mortal", owner),
            dir,
            word,
            file,
            socket,
            shared_memory,
            key,
        };
        decoys.listen();
        decoys.restore();
        decoys.put_setuid(&decoys.dir.join("nobody/setuid"));
        decoys.put_device(&decoys.dir.join("host/device"));
        decoys
    }

    fn listen(&mut self) {
        let address = SocketAddr::from_abstract_name(&self.abstract_name).expect("a name");
        let listeners = [UnixListener::bind(&self.socket), UnixListener::bind_addr(&address)];
        for listener in listeners {
            greet_all(listener.expect("a socket"), self.word.clone());
        }
        fs::set_permissions(&self.socket, fs::Permissions::from_mode(0o666)).expect("a mode");
        let name = CString::new(self.queue.as_str()).expect("no NUL");
        // SAFETY: the name outlives the call; without attributes the queue has the usual ones.
        let queue = unsafe { libc::mq_open(name.as_ptr(), libc::O_CREAT | libc::O_RDONLY, 0o666, 0_usize) };
        assert!(queue >= 0, "a queue");
    }

    /// The decoys as they were before the attacks.
    pub fn restore(&self) {
        for entry in fs::read_dir(self.dir.join("seen")).expect("a directory").flatten() {
            if entry.path() != self.socket {
                fs::remove_file(entry.path()).expect("removed");
            }
        }
        for file in [&self.file, &self.shared_memory] {
            fs::write(file, &self.word).expect("written");
            fs::set_permissions(file, fs::Permissions::from_mode(0o666)).expect("a mode");
        }
    }

    /// Everything that an attack could have changed.
    pub fn look(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = fs::read_dir(self.dir.join("seen")).expect("a directory").flatten();
        let files = entries.map(|entry| entry.path()).chain([self.shared_memory.clone()]);
        files.map(|path| (path.clone(), fs::read(path).unwrap_or_default())).collect()
    }

    pub fn place(&self, world: World) -> PathBuf {
        self.dir.join(match world {
            World::Host => "host",
            World::Apart => "apart",
            World::Owner => "owner",
            World::Nobody => "nobody",
        })
    }

    /// Entries that an agent cannot make but could be given: a setuid program of root, and a device.
    pub fn tempt(&self, workspace: &Path) {
        self.put_setuid(&workspace.join("setuid"));
        self.put_device(&workspace.join("device"));
    }

    fn put_setuid(&self, at: &Path) {
        put(&program(), at, 0o755);
        chown(at, Some(0), Some(0)).expect("root's");
        fs::set_permissions(at, fs::Permissions::from_mode(0o4755)).expect("a mode");
    }

    /// The kernel's log, a device that containers do not get either.
    fn put_device(&self, at: &Path) {
        let name = CString::new(at.as_os_str().as_encoded_bytes()).expect("no NUL");
        // SAFETY: the name outlives the call.
        let made = unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 11)) };
        assert_eq!(made, 0, "a device");
        fs::set_permissions(at, fs::Permissions::from_mode(0o666)).expect("a mode");
    }
}

impl Drop for Decoys {
    fn drop(&mut self) {
        for child in [&mut self.process, &mut self.mortal] {
            child.kill().ok();
            child.wait().ok();
        }
        let name = CString::new(self.queue.as_str()).expect("no NUL");
        // SAFETY: both are ours, and the name outlives the call.
        unsafe {
            libc::mq_unlink(name.as_ptr());
            libc::shmctl(self.segment, libc::IPC_RMID, std::ptr::null_mut());
        }
        fs::remove_file(&self.shared_memory).ok();
        fs::remove_dir_all(&self.dir).ok();
    }
}

fn sleeper(word: &str, owner: u32) -> Child {
    let mut command = Command::new("sleep");
    command.arg("600").env_clear().env("PATH", "/usr/bin:/bin").env("WORD", word).stdin(Stdio::null());
    command.uid(owner).gid(owner);
    let keyring = CString::new(word).expect("no NUL");
    // SAFETY: one call between fork and exec, with a name that was made before. 1 is KEYCTL_JOIN_SESSION_KEYRING.
    unsafe {
        command.pre_exec(move || match libc::syscall(libc::SYS_keyctl, 1, keyring.as_ptr()) {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        })
    };
    command.spawn().expect("sleep")
}

/// Sends the word to every client. The threads end with the tests.
fn tcp(address: &str, word: &str) -> u16 {
    let listener = TcpListener::bind(address).expect("a port");
    let (port, word) = (listener.local_addr().expect("an address").port(), word.to_owned());
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|mut stream| drop(stream.write_all(word.as_bytes())));
    });
    port
}

fn udp(word: &str) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let (port, word) = (socket.local_addr().expect("an address").port(), word.to_owned());
    std::thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 16]) {
            socket.send_to(word.as_bytes(), from).ok();
        }
    });
    port
}

fn greet_all(listener: UnixListener, word: String) {
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|mut stream| drop(stream.write_all(word.as_bytes())));
    });
}

fn segment(key: i32, word: &str) -> i32 {
    // SAFETY: one page that is ours; the word is shorter, and what follows it is zero.
    unsafe {
        let id = libc::shmget(key, 4096, libc::IPC_CREAT | libc::IPC_EXCL | 0o666);
        assert!(id >= 0, "shared memory");
        let at = libc::shmat(id, std::ptr::null(), 0);
        assert_ne!(at as isize, -1, "shared memory");
        std::ptr::copy_nonoverlapping(word.as_ptr(), at.cast(), word.len());
        libc::shmdt(at);
        id
    }
}
