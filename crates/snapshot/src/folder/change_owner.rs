//! Gives a whole tree to another user, for example when a tree from an ordinary user's sandbox moves to a sandbox
//! with a uid of its own.

use rustix::fs::{AtFlags, FileType, Gid, Uid, chownat, statat};

use super::{DirectoryWalker, FileOwner, Folder, WalkerEvent, write::give_to};
use crate::Error;

impl Folder {
    /// Makes `owner` the owner of the folder and of everything beneath it; links change themselves, never their
    /// targets. The caller must be root, and no process may use the tree. An interrupted call can be repeated.
    pub fn change_owner(&self, owner: FileOwner) -> Result<(), Error> {
        let failed = |path: &[u8], e| Error::system("hand over", path, e);
        let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
        give_to(self.fd(), Some(owner)).map_err(|e| failed(b".", e))?;
        let mut tour = DirectoryWalker::start(self)?;
        while let Some(met) = tour.next_event()? {
            let WalkerEvent::Entry(name) = met else { continue };
            let given =
                chownat(tour.here(), name.as_slice(), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
            given.map_err(|e| failed(&tour.path_of(&name), e))?;
            let is = statat(tour.here(), name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
            let is = is.map_err(|e| failed(&tour.path_of(&name), e))?;
            if FileType::from_raw_mode(is.st_mode) == FileType::Directory {
                tour.enter(&name).map_err(|e| failed(&tour.path_of(&name), e))?;
            }
        }
        Ok(())
    }
}
