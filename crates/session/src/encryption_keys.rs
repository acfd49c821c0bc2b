//! The keys that tenants' snapshots are sealed with, a file for each. Whoever deletes one has deleted everything
//! that was written with it, wherever copies are.

use crate::{Error, Result};
use ash_model::TenantId;
use ash_snapshot::{EncryptionKey, Repo};
use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// The key of a tenant's repository; `None` if it is not sealed. The first snapshot decides whether it is.
pub(crate) fn key(keys: Option<&Path>, repo: &Path, tenant: &TenantId) -> Result<Option<EncryptionKey>> {
    let sealed = Repo::is_sealed(repo);
    let Some(keys) = keys else {
        let words = "is sealed: say where its key is with ASH_SNAPSHOT_KEYS";
        return if sealed == Some(true) { Err(Error::Key(of(tenant, words))) } else { Ok(None) };
    };
    let path = keys.join(format!("{tenant}.key"));
    if sealed == Some(false) {
        tracing::warn!(%tenant, "its snapshots were begun without a key, and are not sealed");
        return Ok(None);
    }
    match fs::read(&path) {
        Ok(text) => match EncryptionKey::parse(&text) {
            Some(key) => Ok(Some(key)),
            None => {
                Err(Error::Key(of(tenant, &format!("cannot be opened: {} holds no key", path.display()))))
            }
        },
        Err(error) if error.kind() == ErrorKind::NotFound && sealed.is_none() => make(&path).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let words =
                format!("cannot be opened without {}: bring the key back from a copy", path.display());
            Err(Error::Key(of(tenant, &words)))
        }
        Err(error) => Err(Error::io(format!("cannot read {}", path.display()))(error)),
    }
}

fn of(tenant: &TenantId, what: &str) -> String {
    format!("The repository of tenant \"{tenant}\" {what}. Conversations can still be read")
}

/// Durable before anything is sealed with it.
fn make(path: &Path) -> Result<EncryptionKey> {
    let failed = || Error::io(format!("cannot make {}", path.display()));
    let dir = path.parent().unwrap_or(path);
    crate::live_directory::make_dir(dir)?;
    let mut bytes = [0; 32];
    File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes)).map_err(failed())?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let write = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
        file.write_all(digits.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        File::open(dir)?.sync_all()
    };
    write().map_err(failed())?;
    tracing::info!(key = %path.display(), "a key was made; without it the tenant's snapshots cannot be read, so keep a copy");
    Ok(EncryptionKey::new(bytes))
}
