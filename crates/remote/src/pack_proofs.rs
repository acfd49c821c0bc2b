//! Which sessions a repository's packs prove, and up to which event. Every checkpoint's pack holds its session's
//! record. The results are cached in a file beside the packs, so that a start reads only new packs.

use crate::{Result, pack_log};
use ash_model::{Epoch, EventSeq, SessionId, TenantId, Timestamp, WorkspaceId, remote::TombstoneLine};
use ash_snapshot::Repo;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    io::Write,
    path::{Path, PathBuf},
};

/// The number of new packs above which another thread is used.
const PACKS_PER_THREAD: usize = 256;
const MAX_THREADS: usize = 4;

/// What one pack proves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PackProof {
    pub session: SessionId,
    pub workspace: WorkspaceId,
    /// Missing in older packs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// The last event of the log in the pack.
    pub seq: EventSeq,
    pub tree: String,
    pub at: Timestamp,
}

impl PackProof {
    /// Whether the session was purged after the pack was written.
    pub fn is_buried(&self, tombstone: &TombstoneLine) -> bool {
        self.epoch.map_or(self.at <= tombstone.purged_at, |epoch| epoch <= tombstone.epoch)
    }

    fn rank(&self) -> (u64, EventSeq) {
        (self.epoch.map_or(0, |epoch| epoch.0), self.seq)
    }
}

/// A line of the file. `proof` is missing if the pack holds no session's record.
#[derive(Serialize, Deserialize)]
struct PackProofLine {
    pack: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    proof: Option<PackProof>,
}

#[derive(Debug, Default)]
pub struct PackProofs {
    file: PathBuf,
    known: HashMap<String, Option<PackProof>>,
    /// Unreadable packs, and why they are. What they prove is unknown.
    pub unreadable: BTreeMap<String, String>,
}

impl PackProofs {
    pub fn open(file: &Path) -> PackProofs {
        let text = fs::read_to_string(file).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<PackProofLine>(line).ok());
        let known = lines.map(|line| (line.pack, line.proof)).collect();
        PackProofs { file: file.to_owned(), known, unreadable: BTreeMap::new() }
    }

    /// Reads the records of new packs, and forgets packs that are not among `packs`.
    pub fn refresh(&mut self, repo: &Repo, tenant: &TenantId, packs: &[String]) -> Result<()> {
        let there: HashSet<&String> = packs.iter().collect();
        let (known, gone): (HashMap<_, _>, HashMap<_, _>) =
            self.known.drain().partition(|(pack, _)| there.contains(pack));
        self.known = known;
        let new: Vec<&String> = packs.iter().filter(|pack| !self.known.contains_key(*pack)).collect();
        let threads = (new.len() / PACKS_PER_THREAD + 1).min(MAX_THREADS);
        let each = new.len().div_ceil(threads).max(1);
        let read = std::thread::scope(|scope| {
            let parts = new.chunks(each).map(|part| {
                scope.spawn(move || part.iter().map(|pack| read(repo, tenant, pack)).collect::<Vec<_>>())
            });
            let parts: Vec<_> = parts.collect();
            parts.into_iter().flat_map(|part| part.join().unwrap_or_default()).collect::<Vec<_>>()
        });
        self.unreadable.clear();
        let mut lines = Vec::new();
        for (pack, proof) in read {
            match proof {
                Ok(proof) => {
                    lines.push(PackProofLine { pack: pack.clone(), proof: proof.clone() });
                    self.known.insert(pack, proof);
                }
                Err(why) => drop(self.unreadable.insert(pack, why)),
            }
        }
        if gone.len() > self.known.len() || self.was_last_of_one(&gone) {
            let all = self.known.iter();
            lines =
                all.map(|(pack, proof)| PackProofLine { pack: pack.clone(), proof: proof.clone() }).collect();
            fs::remove_file(&self.file).ok();
        }
        // A file beside a sealed repository must not name its sessions, so its packs are read again after every start.
        if !repo.has_key() {
            self.append(&lines);
        }
        Ok(())
    }

    /// Whether a session has no pack left. It may have been purged, and then the file must not name it any more.
    fn was_last_of_one(&self, gone: &HashMap<String, Option<PackProof>>) -> bool {
        let gone: HashSet<&SessionId> = gone.values().flatten().map(|proof| &proof.session).collect();
        let left: HashSet<&SessionId> = match gone.is_empty() {
            true => HashSet::new(),
            false => self.known.values().flatten().map(|proof| &proof.session).collect(),
        };
        !gone.is_subset(&left)
    }

    /// Reads the records of these packs if they are new, and keeps the others.
    pub fn learn(&mut self, repo: &Repo, tenant: &TenantId, packs: &[String]) -> Result<()> {
        let all: Vec<String> = self.known.keys().chain(packs).cloned().collect();
        self.refresh(repo, tenant, &all)
    }

    pub fn knows(&self, pack: &str) -> bool {
        self.known.contains_key(pack) || self.unreadable.contains_key(pack)
    }

    /// Every pack that holds a session's record, and what it proves.
    pub fn proofs(&self) -> impl Iterator<Item = (&String, &PackProof)> {
        self.known.iter().filter_map(|(pack, proof)| Some((pack, proof.as_ref()?)))
    }

    /// The furthest that each session is proven.
    pub fn newest(&self) -> HashMap<&SessionId, &PackProof> {
        let mut newest: HashMap<&SessionId, &PackProof> = HashMap::new();
        for proof in self.known.values().flatten() {
            let known = newest.entry(&proof.session).or_insert(proof);
            if proof.rank() > known.rank() {
                *known = proof;
            }
        }
        newest
    }

    pub fn newest_of(&self, session: &SessionId) -> Option<&PackProof> {
        let all = self.known.values().flatten().filter(|proof| proof.session == *session);
        all.max_by_key(|proof| proof.rank())
    }

    /// `None`: it is unknown what is in the pack. `Some(None)`: it holds no session's record.
    pub fn proof_in(&self, pack: &str) -> Option<Option<&PackProof>> {
        self.known.get(pack).map(Option::as_ref)
    }

    /// A failure only means that the next start reads more packs.
    fn append(&self, lines: &[PackProofLine]) {
        if lines.is_empty() {
            return;
        }
        let mut text = String::from("\n");
        for line in lines {
            text.push_str(&serde_json::to_string(line).expect("plain words and numbers"));
            text.push('\n');
        }
        let append = || -> std::io::Result<()> {
            self.file.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::File::options().create(true).append(true).open(&self.file)?.write_all(text.as_bytes())
        };
        if let Err(error) = append() {
            tracing::warn!(%error, file = %self.file.display(), "the cache of pack proofs could not be written; the next start reads the packs again");
        }
    }
}

fn read(
    repo: &Repo,
    tenant: &TenantId,
    pack: &str,
) -> (String, std::result::Result<Option<PackProof>, String>) {
    let proof = || -> Result<Option<PackProof>> {
        let Some(tree) = repo.snapshot_in(pack)? else { return Ok(None) };
        // A pack of another tenant proves nothing, even if it was copied here.
        let record = pack_log::read_record(repo, &tree)?.filter(|record| record.tenant == *tenant);
        Ok(record.map(|record| PackProof {
            session: record.session,
            workspace: record.workspace,
            epoch: record.epoch,
            seq: record.through,
            tree: tree.to_string(),
            at: record.at,
        }))
    };
    (pack.to_owned(), proof().map_err(|error| error.to_string()))
}
