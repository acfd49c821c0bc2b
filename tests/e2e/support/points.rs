//! Fail points of a server under test (`crates/failpoint`): the server dies or waits at an instant that a test names.

use super::{Server, eventually};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The server dies there, as by `kill -9`.
    Abort,
    /// It dies at this pass after the point was armed, counted from one.
    AbortAt(u64),
    /// Each pass waits until it is released.
    Pause,
    /// Only this pass waits; later ones continue.
    PauseAt(u64),
}

impl Server {
    pub(super) fn points(&self) -> PathBuf {
        self.dir.join("points")
    }

    /// At any time, whether the server runs or not.
    pub fn arm(&self, name: &str, point: Point) {
        let order = match point {
            Point::Abort => "abort".to_owned(),
            Point::AbortAt(pass) => format!("abort {pass}"),
            Point::Pause => "pause".to_owned(),
            Point::PauseAt(pass) => format!("pause {pass}"),
        };
        // Left by an earlier pass that waited and was abandoned.
        std::fs::remove_file(self.points().join(format!("{name}.reached"))).ok();
        std::fs::write(self.points().join(name), order).expect("a point is armed");
    }

    /// Waits until the server reaches a point.
    pub async fn reached(&self, name: &str) {
        let reached = self.points().join(format!("{name}.reached"));
        eventually(&format!("the server is at {name}"), async || reached.exists().then_some(())).await;
    }

    /// Releases all passes at a point, and disarms it.
    pub fn release(&self, name: &str) {
        std::fs::remove_file(self.points().join(name)).expect("an armed point");
    }

    /// Lets the offline agent continue a held text (`hold NAME: …`).
    pub async fn let_go(&self, id: &str, name: &str) {
        let_go(&self.live(id).await, name);
    }

    /// Waits until the server has died at an armed point, and disarms it.
    pub async fn died_at(&mut self, name: &str) {
        let mut child = self.child.take().expect("a running server");
        let status =
            eventually(&format!("the server ends at {name}"), async || child.try_wait().expect("wait")).await;
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(libc::SIGKILL), "{status}\n{}", self.log());
        self.release(name);
    }
}

/// The same without a request to the server, which may be dead: by the session's directory on disk.
pub fn let_go(live: &Path, name: &str) {
    let (workspace, file) = (live.join("tree/workspace"), live.join("tree/workspace").join(name));
    std::fs::write(&file, "").expect("a file in the workspace");
    let owner = std::os::unix::fs::MetadataExt::uid(&workspace.metadata().expect("a workspace"));
    std::os::unix::fs::chown(&file, Some(owner), Some(owner)).expect("the sandbox's own");
}
