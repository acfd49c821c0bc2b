//! Which packs need which. Built only when something is missing: it reads packs.

use crate::embedded_log;
use ash_snapshot::{Repo, TreeId};
use std::collections::{HashMap, HashSet};

pub(super) struct PackGraph<'g> {
    repo: &'g Repo,
    /// Packs that the object store has whole.
    there: &'g HashSet<&'g str>,
    /// Packs that were missing at the last census.
    known_missing: &'g HashSet<String>,
    /// What each pack names. `None`: it cannot be read, or was made smaller and cannot say it any more.
    references: HashMap<String, Option<Vec<String>>>,
    nodes: HashMap<String, PackNode>,
    /// What something that is wanted needs.
    needed: HashSet<String>,
    /// Of something that is wanted it cannot be said what it needs.
    is_unclear: bool,
    /// Whether the log can be told from a tree on, back to its beginning.
    logs: HashMap<String, bool>,
}

#[derive(Debug, Clone, Copy)]
struct PackNode {
    /// It is there, with everything that it needs.
    is_intact: bool,
    /// Everything that it needs is known.
    is_clear: bool,
}

impl<'g> PackGraph<'g> {
    pub(super) fn new(
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

    /// Whether this can be brought back with its files and with the log that led to it.
    pub(super) fn is_restorable(&mut self, tree: &str) -> bool {
        let Ok(tree) = TreeId::parse(tree) else { return false };
        // Both, so that everything is known that is needed.
        let (files, log) = (self.has_files(&tree), self.has_log(&tree));
        files && log
    }

    /// Whether a pack may be among what something wanted needs.
    pub(super) fn may_be_needed(&self, pack: &str) -> bool {
        self.is_unclear || self.needed.contains(pack)
    }

    pub(super) fn is_intact(&mut self, pack: &str) -> bool {
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
        // Slower, and exact: of a pack that it needs it may not need everything.
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

    /// Those that it needs first, without recursion: a line of packs may be long.
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

    /// The packs of one session tell its log, each what happened after the one before.
    fn has_log(&mut self, tree: &TreeId) -> bool {
        let (mut walked, mut next, mut session) = (HashSet::new(), Some(tree.clone()), None);
        let mut is_told = true;
        while let Some(tree) = next.take() {
            if let Some(known) = self.logs.get(tree.as_str()) {
                is_told = *known;
                break;
            }
            let read = embedded_log::read(self.repo, &tree);
            // The agent's own files, or what a fork has of its parent.
            if matches!(&read, Ok(record) if record.is_none() || is_anothers(record.as_ref(), session.as_ref()))
            {
                break;
            }
            self.needed.insert(tree.pack_name().to_owned());
            is_told = self.is_there_or_lost(tree.pack_name());
            let is_new = walked.insert(tree.to_string());
            if let (Ok(Some(record)), true, true) = (read, is_told, is_new) {
                next = TreeId::parse(&record.previous).ok().filter(|_| record.after > 0);
                session = Some(record.session);
            }
        }
        self.logs.extend(walked.into_iter().map(|tree| (tree, is_told)));
        is_told
    }

    /// What was known to be lost when a manifest was sent is told by the manifest itself.
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
