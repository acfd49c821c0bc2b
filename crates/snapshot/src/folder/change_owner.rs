//! Giving a whole tree to another user: one that an ordinary user's sandbox worked in becomes one for a uid of its own.

use rustix::fs::{AtFlags, FileType, Gid, Uid, chownat, statat};

use super::{DirectoryWalker, FileOwner, Folder, WalkerEvent, write::give_to};
use crate::Error;

impl Folder {
    /// The folder and everything beneath it belongs to `owner` afterwards; links themselves, never what they lead to.
    /// For root, and while nothing runs in it. Cut off in the middle it is done again.
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
