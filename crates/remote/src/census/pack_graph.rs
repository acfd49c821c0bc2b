//! Which packs refer to which, to find what a missing pack affects. Built only when something is missing, because it
//! reads packs.

use crate::pack_log;
use ash_snapshot::{Repo, TreeId};
use std::collections::{HashMap, HashSet};

pub(crate) struct PackGraph<'g> {
    repo: &'g Repo,
    /// Packs that the bucket has with their full size.
    there: &'g HashSet<&'g str>,
    /// Packs that were missing at the last census.
    known_missing: &'g HashSet<String>,
    /// The packs that each pack refers to. `None`: the pack cannot be read, or garbage collection has removed that
    /// part.
    references: HashMap<String, Option<Vec<String>>>,
    nodes: HashMap<String, PackNode>,
    /// The packs that the database's snapshots need.
    needed: HashSet<String>,
    /// At least one snapshot's needs are unknown.
    is_unclear: bool,
    /// For each snapshot, whether its packs lead back to the beginning of its log.
    logs: HashMap<String, bool>,
}

#[derive(Debug, Clone, Copy)]
struct PackNode {
    /// The pack is in the bucket, with everything that it needs.
    is_intact: bool,
    /// Everything that the pack needs is known.
    is_clear: bool,
}

impl<'g> PackGraph<'g> {
    pub(crate) fn new(
        repo: &'g Repo,
        there: &'g HashSet<&'g str>,
        known_missing: &'g HashSet<String>,
    ) -> PackGraph<'g> {
        PackGraph {
            repo,
            there,
            known_missing,
            references: HashMap::new(),
            nodes: HashMap::new(),
            needed: HashSet::new(),
            is_unclear: false,
            logs: HashMap::new(),
        }
    }

    /// Whether a snapshot can be restored from the bucket, with its files and the log that led to it.
    pub(crate) fn is_restorable(&mut self, tree: &str) -> bool {
        let Ok(tree) = TreeId::parse(tree) else { return false };
        // Both are always evaluated, because that notes every needed pack.
        let (files, log) = (self.has_files(&tree), self.has_log(&tree));
        files && log
    }

    /// Whether a snapshot in the database may need a pack.
    pub(crate) fn may_be_needed(&self, pack: &str) -> bool {
        self.is_unclear || self.needed.contains(pack)
    }

    pub(crate) fn is_intact(&mut self, pack: &str) -> bool {
        self.node(pack).is_intact
    }

    fn has_files(&mut self, tree: &TreeId) -> bool {
        let own = tree.pack_name();
        let node = self.node(own);
        self.need(own);
        if node.is_intact {
            return true;
        }
        if node.is_clear && !self.there.contains(own) {
            return false;
        }
        // Slower but exact: the snapshot may need only a part of what a pack refers to.
        match self.repo.packs_of(tree) {
            Ok(packs) => {
                let is_whole = packs.iter().all(|pack| self.there.contains(pack.as_str()));
                self.needed.extend(packs);
                is_whole
            }
            Err(_) => {
                self.is_unclear = true;
                false
            }
        }
    }

    fn need(&mut self, pack: &str) {
        let mut waiting = vec![pack.to_owned()];
        while let Some(pack) = waiting.pop() {
            if self.needed.insert(pack.clone()) {
                waiting.extend(self.references(&pack).into_iter().flatten());
            }
        }
    }

    fn references(&mut self, pack: &str) -> Option<Vec<String>> {
        let repo = self.repo;
        let read = || repo.references_of(pack).ok();
        self.references.entry(pack.to_owned()).or_insert_with(read).clone()
    }

    /// Visits the packs that it refers to first, without recursion, because the chain may be long.
    fn node(&mut self, pack: &str) -> PackNode {
        let mut waiting = vec![(pack.to_owned(), false)];
        while let Some((pack, is_ready)) = waiting.pop() {
            if self.nodes.contains_key(&pack) {
                continue;
            }
            let references = self.references(&pack);
            if let (Some(references), false) = (&references, is_ready) {
                waiting.push((pack, true));
                waiting.extend(references.iter().map(|other| (other.clone(), false)));
                continue;
            }
            let is_there = self.there.contains(pack.as_str());
            let all = |quality: fn(&PackNode) -> bool| {
                let others = references.iter().flatten();
                references.is_some() && { others }.all(|other| self.nodes.get(other).is_some_and(quality))
            };
            let is_intact = is_there && all(|node| node.is_intact);
            let is_clear = all(|node| node.is_clear);
            self.nodes.insert(pack, PackNode { is_intact, is_clear });
        }
        self.nodes.get(pack).copied().unwrap_or(PackNode { is_intact: false, is_clear: false })
    }

    /// Whether the session's whole log is in packs. Each pack holds the events since the pack before it.
    fn has_log(&mut self, tree: &TreeId) -> bool {
        let (mut walked, mut next, mut session) = (HashSet::new(), Some(tree.clone()), None);
        let mut is_readable = true;
        while let Some(tree) = next.take() {
            if let Some(known) = self.logs.get(tree.as_str()) {
                is_readable = *known;
                break;
            }
            let read = pack_log::read_record(self.repo, &tree);
            // The agent's own files, or the parent's snapshot that a fork began with.
            if matches!(&read, Ok(record) if record.is_none() || is_anothers(record.as_ref(), session.as_ref()))
            {
                break;
            }
            self.needed.insert(tree.pack_name().to_owned());
            is_readable = self.is_there_or_lost(tree.pack_name());
            let is_new = walked.insert(tree.to_string());
            if let (Ok(Some(record)), true, true) = (read, is_readable, is_new) {
                next = TreeId::parse(&record.previous).ok().filter(|_| record.after > 0);
                session = Some(record.session);
            }
        }
        self.logs.extend(walked.into_iter().map(|tree| (tree, is_readable)));
        is_readable
    }

    /// A manifest holds the events of packs that were known to be lost when the manifest was sent.
    fn is_there_or_lost(&self, pack: &str) -> bool {
        let is_lost = self.known_missing.contains(pack) && self.repo.pack_file(pack).is_none();
        is_lost || self.there.contains(pack)
    }
}

fn is_anothers(
    record: Option<&ash_model::embedded_log::PackSessionRecord>,
    session: Option<&ash_model::SessionId>,
) -> bool {
    matches!((record, session), (Some(record), Some(session)) if record.session != *session)
}
