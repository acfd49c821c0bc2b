//! Files that come and go many at a time. Whatever a client sends is read by `read` and entered in the `ledger`, which know all
//! that can be wrong with it; `pack` writes what we send.

mod header;
mod ledger;
mod pack;
mod read;
#[cfg(test)]
mod tests;

pub(crate) use ledger::{Ledger, Limits, Refusal};
pub use pack::is_left_out;
pub(crate) use pack::pack;

use crate::problem::{Answer, Problem};
use ash_model::Kind;
use ash_session::Upload;
use ash_snapshot::{Trouble, Weight};
use read::Entry;

/// Reads all of it and writes nothing: what is wrong with any part of an archive is known before the first byte of it is on the
/// disk. Answers what it will take there, at least.
pub(crate) fn check(archive: &[u8], limits: &Limits) -> Result<Weight, Refusal> {
    read::each(archive, limits, &mut |_| Ok::<(), Refusal>(())).map(|ledger| ledger.weight())
}

/// Writes what was checked to where it waits to be put in place. Answers how many files and links that are.
pub(crate) fn unpack(archive: &[u8], limits: &Limits, upload: &Upload) -> Answer<usize> {
    let mut written = 0;
    read::each(archive, limits, &mut |entry| {
        written += usize::from(!matches!(entry, Entry::Folder { .. }));
        let done = match entry {
            Entry::File { path, mode, bytes } => upload.file(path, bytes, mode),
            Entry::Copy { path, of } => upload.copy(path, of),
            Entry::Link { path, target } => upload.link(path, target),
            Entry::Folder { path } => upload.folder(path),
        };
        done.map_err(Problem::from)
    })?;
    Ok(written)
}

/// What stands in the way of an upload is the workspace's doing, not ours.
pub(crate) fn not_put(error: ash_session::Error) -> Problem {
    match &error {
        ash_session::Error::Snapshot(cause) => match cause.kind() {
            Trouble::NotAFile | Trouble::Invalid | Trouble::NotFound => in_the_way(cause),
            Trouble::Io if ash_session::is_closed(cause) => in_the_way(cause),
            Trouble::Full | Trouble::Damaged | Trouble::Io => error.into(),
        },
        _ => error.into(),
    }
}

fn in_the_way(cause: &ash_snapshot::Error) -> Problem {
    let error = format!(
        "Nothing was written: in the workspace something is in the way, {cause}. Move it, or leave that out"
    );
    Problem::new(Kind::Conflict, "in_the_way", error)
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let kind = match &refusal {
            Refusal::Unsupported(_) | Refusal::Damaged(_) | Refusal::BadEntry { .. } => Kind::Invalid,
            Refusal::TooLarge(_) | Refusal::TooMany(_) | Refusal::Ratio { .. } => Kind::TooLarge,
        };
        Problem::new(kind, refusal.code(), format!("Nothing was written: {refusal}"))
    }
}
