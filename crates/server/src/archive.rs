//! Workspace bundles: a gzipped tar out, and one in, read as hostile input.

use crate::problem::{Answer, Problem};
use ash_model::Kind;
use ash_session::{FoundFile, Place};
use ash_snapshot::{RelPath, Trouble};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use std::io::{Read, Seek, Write};

/// What a bundle may hold, packed or unpacked.
const MOST_BYTES: u64 = 100 << 20;
const MOST_ENTRIES: usize = 100_000;
/// Whatever a bundle says, the agent can read and write its own files.
const MODE: u32 = 0o600;

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
const SKIPPED_FILES: [&str; 5] = [".env", ".env.local", ".env.production", ".env.development", ".DS_Store"];

fn is_skipped(name: &[u8], is_dir: bool) -> bool {
    let names: &[&str] = if is_dir { &SKIPPED_DIRS } else { &SKIPPED_FILES };
    names.iter().any(|skipped| skipped.as_bytes() == name)
}

/// Writes the workspace's files into `file` and rewinds it.
pub(crate) fn pack(place: &Place, file: &mut std::fs::File) -> Answer<u64> {
    let files = place.list(&is_skipped)?;
    fits(files.iter().map(|file| file.size).sum())?;
    let mut total = 0;
    let mut tar = tar::Builder::new(GzEncoder::new(&mut *file, Compression::fast()));
    for info in &files {
        let path = RelPath::met(&info.path).map_err(|error| Problem::internal(error.to_string()))?;
        // Gone, replaced or grown since it was listed: the workspace is alive.
        let FoundFile::File { size, bytes, .. } = place.open(&path)? else { continue };
        total += size;
        fits(total)?;
        append(&mut tar, &info.path, (size, info.mtime_ms), bytes).map_err(Problem::internal)?;
    }
    tar.into_inner().and_then(GzEncoder::finish).map_err(Problem::internal)?;
    let length = file.stream_position().map_err(Problem::internal)?;
    file.rewind().map_err(Problem::internal)?;
    Ok(length)
}

fn fits(total: u64) -> Answer<()> {
    let error = || {
        format!(
            "The workspace holds {total} bytes, more than the {MOST_BYTES} of a bundle; fetch single files instead"
        )
    };
    if total > MOST_BYTES { Err(too_large(error())) } else { Ok(()) }
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
    // A file that shrinks while it is read is filled up with zeros: the header has promised its size.
    tar.append_data(&mut header, name, bytes.chain(std::io::repeat(0)).take(size))
}

pub(crate) struct Unpacked {
    pub(crate) written: usize,
    /// Hard links and devices, which a bundle may not bring.
    pub(crate) skipped: usize,
}

/// Read twice: what is wrong with any part of a bundle is known before anything of it is written.
pub(crate) fn unpack(place: &Place, bundle: &[u8]) -> Answer<Unpacked> {
    each(bundle, |path, entry| {
        let (size, read) = (entry.size(), std::io::copy(entry, &mut std::io::sink()).map_err(bad)?);
        if read == size { Ok(()) } else { Err(invalid(&format!("{path} ends in the middle"))) }
    })?;
    let mut written = 0;
    let skipped = each(bundle, |path, entry| {
        written += 1;
        put(place, path, entry)
    })?;
    Ok(Unpacked { written, skipped })
}

fn put(place: &Place, path: &RelPath, entry: &mut Entry<'_>) -> Answer<()> {
    let put = if entry.header().entry_type() == tar::EntryType::Symlink {
        let target = entry.link_name_bytes().unwrap_or_default().into_owned();
        place.link(path, &target)
    } else {
        let mode = entry.header().mode().map_err(bad)? & 0o777 | MODE;
        place.write_as(path, entry, mode).map(|_| ())
    };
    put.map_err(|error| unwritable(path, error))
}

type Entry<'a> = tar::Entry<'a, std::io::Take<GzDecoder<&'a [u8]>>>;

/// Visits every file and link of a bundle, and counts what is neither.
fn each(bundle: &[u8], mut visit: impl FnMut(&RelPath, &mut Entry<'_>) -> Answer<()>) -> Answer<usize> {
    if !bundle.starts_with(&[0x1f, 0x8b]) {
        return Err(invalid("not a gzip file"));
    }
    let mut tar = tar::Archive::new(GzDecoder::new(bundle).take(MOST_BYTES + (MOST_BYTES >> 2)));
    let (mut total, mut skipped) = (0u64, 0);
    for (count, entry) in tar.entries().map_err(bad)?.enumerate() {
        let mut entry = entry.map_err(bad)?;
        match entry.header().entry_type() {
            tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::Symlink => {}
            tar::EntryType::Directory => continue,
            _ => {
                skipped += 1;
                continue;
            }
        }
        total = total.saturating_add(entry.size());
        if total > MOST_BYTES || count >= MOST_ENTRIES {
            let error = format!("A bundle may hold {MOST_BYTES} bytes and {MOST_ENTRIES} entries");
            return Err(too_large(error));
        }
        visit(&name(&entry.path_bytes())?, &mut entry)?;
    }
    Ok(skipped)
}

fn invalid(why: &str) -> Problem {
    Problem::invalid("invalid_bundle", format!("Invalid bundle: {why}"))
}

fn bad(error: std::io::Error) -> Problem {
    invalid(&error.to_string())
}

fn too_large(error: String) -> Problem {
    Problem::new(Kind::TooLarge, "bundle_too_large", error)
}

/// What stands in the way of a file is the workspace's or the bundle's doing, not ours.
fn unwritable(path: &RelPath, error: ash_session::Error) -> Problem {
    match &error {
        ash_session::Error::Snapshot(cause) => match cause.kind() {
            Trouble::NotAFile => in_the_way(path, cause),
            Trouble::Invalid | Trouble::NotFound => invalid(&format!("{path} cannot be written: {cause}")),
            Trouble::Io if ash_session::is_closed(cause) => in_the_way(path, cause),
            Trouble::Full | Trouble::Damaged | Trouble::Io => error.into(),
        },
        _ => error.into(),
    }
}

fn in_the_way(path: &RelPath, cause: &ash_snapshot::Error) -> Problem {
    Problem::new(Kind::Conflict, "in_the_way", format!("Something is in the way of {path}: {cause}"))
}

fn name(bytes: &[u8]) -> Answer<RelPath> {
    let bare = bytes.strip_prefix(b"./").unwrap_or(bytes);
    RelPath::from_bytes(bare).map_err(|error| invalid(&error.to_string()))
}
