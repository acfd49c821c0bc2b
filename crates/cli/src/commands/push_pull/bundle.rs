//! Bundles of files for a server: gzipped tars of bounded size, one for each request.

use super::{
    SkippedFile,
    collect::{CollectedEntry, CollectedEntryKind, CollectedFiles},
};
use crate::{
    api::{ApiClient, CliError, Result},
    commands::sessions::path,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, write::GzEncoder};
use indicatif::ProgressBar;
use serde_json::json;
use std::{
    fs,
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    path::Path,
};

/// A bundle closes at this size, though one file may be larger. Small, so that the progress bar moves.
const BUNDLE_BYTES: u64 = 8_000_000;
const BUNDLE_FILES: usize = 10_000;
/// Servers accept a ratio of up to 200.
const MAX_GZIP_RATIO: usize = 100;
/// A longer target does not fit into the entry itself.
const SHORT_TARGET: usize = 100;

#[derive(Debug, Default)]
pub(super) struct UploadReport {
    pub(super) files: usize,
    pub(super) bytes: u64,
    pub(super) left_out: Vec<SkippedFile>,
}

pub(super) async fn send(
    api: &ApiClient,
    id: &str,
    dir: &Path,
    found: &CollectedFiles,
    bar: &ProgressBar,
) -> Result<UploadReport> {
    let mut sent = UploadReport::default();
    let mut bundle = WorkspaceBundle::new();
    for entry in &found.entries {
        if bundle.is_full_with(entry) {
            bundle.post(api, id, &mut sent, bar).await?;
            bundle = WorkspaceBundle::new();
        }
        match BundleContent::read(dir, entry) {
            Ok(content) => {
                bundle.add(entry, &content).map_err(CliError::from_io("cannot pack the folder"))?
            }
            Err(error) => {
                sent.left_out
                    .push(SkippedFile { path: entry.path.display().to_string(), why: error.to_string() });
            }
        }
    }
    bundle.post(api, id, &mut sent, bar).await?;
    Ok(sent)
}

/// Read in full before the header is written, because a header states the size and cannot be changed later.
enum BundleContent<'a> {
    File { bytes: Vec<u8>, mode: u32 },
    Link { target: &'a Path },
}

impl BundleContent<'_> {
    fn read<'a>(dir: &Path, entry: &'a CollectedEntry) -> io::Result<BundleContent<'a>> {
        match &entry.what {
            CollectedEntryKind::File { mode, .. } => {
                Ok(BundleContent::File { bytes: fs::read(dir.join(&entry.path))?, mode: *mode })
            }
            CollectedEntryKind::Link { target } => Ok(BundleContent::Link { target }),
        }
    }
}

struct WorkspaceBundle {
    tar: tar::Builder<Vec<u8>>,
    files: usize,
    bytes: u64,
}

impl WorkspaceBundle {
    fn new() -> WorkspaceBundle {
        WorkspaceBundle { tar: tar::Builder::new(Vec::new()), files: 0, bytes: 0 }
    }

    fn is_full_with(&self, entry: &CollectedEntry) -> bool {
        self.files >= BUNDLE_FILES || (self.files > 0 && self.bytes + entry.what.size() > BUNDLE_BYTES)
    }

    fn add(&mut self, entry: &CollectedEntry, content: &BundleContent<'_>) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        match content {
            BundleContent::File { bytes, mode } => {
                header.set_size(bytes.len() as u64);
                header.set_mode(*mode);
                self.bytes += bytes.len() as u64;
                self.tar.append_data(&mut header, &entry.path, bytes.as_slice())?;
            }
            BundleContent::Link { target } => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                header.set_mode(0o777);
                if target.as_os_str().len() <= SHORT_TARGET {
                    // Unchanged: the other method normalizes the target.
                    header.set_link_name_literal(target.as_os_str().as_bytes())?;
                    self.tar.append_data(&mut header, &entry.path, io::empty())?;
                } else {
                    self.tar.append_link(&mut header, &entry.path, target)?;
                }
            }
        }
        self.files += 1;
        Ok(())
    }

    async fn post(self, api: &ApiClient, id: &str, sent: &mut UploadReport, bar: &ProgressBar) -> Result<()> {
        if self.files == 0 {
            return Ok(());
        }
        let packed = self.tar.into_inner().and_then(packed);
        let packed = packed.map_err(CliError::from_io("cannot pack the folder"))?;
        api.post(&path(id, "/workspace"), &json!({ "bundle": STANDARD.encode(packed) })).await?;
        sent.files += self.files;
        sent.bytes += self.bytes;
        bar.inc(self.bytes);
        Ok(())
    }
}

/// Gzips the bundle. It stores the bytes without compression if the ratio is so high that a server would refuse the
/// bundle as a bomb, as for a file of zeros.
fn packed(plain: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&plain)?;
    let packed = gzip.finish()?;
    Ok(if plain.len() / packed.len().max(1) > MAX_GZIP_RATIO { plain } else { packed })
}
