//! Attacks on the sandbox boundary by an agent inside. The same program makes every attempt twice: first outside, where
//! it must succeed, because an attempt that never works proves nothing; then as the agent inside, where it must fail.
//! Meanwhile another session of the same server answers, and afterwards nothing outside has changed.

mod attempts;
mod bombs;
mod decoys;
mod disguised;
mod floods;
mod streams;

use self::{
    attempts::{Attempt, Targets, World, attempts},
    decoys::Decoys,
};
use crate::support::{Client, Processes, Server, as_root, eventually, is_alive};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const ORDINARY_USER: u32 = 61_004;
/// A user without any relation to the server.
const NOBODY: u32 = 61_005;
/// Less than an attempt allocates, and less than this machine has.
const MEMORY_MB: &str = "192";
/// The minimum number of attempts.
const MANY: usize = 60;

#[tokio::test]
async fn as_root_an_agent_gets_nowhere() {
    attack(Server::with(&[("ASH_SANDBOX_MEMORY_MB", MEMORY_MB)]).await).await;
}

#[tokio::test]
async fn as_root_an_agent_of_an_ordinary_users_server_gets_nowhere() {
    assert!(as_root(), "only root can become another user, and try what that user may not");
    attack(Server::of_user(ORDINARY_USER, &[("ASH_SANDBOX_MEMORY_MB", MEMORY_MB)]).await).await;
}

async fn attack(mut server: Server) {
    assert!(as_root(), "outside, much of this takes root");
    let stage = Stage::set(&server).await;
    let attempts = attempts(&stage.targets(&server).await);
    assert!(attempts.len() >= MANY, "{} attempts", attempts.len());

    let outside = stage.outside(&attempts);
    let closed = attempts.iter().filter_map(|attempt| {
        let (reached, text) = &outside[attempt.name];
        (!*reached || !text.contains(&attempt.proof)).then(|| format!("{}: {text}", attempt.name))
    });
    assert_eq!(closed.collect::<Vec<_>>(), Vec::<String>::new(), "closed even outside");
    stage.decoys.restore();
    let before = stage.decoys.look();

    let beside = Beside::begin(&server, stage.bystander.clone());
    let inside = stage.inside(&server, &attempts).await;
    let open = attempts.iter().map(|attempt| (attempt.name, &inside[attempt.name]));
    let open: Vec<_> = open.filter(|(_, (reached, _))| *reached).collect();
    assert!(open.is_empty(), "open from inside: {open:#?}");
    for attempt in &attempts {
        println!("{:<45} {:<40} {}", attempt.name, outside[attempt.name].1, inside[attempt.name].1);
    }
    floods::flood(&server, &stage.attacker, &stage.decoys.place(World::Host)).await;
    let answers = beside.end().await;
    assert!(answers > 0, "the session beside was never asked");
    println!("{} attempts; the session beside answered {answers} times", attempts.len());

    assert_eq!(stage.decoys.look(), before, "something outside was changed");
    stage.other_sessions_are_well(&server).await;
    stage.nothing_is_left(&mut server).await;
}

/// A server with three sessions, and targets outside of them.
struct Stage {
    decoys: Decoys,
    /// The session of the hostile agent.
    attacker: String,
    /// The session whose files the agent attacks.
    victim: String,
    bystander: String,
}

impl Stage {
    async fn set(server: &Server) -> Stage {
        let client = server.client();
        let (attacker, victim, bystander) =
            (client.create().await, client.create().await, client.create().await);
        let decoys = Decoys::new(server.uid());
        let hide = format!("run: echo {0} > secret; echo {0} > ~/secret", decoys.word);
        client.say(&victim, &hide).await;
        client.say(&attacker, "hello").await;
        Stage { decoys, attacker, victim, bystander }
    }

    async fn targets<'a>(&'a self, server: &'a Server) -> Targets<'a> {
        let group = group_of(&server.note(&self.attacker).await);
        Targets {
            decoys: &self.decoys,
            data: server.data.clone(),
            url: server.url.clone(),
            own: server.live(&self.attacker).await,
            victim: server.live(&self.victim).await,
            server: server.pid(),
            processes: server.processes(&self.attacker).await,
            root: server.uid() == 0,
            docker: crate::support::in_docker(),
            group,
        }
    }

    /// Runs the attempts outside, as the user and in the place that each one names.
    fn outside(&self, attempts: &[Attempt]) -> BTreeMap<String, (bool, String)> {
        let mut found = BTreeMap::new();
        for world in [World::Host, World::Apart, World::Owner, World::Nobody] {
            let lines = attempts.iter().filter(|attempt| attempt.world == world);
            let lines: String = lines.map(|attempt| line(attempt.name, &attempt.outside)).collect();
            let place = self.decoys.place(world);
            fs::write(place.join("list"), lines).expect("a list");
            let output = self.command(world, &place).output().expect("the attacker");
            assert!(output.status.success(), "{world:?}: {}", String::from_utf8_lossy(&output.stderr));
            found.extend(report(&fs::read_to_string(place.join("report")).expect("a report")));
        }
        found
    }

    /// With one inherited descriptor too many, as a careless parent would leave it.
    fn command(&self, world: World, place: &Path) -> Command {
        let careless = ["sh", "-c", "exec 9<\"$0\"; exec \"$@\""];
        let mut words: Vec<&str> = match world {
            World::Host | World::Owner | World::Nobody => Vec::new(),
            // In namespaces, so that nothing of this machine changes.
            World::Apart => {
                "unshare --mount --mount-proc --uts --ipc --net --pid --fork".split(' ').collect()
            }
        };
        words.extend(careless);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(&self.decoys.file).arg(place.join("attacker")).args(["list", "report"]);
        command.current_dir(place);
        match world {
            World::Host | World::Apart => &mut command,
            World::Owner => command.uid(self.decoys.owner).gid(self.decoys.owner),
            World::Nobody => command.uid(NOBODY).gid(NOBODY),
        };
        command
    }

    async fn inside(&self, server: &Server, attempts: &[Attempt]) -> BTreeMap<String, (bool, String)> {
        let workspace = server.live(&self.attacker).await.join("tree/workspace");
        let lines: String = attempts.iter().map(|attempt| line(attempt.name, &attempt.inside)).collect();
        put(&program(), &workspace.join("attacker"), 0o755);
        fs::write(workspace.join("list"), lines).expect("a list");
        self.decoys.tempt(&workspace);
        let said = server.client().text(&self.attacker, "run: ./attacker list report; echo over").await;
        assert!(said.contains("over"), "{said}");
        report(&fs::read_to_string(workspace.join("report")).unwrap_or_else(|e| panic!("{e}: {said}")))
    }

    async fn other_sessions_are_well(&self, server: &Server) {
        let client = server.client();
        assert_eq!(client.get("/health").await["status"], "ok");
        assert!(client.text(&self.victim, "read secret").await.contains(&self.decoys.word));
        assert!(client.text(&self.attacker, "are you there?").await.contains("This is turn"));
        assert!(!server.log().contains("panicked"), "{}", server.log());
    }

    async fn nothing_is_left(&self, server: &mut Server) {
        let Processes { shim, init, agent, .. } = server.processes(&self.attacker).await;
        let group = group_of(&server.note(&self.attacker).await);
        server.stop().await;
        eventually("nothing of it runs", async || {
            (![shim, init, agent].into_iter().any(is_alive)).then_some(())
        })
        .await;
        eventually("its control groups are gone", async || {
            group.iter().all(|dir| !dir.exists()).then_some(())
        })
        .await;
        assert!(
            !crate::support::pids()
                .into_iter()
                .any(|pid| crate::support::cmdline(pid).contains("./attacker list"))
        );
    }
}

/// The directories of a sandbox's control groups, whichever process made them.
fn group_of(note: &serde_json::Value) -> Vec<PathBuf> {
    let groups = [&note["cgroup"], &note["container"]["groups"]];
    let groups =
        groups.into_iter().filter_map(|groups| groups.as_object()).flat_map(|groups| groups.values());
    groups.filter_map(|dir| dir.as_str()).map(PathBuf::from).collect()
}

/// A session of the same server that answers requests meanwhile.
struct Beside {
    over: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<usize>,
}

impl Beside {
    fn begin(server: &Server, id: String) -> Beside {
        let over = Arc::new(AtomicBool::new(false));
        let (client, until): (Client, _) = (server.client(), over.clone());
        let task = tokio::spawn(async move {
            let mut turns = 0;
            // At the pace of a real user, so that the requests add little load.
            let mut pace = tokio::time::interval(Duration::from_millis(250));
            while !until.load(Ordering::Relaxed) {
                pace.tick().await;
                turns += 1;
                let text = client.text(&id, "are you there?").await;
                assert!(text.contains(&format!("This is turn {turns}")), "{text}");
                assert_eq!(client.get("/health").await["status"], "ok");
            }
            turns
        });
        Beside { over, task }
    }

    async fn end(self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        self.task.await.expect("the session beside answered all along")
    }
}

fn line(name: &str, words: &str) -> String {
    format!("{name}\t{}\n", words.replace(' ', "\t"))
}

fn report(text: &str) -> BTreeMap<String, (bool, String)> {
    let entry = |line: &str| {
        let mut words = line.splitn(3, '\t').map(str::to_owned);
        let mut word = || words.next().expect("three words");
        (word(), (word() == "reached", word()))
    };
    text.lines().map(entry).collect()
}

fn program() -> PathBuf {
    let test = std::env::current_exe().expect("we run");
    let built = test.parent().and_then(Path::parent).expect("target/debug/deps");
    built.join("examples/attacker")
}

fn put(from: &Path, to: &Path, mode: u32) {
    fs::copy(from, to).expect("copied");
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).expect("a mode");
}
