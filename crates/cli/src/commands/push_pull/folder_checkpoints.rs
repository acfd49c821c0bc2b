//! Records which checkpoint of a workspace each local folder has, after a push or a pull. The next pull applies only
//! later changes. Without this record a pull only reports more conflicts.

use crate::settings;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// By workspace, which no two servers share, and by the canonical path of the folder.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct FolderCheckpoints(BTreeMap<String, BTreeMap<String, u64>>);

fn store_path() -> Option<PathBuf> {
    settings::home().map(|home| home.join(".ash/folders.json"))
}

fn load(file: &Path) -> FolderCheckpoints {
    fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// The number of the checkpoint that the folder has.
pub(super) fn checkpoint(workspace: &str, dir: &Path) -> Option<u64> {
    load(&store_path()?).0.get(workspace)?.get(dir.to_str()?).copied()
}

/// The command has succeeded even if this record cannot be written.
pub(super) fn store_checkpoint(workspace: &str, dir: &Path, checkpoint: u64) {
    if let (Some(file), Some(dir)) = (store_path(), dir.to_str()) {
        let mut known = load(&file);
        known.0.entry(workspace.to_owned()).or_default().insert(dir.to_owned(), checkpoint);
        store(&file, &known).ok();
    }
}

fn store(file: &Path, known: &FolderCheckpoints) -> io::Result<()> {
    let dir = file.parent().unwrap_or(file);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let fresh = file.with_extension(format!("{}.new", std::process::id()));
    fs::write(&fresh, serde_json::to_vec_pretty(known)?)?;
    fs::rename(&fresh, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_checkpoint_format_is_that_of_the_first_version() {
        let golden = r#"{"01a1e209-80d3-7766-a29f-b1c6e342209a":{"/home/me/project":4}}"#;
        let folders = BTreeMap::from([("/home/me/project".to_owned(), 4)]);
        let known =
            FolderCheckpoints(BTreeMap::from([("01a1e209-80d3-7766-a29f-b1c6e342209a".to_owned(), folders)]));
        assert_eq!(serde_json::to_string(&known).expect("plain"), golden);
        assert_eq!(serde_json::from_str::<FolderCheckpoints>(golden).expect("read"), known);
    }
}
