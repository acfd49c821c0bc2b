//! Files with secrets that one agent's program reads and no checkpoint may contain. They lie beside the socket for
//! model calls, in a directory that the sandbox can only read, and are deleted with the sandbox.

use crate::{Error, egress};
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, fchown},
    path::{Path, PathBuf},
};

/// Writes `name` atomically for the user of a running sandbox. `uid`: the sandbox's, if it is not ours. Blocking.
pub fn write_private(run_dir: &Path, name: &str, contents: &[u8], uid: Option<u32>) -> Result<(), Error> {
    let path = run_dir.join(egress::DIR).join(name);
    write(&path, contents, uid).map_err(|source| Error::File { what: "write", path, source })
}

fn write(path: &Path, contents: &[u8], uid: Option<u32>) -> io::Result<()> {
    let fresh: PathBuf = path.with_extension("new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o400).open(&fresh)?;
    file.write_all(contents)?;
    uid.map_or(Ok(()), |uid| fchown(&file, Some(uid), Some(uid)))?;
    fs::rename(&fresh, path)
}
