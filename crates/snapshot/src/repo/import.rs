//! Imports packs that arrive as files. A pack gets its name only when all of it is on disk.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::{PackInventory, Repo};
use crate::Error;
use crate::disk_writer::DiskWriter;
use crate::object_id::PackId;
use crate::pack::{TEMPORARY, file_name};

/// A pack that is being imported.
#[derive(Debug)]
pub struct PackImport {
    dir: PathBuf,
    disk: DiskWriter,
    inventory: Arc<PackInventory>,
    id: PackId,
    file: File,
    written: u64,
}

impl Repo {
    /// Begins to import a pack; `None` if `pack` is not a valid name. Its content is checked on every read.
    pub fn import_pack(&self, pack: &str) -> Result<Option<PackImport>, Error> {
        let Some(id) = PackId::parse(pack) else { return Ok(None) };
        let path = self.dir.join(temporary(&id));
        let failed = |e| Error::system("write", path.as_os_str().as_bytes(), e);
        // The remains of an import that crashed.
        self.disk.remove(&path).map_err(failed)?;
        let file = self.disk.create(&path).map_err(failed)?;
        let (dir, disk, inventory) = (self.dir.clone(), self.disk.clone(), self.inventory.clone());
        Ok(Some(PackImport { dir, disk, inventory, id, file, written: 0 }))
    }
}

impl PackImport {
    /// Adds the next bytes of the pack.
    pub fn write(mut self, bytes: &[u8]) -> Result<PackImport, Error> {
        self.disk.write_at(&self.file, bytes, self.written).map_err(|e| self.failed(e))?;
        self.written += bytes.len() as u64;
        Ok(self)
    }

    /// Publishes the pack after its last bytes were written.
    pub fn finish(self) -> Result<(), Error> {
        let (from, to) = (self.dir.join(temporary(&self.id)), self.dir.join(file_name(&self.id)));
        let settled = self.disk.sync(&self.file).and_then(|()| self.disk.rename(&from, &to));
        let settled = settled.and_then(|()| self.disk.sync_dir(&self.dir));
        settled.and_then(|()| self.inventory.added(self.id)).map_err(|e| self.failed(e))
    }

    fn failed(&self, cause: std::io::Error) -> Error {
        Error::system("write pack", self.id.to_string().as_bytes(), cause)
    }
}

fn temporary(id: &PackId) -> String {
    format!("{TEMPORARY}arriving-{id}")
}
