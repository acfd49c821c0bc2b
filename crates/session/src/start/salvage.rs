//! Finds what only the salvage checkpoint of a replaced tree holds, for the receipt.

use super::{SessionStartJob, StartTree, standing_on};
use crate::{
    Result, blocking,
    ladder::{SalvageOnlyFiles, StartTreeOrigin},
    path_list::PathList,
};
use ash_snapshot::{Repo, TreeId};

impl SessionStartJob {
    /// What the salvaged tree holds and its replacement does not. A failed comparison does not fail the start.
    pub(super) async fn only_in_salvage(&self, tree: &StartTree) -> Result<Option<SalvageOnlyFiles>> {
        let Some(number) = self.state.salvaged else { return Ok(None) };
        if !matches!(tree.origin, StartTreeOrigin::Checkpoint | StartTreeOrigin::Remote) {
            return Ok(None);
        }
        let store = &self.services.store;
        let salvage = store.checkpoint(self.session.workspace, number).await?;
        let now = match &tree.fallback {
            Some(fallback) => store.checkpoint(self.session.workspace, fallback.used).await?,
            None => standing_on(&self.services, &self.session, &self.state).await?,
        };
        let (Some(salvage), Some(now)) = (salvage, now) else { return Ok(None) };
        let (Ok(salvage), Ok(now)) = (TreeId::parse(&salvage.tree), TreeId::parse(&now.tree)) else {
            return Ok(None);
        };
        let repo = self.services.repo(&self.session.tenant)?;
        let found = blocking(move || only_in(&repo, &salvage, &now)).await;
        Ok(Some(match found {
            Ok(files) => SalvageOnlyFiles { files, unreadable: None },
            Err(error) => {
                SalvageOnlyFiles { unreadable: Some(error.to_string()), ..SalvageOnlyFiles::default() }
            }
        }))
    }
}

/// Files and links of `salvage` that `now` does not hold in the same form.
fn only_in(repo: &Repo, salvage: &TreeId, now: &TreeId) -> Result<PathList> {
    let mut files = PathList::default();
    for root in ["workspace", "home"] {
        let (before, found) = (repo.entries(now, root)?, repo.entries(salvage, root)?);
        let changes = ash_snapshot::changes(before, found, &|_| Ok(None))?;
        changes.iter().filter(|change| change.now.is_some()).for_each(|change| files.add(root, &change.path));
    }
    Ok(files)
}
