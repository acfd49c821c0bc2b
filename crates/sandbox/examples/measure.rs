//! How long a sandbox takes to its first line, and what it weighs: `measure N [PROGRAM]`, as root or as a user.
//! Then each calls a model service of this process through its only way out, and is weighed again.
//! Without a PROGRAM it is its own shim and init, so what it weighs is what a program of this size weighs.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    time::Duration,
    time::Instant,
};

use ash_model::{Epoch, Incarnation};
use ash_sandbox::{
    BubblewrapBackend, EgressPolicy, JournalPayload, ProcessSpec, RecordStream, SandboxBackend,
    SandboxLimits, SandboxSpec, UserNamespacePolicy, reap,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

fn main() {
    let mut args = std::env::args_os().skip(1);
    let first = args.next().and_then(|word| word.into_string().ok()).unwrap_or_default();
    match first.as_str() {
        "shim" => std::process::exit(ash_sandbox::shim_main()),
        "confine" => std::process::exit(ash_sandbox::confine_main(args.collect())),
        number => {
            let program = args.next().map(PathBuf::from);
            let program = program.unwrap_or_else(|| std::env::current_exe().expect("we run"));
            measure(number.parse().unwrap_or(30), program);
        }
    }
}

#[tokio::main]
async fn measure(n: usize, program: PathBuf) {
    let walls = BubblewrapBackend::probe(program).await.expect("walls");
    let (mut times, mut running) = (Vec::new(), Vec::new());
    let mut weights = BTreeMap::<String, Vec<u64>>::new();
    for _ in 0..n {
        let base = tempfile::tempdir().expect("a directory");
        let spec = spec(base.path());
        let begin = Instant::now();
        let (remote, mut records) = walls.launch(&spec).await.expect("launched").split();
        remote.start(agent()).await.expect("sent");
        line(&mut records).await;
        times.push(begin.elapsed());
        running.push((base, spec, remote, records));
    }
    // All at once: memory that sandboxes share counts once.
    for (_, spec, ..) in &running {
        for (name, weight) in weigh(&spec.run_dir) {
            weights.entry(name).or_default().push(weight);
        }
    }
    times.sort();
    println!(
        "create to first line, n={n}: min {:?} median {:?} p95 {:?}",
        times[0],
        times[n / 2],
        times[n * 95 / 100]
    );
    print(weights);
    let mut weights = BTreeMap::new();
    let upstream = serve().await;
    for (_, _, remote, records) in &mut running {
        let policy = EgressPolicy {
            upstream: upstream.clone(),
            headers: BTreeMap::new(),
            public: false,
            dialect: None,
        };
        remote.set_egress(Some(policy)).await.expect("sent");
        remote.start(caller()).await.expect("sent");
        line(records).await;
    }
    for (_, spec, ..) in &running {
        for (_, weight) in weigh(&spec.run_dir).into_iter().filter(|(name, _)| name == "shim") {
            weights.entry("shim after a call".to_owned()).or_insert_with(Vec::new).push(weight);
        }
    }
    print(weights);
    for (_base, spec, remote, mut records) in running {
        remote.end().await.expect("sent");
        while records.next().await.is_some() {}
        reap(&spec.run_dir).expect("reaped");
    }
}

fn print(weights: BTreeMap<String, Vec<u64>>) {
    for (name, mut values) in weights {
        values.sort();
        println!("PSS {name}: median {} kB", values[values.len() / 2]);
    }
}

async fn line(records: &mut RecordStream) {
    while let Some(record) = records.next().await {
        if let JournalPayload::StdoutLine(_) = record.payload {
            return;
        }
    }
}

/// Answers everything with one line.
async fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi\n").await;
        }
    });
    format!("http://{address}")
}

fn caller() -> ProcessSpec {
    let curl = "/usr/bin/curl -s --unix-socket /run/ash/model.sock http://localhost/v1";
    ProcessSpec { process: 2, argv: curl.split(' ').map(str::to_owned).collect(), ..agent() }
}

fn spec(base: &Path) -> SandboxSpec {
    let uid = rustix::process::geteuid().is_root().then_some(60_001);
    let [run_dir, workspace, home] = ["run", "workspace", "home"].map(|name| base.join(name));
    for dir in [&run_dir, &workspace, &home] {
        fs::create_dir(dir).expect("created");
        chown(dir, uid, uid).expect("chown");
    }
    let (incarnation, limits) = (Incarnation::fresh(), SandboxLimits::default());
    let orphan_ttl = Duration::from_secs(10);
    SandboxSpec {
        incarnation,
        epoch: Epoch(1),
        run_dir,
        workspace,
        home,
        uid,
        limits,
        readonly: vec![],
        image: None,
        user_namespaces: UserNamespacePolicy::Refused,
        orphan_ttl,
    }
}

fn agent() -> ProcessSpec {
    let argv = vec!["/bin/sh".into(), "-c".into(), "echo ready; read x".into()];
    ProcessSpec { process: 1, argv, env: BTreeMap::new(), cwd: "/workspace".into(), raw: false, stdin: true }
}

fn weigh(run_dir: &Path) -> Vec<(String, u64)> {
    let notes: serde_json::Value =
        serde_json::from_slice(&fs::read(run_dir.join("init")).expect("notes")).expect("json");
    let pid = |who: &str| notes[who]["pid"].as_u64().expect("a number");
    let bwrap = fs::read_to_string(format!("/proc/{}/stat", pid("init")))
        .ok()
        .and_then(|stat| stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok());
    [("shim", Some(pid("shim"))), ("bwrap", bwrap), ("init", Some(pid("init")))]
        .into_iter()
        .filter_map(|(name, pid)| Some((name.to_owned(), pss(pid?)?)))
        .collect()
}

/// Not dumpable, so only root may look.
fn pss(pid: u64) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
}
