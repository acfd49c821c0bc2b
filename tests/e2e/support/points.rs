//! Fail points of a server under test (`crates/failpoint`): it ends or waits at an instant that a test names.

use super::{Server, eventually};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The server ends there, as by `kill -9`.
    Abort,
    /// It ends at this pass since the point was armed, counted from one.
    AbortAt(u64),
    /// What comes there waits until it is released.
    Pause,
    /// The same at this pass alone: what comes after it goes on.
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
        // Of somebody who was held there, and given up.
        std::fs::remove_file(self.points().join(format!("{name}.reached"))).ok();
        std::fs::write(self.points().join(name), order).expect("a point is armed");
    }

    /// Waits until something of the server is held at a point.
    pub async fn reached(&self, name: &str) {
        let reached = self.points().join(format!("{name}.reached"));
        eventually(&format!("the server is at {name}"), async || reached.exists().then_some(())).await;
    }

    /// Lets go whatever is held at a point, and nothing is held there any more.
    pub fn release(&self, name: &str) {
        std::fs::remove_file(self.points().join(name)).expect("an armed point");
    }

    /// Lets the offline agent go on with a text that it holds (`hold NAME: …`).
    pub async fn let_go(&self, id: &str, name: &str) {
        let_go(&self.live(id).await, name);
    }

    /// Waits until the server has ended at an armed point, and disarms it.
    pub async fn died_at(&mut self, name: &str) {
        let mut child = self.child.take().expect("a running server");
        let status =
            eventually(&format!("the server ends at {name}"), async || child.try_wait().expect("wait")).await;
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(libc::SIGKILL), "{status}\n{}", self.log());
        self.release(name);
    }
}

/// The same, where the server may be dead: by the place of the session on disk.
pub fn let_go(live: &Path, name: &str) {
    let (workspace, file) = (live.join("tree/workspace"), live.join("tree/workspace").join(name));
    std::fs::write(&file, "").expect("a file in the workspace");
    let owner = std::os::unix::fs::MetadataExt::uid(&workspace.metadata().expect("a workspace"));
    std::os::unix::fs::chown(&file, Some(owner), Some(owner)).expect("the sandbox's own");
}
