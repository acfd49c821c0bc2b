//! Writing a pack: contents go straight into it, the index is gathered beside it and added at the end.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{BUFFER, DIR, FILE, Fingerprint, LINK, MAGIC, ROOT, SAME, UP};
use crate::folder::{Attributes, Time};
use crate::{Error, TreeId};

/// A file of ours that is removed again unless it is put in its place.
pub(crate) struct Temporary {
    path: PathBuf,
    pub(crate) file: File,
}

impl Temporary {
    pub(crate) const PREFIX: &'static str = "tmp-";

    fn create(dir: &Path) -> Result<Temporary, Error> {
        let path = dir.join(format!("{}{}", Temporary::PREFIX, uuid::Uuid::new_v4().simple()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|e| Error::system("create", path.as_os_str().as_bytes(), e))?;
        Ok(Temporary { path, file })
    }

    /// On disk under its new name when this returns, but for the fsync of the directory.
    pub(crate) fn publish(self, to: &Path) -> Result<(), Error> {
        let done = self.file.sync_all().and_then(|()| std::fs::rename(&self.path, to));
        done.map_err(|e| Error::system("write", to.as_os_str().as_bytes(), e))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After publish() there is nothing under this name.
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(crate) struct PackWriter {
    pack: Temporary,
    contents: BufWriter<File>,
    index: BufWriter<File>,
    /// Where the next byte of a content goes.
    at: u64,
    /// FILEs in this root so far.
    files: u64,
}

impl PackWriter {
    pub(crate) fn create(dir: &Path) -> Result<PackWriter, Error> {
        let pack = Temporary::create(dir)?;
        // Without a name from the start: dropped at the end of this line, readable through its handle.
        let index = Temporary::create(dir)?.file.try_clone().map_err(failed)?;
        let contents = BufWriter::with_capacity(BUFFER, pack.file.try_clone().map_err(failed)?);
        let mut writer =
            PackWriter { pack, contents, index: BufWriter::with_capacity(BUFFER, index), at: 0, files: 0 };
        writer.content(MAGIC)?;
        Ok(writer)
    }

    pub(crate) fn root(&mut self, name: &str, modified: Time) -> Result<(), Error> {
        self.files = 0;
        let record = named(ROOT, name.as_bytes());
        self.record(&with_time(record, modified))
    }

    pub(crate) fn dir(&mut self, name: &[u8], is: &Attributes) -> Result<(), Error> {
        let record = with_mode(named(DIR, name), is.mode());
        self.record(&with_time(record, is.modified))
    }

    pub(crate) fn up(&mut self) -> Result<(), Error> {
        self.record(&[UP])
    }

    /// For the content written since [`PackWriter::mark`]; returns the number of this FILE.
    pub(crate) fn file(&mut self, name: &[u8], is: &Attributes, content: &Fingerprint) -> Result<u64, Error> {
        let mut record = with_time(with_mode(named(FILE, name), is.mode()), is.modified);
        record.extend_from_slice(&content.size.to_le_bytes());
        record.extend_from_slice(&content.stored.to_le_bytes());
        record.extend_from_slice(content.hash.as_bytes());
        self.record(&record)?;
        self.files += 1;
        Ok(self.files - 1)
    }

    pub(crate) fn link(&mut self, name: &[u8], modified: Time, target: &[u8]) -> Result<(), Error> {
        let mut record = with_time(named(LINK, name), modified);
        // A link's target is shorter than PATH_MAX.
        record.extend_from_slice(&(target.len() as u16).to_le_bytes());
        record.extend_from_slice(target);
        self.record(&record)
    }

    pub(crate) fn same(&mut self, name: &[u8], ordinal: u64) -> Result<(), Error> {
        let mut record = named(SAME, name);
        record.extend_from_slice(&ordinal.to_le_bytes());
        self.record(&record)
    }

    /// Where a content begins that may have to be written again.
    pub(crate) fn mark(&self) -> u64 {
        self.at
    }

    pub(crate) fn content(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.contents.write_all(bytes).map_err(failed)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Forgets everything written since the mark.
    pub(crate) fn rewind(&mut self, mark: u64) -> Result<(), Error> {
        // Seeking writes out what is buffered first.
        self.contents.seek(SeekFrom::Start(mark)).map_err(failed)?;
        self.contents.get_ref().set_len(mark).map_err(failed)?;
        self.at = mark;
        Ok(())
    }

    fn record(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.index.write_all(bytes).map_err(failed)
    }

    pub(crate) fn finish(self) -> Result<(TreeId, Temporary), Error> {
        let PackWriter { pack, mut contents, index, at, .. } = self;
        let hash = append_index(&mut contents, index, at).map_err(failed)?;
        Ok((TreeId::of(hash), pack))
    }
}

fn append_index(pack: &mut BufWriter<File>, index: BufWriter<File>, at: u64) -> io::Result<blake3::Hash> {
    let mut index = index.into_inner().map_err(io::IntoInnerError::into_error)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(MAGIC);
    index.rewind()?;
    let mut buffer = vec![0; BUFFER];
    let mut length = 0u64;
    loop {
        let read = index.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        pack.write_all(&buffer[..read])?;
        length += read as u64;
    }
    let numbers = [at.to_le_bytes(), length.to_le_bytes()].concat();
    let hash = hasher.update(&numbers).finalize();
    pack.write_all(&numbers)?;
    pack.write_all(hash.as_bytes())?;
    pack.flush()?;
    Ok(hash)
}

fn failed(cause: io::Error) -> Error {
    Error::system("write", b"snapshot", cause)
}

fn named(tag: u8, name: &[u8]) -> Vec<u8> {
    // No file system of ours has longer names.
    let mut record = vec![tag, name.len() as u8];
    record.extend_from_slice(name);
    record
}

fn with_mode(mut record: Vec<u8>, mode: u32) -> Vec<u8> {
    record.extend_from_slice(&(mode as u16).to_le_bytes());
    record
}

fn with_time(mut record: Vec<u8>, time: Time) -> Vec<u8> {
    record.extend_from_slice(&time.seconds.to_le_bytes());
    record.extend_from_slice(&time.nanos.to_le_bytes());
    record
}
