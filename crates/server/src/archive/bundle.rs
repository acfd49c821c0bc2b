//! Packs a workspace as a gzipped tar.

use crate::problem::{ApiProblem, ApiResult};
use ash_model::FailureKind;
use ash_session::{FoundFile, WorkspaceFiles};
use ash_snapshot::RelPath;
use flate2::{Compression, write::GzEncoder};
use std::io::{Read, Seek, Write};

/// Maximum size of a bundle before compression.
const MAX_BUNDLE_BYTES: u64 = 100 << 20;

const SKIPPED_DIRS: [&str; 11] = [
    "node_modules",
    ".git",
    "__pycache__",
    ".cache",
    ".npm",
    ".pnpm-store",
    ".yarn",
    ".venv",
    "venv",
    ".tmp",
    "tmp",
];
/// Files that are neither in a bundle nor in a deployed agent: those that tools can make again, and settings files,
/// which may hold keys.
pub fn is_excluded_from_bundle(name: &[u8], is_dir: bool) -> bool {
    let has_keys = name.starts_with(b".env") || name.ends_with(b".env") || name.ends_with(b".env.local");
    let is_made = is_dir && SKIPPED_DIRS.iter().any(|skipped| skipped.as_bytes() == name);
    has_keys || is_made || name == b".DS_Store"
}

/// Writes the workspace's files into `file` and rewinds it.
pub(crate) fn pack(place: &WorkspaceFiles, file: &mut std::fs::File) -> ApiResult<u64> {
    let files = place.list(&is_excluded_from_bundle)?;
    fits(files.iter().map(|file| file.size).sum())?;
    let mut total = 0;
    let mut tar = tar::Builder::new(GzEncoder::new(&mut *file, Compression::fast()));
    for info in &files {
        let path = RelPath::from_walk(&info.path).map_err(|error| ApiProblem::internal(error.to_string()))?;
        // The agent may have removed, replaced or extended the file since it was listed.
        let FoundFile::File { size, bytes, .. } = place.open(&path)? else { continue };
        total += size;
        fits(total)?;
        append(&mut tar, &info.path, (size, info.mtime_ms), bytes).map_err(ApiProblem::internal)?;
    }
    tar.into_inner().and_then(GzEncoder::finish).map_err(ApiProblem::internal)?;
    let length = file.stream_position().map_err(ApiProblem::internal)?;
    file.rewind().map_err(ApiProblem::internal)?;
    Ok(length)
}

fn fits(total: u64) -> ApiResult<()> {
    let error = || {
        format!(
            "The workspace holds {total} bytes, more than the {MAX_BUNDLE_BYTES} of a bundle; fetch single files instead"
        )
    };
    if total > MAX_BUNDLE_BYTES {
        Err(ApiProblem::new(FailureKind::TooLarge, "bundle_too_large", error()))
    } else {
        Ok(())
    }
}

fn append<W: Write>(
    tar: &mut tar::Builder<W>,
    path: &[u8],
    (size, mtime_ms): (u64, i64),
    bytes: Box<dyn Read + Send>,
) -> std::io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let name = std::path::Path::new("./").join(std::ffi::OsStr::from_bytes(path));
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(u64::try_from(mtime_ms / 1000).unwrap_or(0));
    // If a file shrinks during the read, zeros fill the rest: the header already states the size.
    tar.append_data(&mut header, name, bytes.chain(std::io::repeat(0)).take(size))
}
