//! The permissions of the server's files.

use crate::support::Server;
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode()
        & 0o7777
}

#[tokio::test]
async fn a_data_directory_that_others_could_enter_is_closed_with_a_log_line() {
    let mut server = Server::prepare(&[]);
    fs::create_dir(&server.data).expect("a directory");
    fs::set_permissions(&server.data, Permissions::from_mode(0o755)).expect("open to all");
    // The modes that an older version may have left.
    for name in ["ash.db", "ash.db-wal", "ash.db-shm"] {
        fs::write(server.data.join(name), "").expect("a file");
        fs::set_permissions(server.data.join(name), Permissions::from_mode(0o644)).expect("open to all");
    }
    server.launch().await;
    let client = server.client();
    client.deploy("tester").await;
    client.create().await;
    assert_eq!(mode(&server.data), 0o700);
    let log = server.log();
    let line = log.lines().find(|line| line.contains("the data directory was open to others"));
    assert!(line.is_some_and(|line| line.contains("0755")), "{log}");
    for name in ["ash.db", "ash.db-wal", "ash.db-shm", "seal.key"] {
        assert_eq!(mode(&server.data.join(name)), 0o600, "{name}");
    }
    server.crash_and_start().await;
    assert_eq!(server.log().matches("the data directory was open to others").count(), 1, "said once");
}
