//! Checks the database files before SQLite opens them. SQLite silently ends its write-ahead log at the first damaged
//! frame, so every later commit would be lost without a message. The same holds for a deleted log.

use ash_model::{Timestamp, WorkspaceId};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
};

const DATABASE: &str = "ash.db";
/// Exists while the database is open: if the log is missing then, it was deleted.
const OPEN: &str = "ash.db.open";
/// Describes the damage until `ash repair` has handled it.
const DAMAGE: &str = "ash.db.damage";
/// Directory for live trees that no witness knows.
const ORPHAN_TREES_DIR: &str = "lost";

/// The file `ash.db.damage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DatabaseDamage {
    pub(crate) at: Timestamp,
    pub(crate) error: String,
}

/// Records damage, with a copy of the log as it was found.
pub(crate) fn check_wal(data: &Path, boot: &str) -> Result<(), String> {
    let failed = |what: &str, error: std::io::Error| format!("cannot {what} in {}: {error}", data.display());
    let was_open = fs::read_to_string(data.join(OPEN)).ok();
    let log = data.join("ash.db-wal");
    let found = match fs::File::open(&log) {
        Ok(file) => {
            find_wal_damage(file, was_open.as_deref() == Some(boot)).map_err(|e| failed("read the log", e))?
        }
        Err(error) if error.kind() == ErrorKind::NotFound => was_open
            .is_some_and(|_| data.join(DATABASE).exists())
            .then(|| "its write-ahead log is missing, and with it what was committed last".to_owned()),
        Err(error) => return Err(failed("open the log", error)),
    };
    let Some(found) = found else { return Ok(()) };
    let at = Timestamp::now();
    let mut error = format!("The database was damaged: {found}.");
    if log.exists() {
        let copy = data.join(format!("ash.db-wal.damaged-{}", at.0));
        fs::copy(&log, &copy).map_err(|e| failed("copy the damaged log", e))?;
        error.push_str(&format!(" The log as it was found is kept in {}.", copy.display()));
    }
    let text = serde_json::to_vec(&DatabaseDamage { at, error }).expect("plain words and numbers");
    let fresh = data.join("ash.db.damage.new");
    fs::write(&fresh, text)
        .and_then(|()| fs::File::open(&fresh)?.sync_all())
        .and_then(|()| fs::rename(&fresh, data.join(DAMAGE)))
        .map_err(|e| failed("note the damage", e))
}

/// Recorded damage that no repair has handled yet.
pub(crate) fn recorded_damage(data: &Path) -> Option<DatabaseDamage> {
    serde_json::from_slice(&fs::read(data.join(DAMAGE)).ok()?).ok()
}

pub(crate) fn clear_damage(data: &Path) -> Result<(), String> {
    remove(&data.join(DAMAGE))
}

pub(crate) fn mark_open(data: &Path, boot: &str) -> Result<(), String> {
    fs::write(data.join(OPEN), boot).map_err(|error| format!("cannot write to {}: {error}", data.display()))
}

/// Called after the database is closed, because closing removes its log.
pub(crate) fn mark_closed(data: &Path) {
    remove(&data.join(OPEN)).ok();
}

/// Moves an unreadable database aside for a new one. It deletes nothing.
pub(crate) fn move_damaged_aside(data: &Path) -> Result<PathBuf, String> {
    let to = data.join(format!("{DATABASE}.damaged-{}", Timestamp::now().0));
    for ending in ["", "-wal", "-shm"] {
        let from = data.join(format!("{DATABASE}{ending}"));
        let to = PathBuf::from(format!("{}{ending}", to.display()));
        match fs::rename(&from, &to) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot put {} aside: {error}", from.display())),
        }
    }
    mark_closed(data);
    Ok(to)
}

/// Moves live trees that no witness knows to a directory that the server does not use.
pub(crate) fn move_orphan_trees(data: &Path, workspaces: &[WorkspaceId]) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("cannot put a tree aside in {}: {error}", data.display());
    let mut kept = Vec::new();
    for workspace in workspaces {
        let to = data.join(ORPHAN_TREES_DIR).join(workspace.to_string());
        fs::create_dir_all(data.join(ORPHAN_TREES_DIR)).map_err(failed)?;
        fs::rename(data.join("live").join(workspace.to_string()), &to).map_err(failed)?;
        kept.push(to);
    }
    Ok(kept)
}

fn remove(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Describes the damage if a write-ahead log has more than SQLite will read. `same_boot`: the machine has not restarted
/// since the log was written, so a partly written frame is damage.
fn find_wal_damage(mut file: impl Read, same_boot: bool) -> std::io::Result<Option<String>> {
    let mut header = [0; 32];
    if !read_full(&mut file, &mut header)? {
        return Ok(None);
    }
    let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (big, page) = (word(0) & 1 == 1, word(8) as usize);
    let salts = &header[16..24];
    let is_magic = word(0) & !1 == 0x377f_0682 && page.is_power_of_two() && (512..=65536).contains(&page);
    let mut sums = wal_checksum(big, (0, 0), &header[..24]);
    if !is_magic || sums != (word(24), word(28)) {
        return Ok(Some("the beginning of its write-ahead log is not whole".to_owned()));
    }
    let (mut frame, mut bad, mut number) = (vec![0; 24 + page], None, 0_u64);
    while read_full(&mut file, &mut frame)? {
        number += 1;
        let ours = frame[8..16] == *salts;
        match bad {
            None => {
                let next = wal_checksum(big, wal_checksum(big, sums, &frame[..8]), &frame[24..]);
                let said =
                    |at: usize| u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
                match ours && next == (said(16), said(20)) {
                    true => sums = next,
                    false if ours && same_boot => return Ok(Some(not_whole(number))),
                    false => bad = Some(number),
                }
            }
            // A frame with other salts is left from an earlier round of the log.
            Some(bad) if ours => return Ok(Some(not_whole(bad))),
            Some(_) => {}
        }
    }
    Ok(None)
}

fn not_whole(frame: u64) -> String {
    format!(
        "frame {frame} of its write-ahead log is not whole, and what was committed from there on is not read"
    )
}

/// False: end of file.
fn read_full(file: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// SQLite's checksum, which continues from the previous one.
fn wal_checksum(big: bool, (mut one, mut two): (u32, u32), bytes: &[u8]) -> (u32, u32) {
    let word = |bytes: &[u8]| match big {
        true => u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        false => u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
    };
    for pair in bytes.chunks_exact(8) {
        one = one.wrapping_add(word(&pair[..4])).wrapping_add(two);
        two = two.wrapping_add(word(&pair[4..])).wrapping_add(one);
    }
    (one, two)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_store::{ReplicationStore, SealingKey, SqliteStore};

    /// The log of a real database after three writes.
    async fn log() -> Vec<u8> {
        let dir = tempfile::tempdir().expect("a directory");
        let seal = SealingKey::open(&dir.path().join("seal.key")).expect("a key");
        let store = SqliteStore::open(&dir.path().join("ash.db"), seal).await.expect("a database");
        for place in ["a", "b", "c"] {
            store.set_remote(place).await.expect("written");
        }
        let log = fs::read(dir.path().join("ash.db-wal")).expect("a log");
        store.close().await;
        log
    }

    #[tokio::test]
    async fn a_log_that_sqlite_would_cut_short_is_noticed() {
        let log = log().await;
        let damage = |log: &[u8], same_boot| find_wal_damage(log, same_boot).expect("read");
        assert_eq!((damage(&log, true), damage(&log, false)), (None, None), "it is whole");
        let page = u32::from_be_bytes(log[8..12].try_into().expect("four bytes")) as usize;
        let frames = (log.len() - 32) / (24 + page);
        assert!(frames > 3, "{frames}");
        for at in [0, 9, 17, 30, 32, 32 + 9, 32 + 20, 32 + 24, 32 + 24 + page / 2, 32 + 24 + page + 100] {
            let mut flipped = log.clone();
            flipped[at] ^= 1;
            assert!(damage(&flipped, true).is_some(), "byte {at}");
            assert!(damage(&flipped, false).is_some(), "byte {at}");
        }
        let mut last = log.clone();
        *last.last_mut().expect("bytes") ^= 1;
        assert!(damage(&last, true).is_some(), "the last frame was not written in part");
        assert_eq!(damage(&last, false), None, "the machine may have died while it was written");
        assert_eq!(
            damage(&log[..log.len() - 10], true),
            None,
            "a frame that was never whole was never promised"
        );
        assert_eq!(damage(&[], true), None);
    }

    #[test]
    fn frames_of_an_earlier_round_are_no_damage() {
        let round = |salt: u8, frames: u8, whole: bool| {
            let mut log = vec![0; 32];
            log[..12].copy_from_slice(&[0x37, 0x7f, 0x06, 0x82, 0, 0x2d, 0xe2, 0x18, 0, 0, 2, 0]);
            log[16..24].fill(salt);
            let mut sums = wal_checksum(false, (0, 0), &log[..24]);
            log[24..28].copy_from_slice(&sums.0.to_be_bytes());
            log[28..32].copy_from_slice(&sums.1.to_be_bytes());
            for number in 0..frames {
                let mut frame = vec![number; 24 + 512];
                frame[8..16].fill(salt);
                sums = wal_checksum(false, wal_checksum(false, sums, &frame[..8]), &frame[24..]);
                frame[16..20].copy_from_slice(&sums.0.to_be_bytes());
                frame[20..24].copy_from_slice(&sums.1.to_be_bytes());
                log.extend(frame);
            }
            if whole { log } else { log[32..].to_vec() }
        };
        let log = [round(7, 2, true), round(6, 3, false)].concat();
        assert_eq!(find_wal_damage(&log[..], true).expect("read"), None);
    }

    #[test]
    fn a_log_that_was_deleted_is_noticed_and_said_until_it_is_dealt_with() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(DATABASE), "x").expect("written");
        check_wal(dir.path(), "boot").expect("looked at");
        assert_eq!(recorded_damage(dir.path()), None, "it was closed");
        mark_open(dir.path(), "boot").expect("marked");
        check_wal(dir.path(), "boot").expect("looked at");
        let found = recorded_damage(dir.path()).expect("noticed");
        assert!(found.error.contains("missing"), "{found:?}");
        mark_closed(dir.path());
        check_wal(dir.path(), "boot").expect("looked at");
        assert_eq!(recorded_damage(dir.path()), Some(found));
        clear_damage(dir.path()).expect("forgotten");
        assert_eq!(recorded_damage(dir.path()), None);
    }
}
