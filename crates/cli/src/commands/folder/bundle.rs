//! Files on their way to a server: gzipped tars of bounded size, one request each.

use super::{
    LeftOut,
    collect::{Entry, Found, What},
};
use crate::{
    api::{Api, Failure, Result},
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

/// What a bundle holds before the next one is begun; one file may be more. Small, so that the bar moves.
const BUNDLE_BYTES: u64 = 8_000_000;
const BUNDLE_FILES: usize = 10_000;
/// Servers take 200.
const MOST_RATIO: usize = 100;
/// A target up to this long is written into the entry itself.
const SHORT_TARGET: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) files: usize,
    pub(super) bytes: u64,
    pub(super) left_out: Vec<LeftOut>,
}

pub(super) async fn send(api: &Api, id: &str, dir: &Path, found: &Found, bar: &ProgressBar) -> Result<Sent> {
    let mut sent = Sent::default();
    let mut bundle = Bundle::new();
    for entry in &found.entries {
        if bundle.is_full_with(entry) {
            bundle.post(api, id, &mut sent, bar).await?;
            bundle = Bundle::new();
        }
        match Content::read(dir, entry) {
            Ok(content) => bundle.add(entry, &content).map_err(Failure::local("cannot pack the folder"))?,
            Err(error) => {
                sent.left_out
                    .push(LeftOut { path: entry.path.display().to_string(), why: error.to_string() });
            }
        }
    }
    bundle.post(api, id, &mut sent, bar).await?;
    Ok(sent)
}

/// Read in full before anything is promised: a header with a size cannot be taken back.
enum Content<'a> {
    File { bytes: Vec<u8>, mode: u32 },
    Link { target: &'a Path },
}

impl Content<'_> {
    fn read<'a>(dir: &Path, entry: &'a Entry) -> io::Result<Content<'a>> {
        match &entry.what {
            What::File { mode, .. } => {
                Ok(Content::File { bytes: fs::read(dir.join(&entry.path))?, mode: *mode })
            }
            What::Link { target } => Ok(Content::Link { target }),
        }
    }
}

struct Bundle {
    tar: tar::Builder<Vec<u8>>,
    files: usize,
    bytes: u64,
}

impl Bundle {
    fn new() -> Bundle {
        Bundle { tar: tar::Builder::new(Vec::new()), files: 0, bytes: 0 }
    }

    fn is_full_with(&self, entry: &Entry) -> bool {
        self.files >= BUNDLE_FILES || (self.files > 0 && self.bytes + entry.what.size() > BUNDLE_BYTES)
    }

    fn add(&mut self, entry: &Entry, content: &Content<'_>) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        match content {
            Content::File { bytes, mode } => {
                header.set_size(bytes.len() as u64);
                header.set_mode(*mode);
                self.bytes += bytes.len() as u64;
                self.tar.append_data(&mut header, &entry.path, bytes.as_slice())?;
            }
            Content::Link { target } => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                header.set_mode(0o777);
                if target.as_os_str().len() <= SHORT_TARGET {
                    // As it is: the other way tidies it up.
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

    async fn post(self, api: &Api, id: &str, sent: &mut Sent, bar: &ProgressBar) -> Result<()> {
        if self.files == 0 {
            return Ok(());
        }
        let packed = self.tar.into_inner().and_then(packed);
        let packed = packed.map_err(Failure::local("cannot pack the folder"))?;
        api.post(&path(id, "/workspace"), &json!({ "bundle": STANDARD.encode(packed) })).await?;
        sent.files += self.files;
        sent.bytes += self.bytes;
        bar.inc(self.bytes);
        Ok(())
    }
}

/// Gzipped; unless that makes so little of it that a server would take it for a bomb, as of a file full of zeros.
fn packed(plain: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&plain)?;
    let packed = gzip.finish()?;
    Ok(if plain.len() / packed.len().max(1) > MOST_RATIO { plain } else { packed })
}
