//! Bombs that hide their resource usage: looking at a process under its own number shows nothing. Like all bombs, each
//! runs twice.

use super::{
    Beside,
    bombs::{Bomb, Cut, IMPATIENT, Pulse, Sapper, lifted},
};
use crate::support::{Server, as_root, in_docker};
use serde_json::json;

const ORDINARY_USER: u32 = 61_009;

const MEMORY: [(&str, &str); 2] =
    [("shared memory of one process", "grow-shared 400"), ("memory behind a dead thread", "behind grow 400")];

/// An unlinked file takes space while a process holds it, in any way. The last word says for how long.
const FILES: [(&str, &str, &str); 6] = [
    ("open and unlinked", "open /workspace 60 0", "open /workspace 60 100"),
    ("mapped and unlinked", "mapped /workspace 60 0", "mapped /workspace 60 100"),
    ("open behind a dead thread", "behind open /workspace 60 0", "behind open /workspace 60 100"),
    ("mapped behind a dead thread", "behind mapped /workspace 60 0", "behind mapped /workspace 60 100"),
    ("open in a thread alone", "apart open /workspace 60 0", "apart open /workspace 60 100"),
    ("open, and hidden from other processes", HIDDEN, "hidden open /workspace 60 100"),
];
const HIDDEN: &str = "hidden open /workspace 60 0";

fn bombs() -> Vec<Bomb> {
    let memory = MEMORY.map(|(name, words)| Bomb {
        name,
        harm: (words, "400 MiB"),
        words,
        limits: json!({ "memoryMb": 128 }),
        cut: Cut::Itself,
    });
    let files = FILES.map(|(name, harm, words)| Bomb {
        name,
        harm: (harm, "60 MiB"),
        words,
        limits: json!({ "diskMb": 20 }),
        cut: Cut::Sandbox("disk_limit"),
    });
    memory.into_iter().chain(files).collect()
}

#[tokio::test]
async fn as_root_bombs_in_disguise_harm_only_their_own_sandbox() {
    go_off(Server::with(&IMPATIENT).await).await;
}

#[tokio::test]
async fn slowly_as_root_bombs_in_disguise_in_an_ordinary_users_server_harm_only_their_own_sandbox() {
    assert!(as_root(), "only root can become another user");
    go_off(Server::of_user(ORDINARY_USER, &IMPATIENT).await).await;
}

async fn go_off(server: Server) {
    let bystander = server.client().create().await;
    let (beside, pulse) = (Beside::begin(&server, bystander), Pulse::begin(&server));
    let mut bombs = bombs();
    // A server without root cannot inspect a container's processes that hide themselves.
    bombs.retain(|bomb| !in_docker() || server.uid() == 0 || bomb.harm.0 != HIDDEN);
    Sapper::new(&server, &lifted()).await.does_harm(&bombs).await;
    for bomb in &bombs {
        Sapper::new(&server, &bomb.limits).await.is_cut_short(bomb).await;
    }
    // 60 MiB shared by seven processes are still 60, so this is no bomb.
    let got = Sapper::new(&server, &json!({ "memoryMb": 128 })).await.light("share 6 60").await;
    assert!(got.starts_with("reached 60 MiB in 6 processes"), "memory that many have counts once: {got}");
    let answers = beside.end().await;
    println!("the session beside answered {answers} times; {}", pulse.end().await);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}
