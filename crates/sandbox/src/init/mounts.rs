//! Checks the mounts inside a container: a volume beneath the workspace or the home would hide the agent's files from
//! every checkpoint and every limit.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Some volumes of an image show only once they are mounted, for example if their path goes through a link.
pub(super) fn refuse_beneath(places: &[PathBuf]) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    match beneath(&mounts, places) {
        None => Ok(()),
        Some(at) => Err(io::Error::other(format!(
            "{} is a volume, and no checkpoint would hold what is written there; use an image without that VOLUME",
            at.display()
        ))),
    }
}

fn beneath(mounts: &str, places: &[PathBuf]) -> Option<PathBuf> {
    let points =
        mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(|at| PathBuf::from(unescaped(at)));
    let is_beneath = |at: &Path| places.iter().any(|place| at != place && at.starts_with(place));
    points.into_iter().find(|at| is_beneath(at))
}

/// The kernel writes blanks and similar characters as octal numbers.
fn unescaped(text: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .into_iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_within_are_refused() {
        let places = ["/workspace".into(), "/home/agent".into()];
        let line = |at: &str| format!("36 35 0:52 / {at} rw,nosuid - ext4 /dev/sda rw\n");
        let fine = ["/", "/workspace", "/home/agent", "/home", "/workspaces/x", "/tmp"].map(line).concat();
        assert_eq!(beneath(&fine, &places), None);
        let found = beneath(&format!("{fine}{}", line("/home/agent/my\\040data")), &places);
        assert_eq!(found, Some("/home/agent/my data".into()));
        assert_eq!(beneath(&line("/workspace/a/b"), &places), Some("/workspace/a/b".into()));
    }
}
