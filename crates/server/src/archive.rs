//! Archives of files in both directions. `read` parses what a client sends and `validate` checks it, so that the checks
//! are in one place; `bundle` packs what the server sends.

mod bundle;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod read;
mod tar_header;
#[cfg(test)]
mod tests;
mod validate;

pub use bundle::is_excluded_from_bundle;
pub(crate) use bundle::pack;
pub(crate) use validate::{ArchiveError, ArchiveLimits, UploadValidator};

use crate::problem::{ApiProblem, ApiResult};
use ash_model::FailureKind;
use ash_session::WorkspaceUpload;
use ash_snapshot::{DiskUsage, SnapshotErrorKind};
use read::ArchiveEntry;

/// Reads the whole archive and writes nothing, so that every error is known before the first byte is on the disk.
/// Returns the minimum disk usage.
pub(crate) fn check_archive(archive: &[u8], limits: &ArchiveLimits) -> Result<DiskUsage, ArchiveError> {
    read::visit_entries(archive, limits, &mut |_| Ok::<(), ArchiveError>(()))
        .map(|ledger| ledger.disk_usage())
}

/// Writes a checked archive to the upload's staging area. Returns the number of files and links.
pub(crate) fn unpack(archive: &[u8], limits: &ArchiveLimits, upload: &WorkspaceUpload) -> ApiResult<usize> {
    let mut written = 0;
    read::visit_entries(archive, limits, &mut |entry| {
        written += usize::from(!matches!(entry, ArchiveEntry::Folder { .. }));
        let done = match entry {
            ArchiveEntry::File { path, mode, bytes } => upload.file(path, bytes, mode),
            ArchiveEntry::Copy { path, of } => upload.copy(path, of),
            ArchiveEntry::Link { path, target } => upload.link(path, target),
            ArchiveEntry::Folder { path } => upload.folder(path),
        };
        done.map_err(ApiProblem::from)
    })?;
    Ok(written)
}

/// A conflict between an upload and the workspace is the client's error, not the server's.
pub(crate) fn upload_problem(error: ash_session::Error) -> ApiProblem {
    match &error {
        ash_session::Error::Snapshot(cause) => match cause.kind() {
            SnapshotErrorKind::NotAFile | SnapshotErrorKind::Invalid | SnapshotErrorKind::NotFound => {
                path_conflict(cause)
            }
            SnapshotErrorKind::Io if ash_session::is_closed(cause) => path_conflict(cause),
            SnapshotErrorKind::Full | SnapshotErrorKind::Damaged | SnapshotErrorKind::Io => error.into(),
        },
        _ => error.into(),
    }
}

fn path_conflict(cause: &ash_snapshot::Error) -> ApiProblem {
    let error = format!(
        "Nothing was written: in the workspace something is in the way, {cause}. Move it, or leave that out"
    );
    ApiProblem::new(FailureKind::Conflict, "in_the_way", error)
}

impl From<ArchiveError> for ApiProblem {
    fn from(refusal: ArchiveError) -> ApiProblem {
        let kind = match &refusal {
            ArchiveError::Unsupported(_) | ArchiveError::Damaged(_) | ArchiveError::BadEntry { .. } => {
                FailureKind::Invalid
            }
            ArchiveError::TooLarge(_) | ArchiveError::TooMany(_) | ArchiveError::Ratio { .. } => {
                FailureKind::TooLarge
            }
        };
        ApiProblem::new(kind, refusal.code(), format!("Nothing was written: {refusal}"))
    }
}
