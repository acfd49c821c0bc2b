//! `ash snapshot gc`: removes snapshots by rules, and frees the space that only they used.

use super::{
    OpenRepository,
    list::{self, SnapshotListItem, SnapshotListing, SnapshotOrigin, warn_of},
    repository_error,
    save::{id, short},
};
use crate::{
    api::{CliError, Result},
    terminal::{self, TerminalStyle, paint_err, plural},
};
use ash_model::FailureKind;
use ash_snapshot::{GcReport, GcRoots, RepoLockMode, RetentionCandidate, SnapshotRetention, TreeId};
use serde_json::json;
use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

pub(super) struct GcOptions {
    pub(super) keep_last: Option<usize>,
    pub(super) keep_hourly: Option<usize>,
    pub(super) keep_daily: Option<usize>,
    pub(super) dry_run: bool,
    pub(super) grace: Duration,
}

impl GcOptions {
    /// `None`: keep every snapshot.
    fn rules(&self) -> Option<SnapshotRetention> {
        let GcOptions { keep_last, keep_hourly, keep_daily, .. } = *self;
        [keep_last, keep_hourly, keep_daily].iter().any(Option::is_some).then(|| SnapshotRetention {
            last: keep_last.unwrap_or(0),
            hourly: keep_hourly.unwrap_or(0),
            daily: keep_daily.unwrap_or(0),
        })
    }
}

pub(super) fn run(place: &OpenRepository, wish: &GcOptions) -> Result<u8> {
    let _alone = place.lock(RepoLockMode::Alone)?;
    let listing = list::read(place)?;
    refuse(place, &listing)?;
    let gone = wish.rules().map(|rules| snapshots_to_forget(&listing.snapshots, rules)).unwrap_or_default();
    let trees: Vec<TreeId> = gone.iter().map(|one| one.tree.clone()).collect();
    if wish.dry_run {
        report(place, &gone, None);
        return Ok(0);
    }
    // Recorded before the deletion, so that a partly deleted snapshot is known to be unwanted.
    place.repo.discard(&trees).map_err(repository_error(place))?;
    let kept = listing.snapshots.iter().map(|one| &one.tree);
    let kept: HashSet<TreeId> = kept.filter(|tree| !trees.contains(tree)).cloned().collect();
    let wanted = GcRoots { trees: kept.iter().cloned().collect(), ..GcRoots::default() };
    let collected = place.repo.collect_garbage(&wanted, wish.grace).map_err(repository_error(place))?;
    place.repo.discard(&[]).map_err(repository_error(place))?;
    place.remove_indexes(&kept);
    report(place, &gone, Some(&collected));
    Ok(0)
}

fn refuse(place: &OpenRepository, listing: &SnapshotListing) -> Result<()> {
    let all = || listing.snapshots.iter().chain(&listing.forgotten);
    if all().any(|one| matches!(one.what, SnapshotOrigin::Checkpoint(_))) {
        let words = format!(
            "{} belongs to a server, which collects it by itself (ASH_KEEP_LAST, ASH_GC_EVERY, …)",
            place.dir.display()
        );
        return Err(CliError::new(FailureKind::Conflict, words));
    }
    if !listing.broken.is_empty() {
        warn_of(&listing.broken, place);
        let words = "something cannot be read, and may be needed: nothing was removed. \
                     Bring it back from a copy, or move it away";
        return Err(CliError::new(FailureKind::Unprocessable, words));
    }
    Ok(())
}

/// The snapshots that the rules give up, for each folder on its own.
fn snapshots_to_forget(snapshots: &[SnapshotListItem], rules: SnapshotRetention) -> Vec<&SnapshotListItem> {
    let mut folders: BTreeMap<(&str, &str), Vec<&SnapshotListItem>> = BTreeMap::new();
    for one in snapshots {
        if let Some(folder) = one.of() {
            folders.entry(folder).or_default().push(one);
        }
    }
    let mut gone = Vec::new();
    for listed in folders.into_values() {
        let moments: Vec<RetentionCandidate> =
            listed.iter().map(|one| RetentionCandidate { at: one.at.0, needed: false }).collect();
        gone.extend(
            listed.into_iter().zip(rules.keep(&moments)).filter(|(_, kept)| !kept).map(|(one, _)| one),
        );
    }
    gone
}

fn report(place: &OpenRepository, gone: &[&SnapshotListItem], collected: Option<&GcReport>) {
    if place.json {
        let ids: Vec<&str> = gone.iter().map(|one| id(&one.tree)).collect();
        let GcReport { removed, rewritten, kept, freed, .. } = collected.cloned().unwrap_or_default();
        terminal::json(&json!({
            "forgotten": ids, "dryRun": collected.is_none(), "removed": removed.len(),
            "rewritten": rewritten.len(), "kept": kept, "freed": freed,
        }));
        return;
    }
    let now = jiff::Timestamp::now();
    for one in gone {
        println!("{} {} {}", short(&one.tree), terminal::format_age(&one.at.to_string(), now), one.shown());
    }
    let forgotten = plural(gone.len() as u64, "snapshot");
    let what = match collected {
        None => format!("{forgotten} would be forgotten; nothing was changed"),
        Some(GcReport { removed, rewritten, freed, .. }) => {
            let packs = plural(removed.len() as u64, "pack");
            format!(
                "{forgotten} forgotten, {packs} removed, {} made smaller, {} freed",
                rewritten.len(),
                terminal::format_bytes(*freed)
            )
        }
    };
    eprintln!("{} {what}", paint_err(TerminalStyle::Green, "✓"));
}
