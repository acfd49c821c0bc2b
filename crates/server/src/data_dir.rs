//! Protects the data directory: it holds keys and every conversation, so only the server's user may enter it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
};

/// Creates the directory if it does not exist. If other users can enter it, this restricts it if it is ours, and
/// refuses it otherwise.
pub(crate) fn create_private(path: &Path) -> Result<(), String> {
    create_private_dir(path)?;
    let cannot = |error: std::io::Error| format!("cannot look at {}: {error}", path.display());
    let found = fs::metadata(path).map_err(cannot)?;
    check(path, (found.uid(), found.mode()), rustix::process::geteuid().as_raw())
}

/// Creates a directory that only our user can enter, if it does not exist.
pub(crate) fn create_private_dir(path: &Path) -> Result<(), String> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| format!("cannot make {}: {error}", path.display()))
}

fn check(path: &Path, (owner, mode): (u32, u32), us: u32) -> Result<(), String> {
    let at = path.display();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    // The sticky bit marks a directory that users share, such as /tmp. Restricting it would break the machine.
    if owner != us || mode & 0o1000 != 0 {
        return Err(format!(
            "the data directory {at} can be entered by others (mode {:04o}, owned by uid {owner}, and this server runs as {us}): give this server one of its own with ASH_DATA_DIR, or `chown {us} {at} && chmod 0700 {at}`",
            mode & 0o7777
        ));
    }
    fs::set_permissions(path, Permissions::from_mode(0o700))
        .map_err(|error| format!("cannot set the mode of {at} to 0700: {error}"))?;
    tracing::warn!(path = %at, was = format!("{:04o}", mode & 0o7777), "the data directory was open to others; its mode is now 0700");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").mode() & 0o7777
    }

    #[test]
    fn a_data_directory_that_others_can_enter_is_closed_to_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        create_private(&data).expect("made");
        assert_eq!(mode(&data), 0o700);
        fs::set_permissions(&data, Permissions::from_mode(0o755)).expect("open");
        create_private(&data).expect("closed");
        assert_eq!(mode(&data), 0o700);
    }

    #[test]
    fn one_of_another_user_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let refused = check(dir.path(), (1001, 0o40_755), 1000).expect_err("refused");
        assert!(refused.contains("ASH_DATA_DIR") && refused.contains("uid 1001"), "{refused}");
        assert_eq!(check(dir.path(), (1001, 0o40_700), 0), Ok(()), "only its owner can enter it");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).expect("shared");
        create_private(dir.path()).expect_err("a shared place is not closed");
        assert_eq!(mode(dir.path()), 0o1777);
    }
}
