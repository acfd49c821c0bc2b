//! The keys of sealed repositories, in a file for each tenant. Deleting a file makes everything unreadable that was
//! sealed with its key, in the object store and in every copy.

use crate::{Error, Result};
use ash_model::TenantId;
use ash_snapshot::{EncryptionKey, Repo};
use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

/// The key of a tenant's repository. `None`: the repository is not sealed. Its first snapshot decides whether it is.
pub(crate) fn key(keys: Option<&Path>, repo: &Path, tenant: &TenantId) -> Result<Option<EncryptionKey>> {
    let is_sealed = Repo::is_sealed(repo);
    let Some(keys) = keys else {
        let words = "is sealed: say where its key is with ASH_SNAPSHOT_KEYS";
        return if is_sealed == Some(true) { Err(Error::EncryptionKey(of(tenant, words))) } else { Ok(None) };
    };
    let path = keys.join(format!("{tenant}.key"));
    if is_sealed == Some(false) {
        tracing::warn!(%tenant, "this tenant's repository was created without a key, so its snapshots are not sealed");
        return Ok(None);
    }
    match fs::read(&path) {
        Ok(text) => match EncryptionKey::parse(&text) {
            Some(key) => Ok(Some(key)),
            None => Err(Error::EncryptionKey(of(
                tenant,
                &format!("cannot be opened: {} holds no key", path.display()),
            ))),
        },
        Err(error) if error.kind() == ErrorKind::NotFound && is_sealed.is_none() => make(&path).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let words =
                format!("cannot be opened without {}: bring the key back from a copy", path.display());
            Err(Error::EncryptionKey(of(tenant, &words)))
        }
        Err(error) => Err(Error::io(format!("cannot read {}", path.display()))(error)),
    }
}

fn of(tenant: &TenantId, what: &str) -> String {
    format!("The repository of tenant \"{tenant}\" {what}. Conversations can still be read")
}

/// Creates a key. It is durable before anything is sealed with it.
fn make(path: &Path) -> Result<EncryptionKey> {
    let failed = || Error::io(format!("cannot make {}", path.display()));
    let dir = path.parent().unwrap_or(path);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(Error::io(format!("cannot make {}", dir.display())))?;
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
    tracing::info!(key = %path.display(), "the server made an encryption key: keep a copy, because without the key the tenant's snapshots cannot be read");
    Ok(EncryptionKey::new(bytes))
}
