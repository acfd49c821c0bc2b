//! The only reader of archives from clients: plain or gzipped tars. It checks each entry before it passes it on. It
//! holds one block, one extension and the validator in memory, never a file.

use super::{
    tar_header::{self, BLOCK, TarExtensions, TarHeader},
    validate::{ArchiveError, ArchiveLimits, UploadValidator},
};
use ash_snapshot::RelPath;
use flate2::bufread::GzDecoder;
use std::io::{self, Read};

/// The agent must be able to read and write its own files, whatever the archive says.
const OWN: u32 = 0o600;

/// A checked entry, safe to write.
pub(super) enum ArchiveEntry<'e> {
    File {
        path: &'e RelPath,
        mode: u32,
        bytes: &'e mut dyn Read,
    },
    /// A copy of an earlier file.
    Copy {
        path: &'e RelPath,
        of: &'e RelPath,
    },
    Link {
        path: &'e RelPath,
        target: &'e [u8],
    },
    Folder {
        path: &'e RelPath,
    },
}

/// Passes on every entry in order. The caller must be able to undo its writes, because an error in the last entry
/// appears last.
pub(super) fn visit_entries<E: From<ArchiveError>>(
    archive: &[u8],
    limits: &ArchiveLimits,
    visit: &mut dyn FnMut(ArchiveEntry<'_>) -> Result<(), E>,
) -> Result<UploadValidator, E> {
    let mut reading = ArchiveReader {
        stream: ArchiveByteStream::of(archive, limits)?,
        ledger: UploadValidator::new(limits),
        limits,
    };
    let mut extra = TarExtensions::default();
    let mut first = true;
    while let Some(header) = reading.header(std::mem::take(&mut first))? {
        match header.flag {
            b'L' => extra.long_name(&reading.extension(&header)?)?,
            b'K' => extra.long_target(&reading.extension(&header)?)?,
            b'x' => extra.pax(&reading.extension(&header)?)?,
            b'g' => tar_header::check_global_pax(&reading.extension(&header)?)?,
            _ => reading.entry(header, std::mem::take(&mut extra), visit)?,
        }
    }
    if !extra.is_empty() {
        return Err(
            ArchiveError::Damaged("it ends with a name for an entry that does not come".to_owned()).into()
        );
    }
    reading.stream.end()?;
    Ok(reading.ledger)
}

struct ArchiveReader<'a> {
    stream: ArchiveByteStream<'a>,
    ledger: UploadValidator,
    limits: &'a ArchiveLimits,
}

impl ArchiveReader<'_> {
    /// `None`: the end marker of the archive. An archive that just stops was cut off.
    fn header(&mut self, first: bool) -> Result<Option<TarHeader>, ArchiveError> {
        let mut block = [0; BLOCK];
        self.stream.read_exact(&mut block)?;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if first && !tar_header::is_tar(&block) {
            return Err(ArchiveError::Unsupported("a gzip file of something that is no tar"));
        }
        self.ledger.count_header()?;
        TarHeader::parse(&block).map(Some)
    }

    fn extension(&mut self, header: &TarHeader) -> Result<Vec<u8>, ArchiveError> {
        if header.size > self.limits.extension {
            let error = format!(
                "{} bytes that only describe an entry; it may be {}",
                header.size, self.limits.extension
            );
            return Err(ArchiveError::TooLarge(error));
        }
        let mut content = vec![0; usize::try_from(header.size).unwrap_or(0)];
        self.stream.read_exact(&mut content)?;
        self.pad(header.size)?;
        Ok(content)
    }

    fn entry<E: From<ArchiveError>>(
        &mut self,
        header: TarHeader,
        extra: TarExtensions,
        visit: &mut dyn FnMut(ArchiveEntry<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let name = extra.name.unwrap_or(header.name);
        if extra.size.is_some_and(|size| size != header.size) {
            return Err(ArchiveError::entry(&name, "has two sizes that differ").into());
        }
        let target = extra.target.unwrap_or(header.target);
        let (bare, is_folder) = plain(&name);
        let what = kind(header.flag, is_folder, &name)?;
        if what != TarEntryKind::File && header.size > 0 {
            return Err(ArchiveError::entry(&name, "has content, and is no file").into());
        }
        // The folder itself, as `tar -C folder .` writes it.
        if what == TarEntryKind::Folder
            && matches!(bare, b"" | b".")
            && !name.starts_with(b"/")
            && !name.is_empty()
        {
            return Ok(());
        }
        let path = self.ledger.path(bare)?;
        match what {
            TarEntryKind::Folder => {
                self.ledger.folder(&path)?;
                visit(ArchiveEntry::Folder { path: &path })
            }
            TarEntryKind::Link => {
                self.ledger.link(&path, &target)?;
                visit(ArchiveEntry::Link { path: &path, target: &target })
            }
            TarEntryKind::Hard => {
                let of = self.ledger.path(plain(&target).0)?;
                self.ledger.copy(&path, &of)?;
                visit(ArchiveEntry::Copy { path: &path, of: &of })
            }
            TarEntryKind::File => {
                self.ledger.file(&path, header.size)?;
                self.file(&path, (header.size, header.mode), visit)
            }
        }
    }

    fn file<E: From<ArchiveError>>(
        &mut self,
        path: &RelPath,
        (size, mode): (u64, u32),
        visit: &mut dyn FnMut(ArchiveEntry<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut content = ArchiveFileReader { stream: &mut self.stream, left: size };
        visit(ArchiveEntry::File { path, mode: mode | OWN, bytes: &mut content })?;
        let left = content.left;
        self.stream.skip(left)?;
        Ok(self.pad(size)?)
    }

    fn pad(&mut self, size: u64) -> Result<(), ArchiveError> {
        self.stream.skip(size.next_multiple_of(BLOCK as u64) - size)
    }
}

#[derive(PartialEq, Eq)]
enum TarEntryKind {
    File,
    Folder,
    Link,
    Hard,
}

fn kind(flag: u8, is_folder: bool, name: &[u8]) -> Result<TarEntryKind, ArchiveError> {
    let why = match flag {
        // Old tars mark a folder by a final slash instead of a flag.
        b'0' | 0 if is_folder => return Ok(TarEntryKind::Folder),
        b'0' | 0 | b'7' if !is_folder => return Ok(TarEntryKind::File),
        b'1' => return Ok(TarEntryKind::Hard),
        b'2' => return Ok(TarEntryKind::Link),
        b'5' => return Ok(TarEntryKind::Folder),
        b'3' | b'4' => "is a device; leave it out",
        b'6' => "is a FIFO; leave it out",
        b'S' => tar_header::SPARSE,
        _ => "is of a kind that is neither a file, a folder nor a link",
    };
    Err(ArchiveError::entry(name, why))
}

/// The name without a leading `./` and final slashes, and whether it had final slashes.
fn plain(name: &[u8]) -> (&[u8], bool) {
    let mut bare = name;
    while let Some(rest) = bare.strip_prefix(b"./") {
        bare = rest;
    }
    let end = bare.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    (&bare[..end], end < bare.len() || bare.is_empty())
}

/// The bytes of an archive, unpacked as they are read.
struct ArchiveByteStream<'a> {
    from: ArchiveDecoder<'a>,
    read: u64,
    max_bytes: u64,
    /// More bytes than this exceed the allowed compression ratio.
    max_by_ratio: u64,
    ratio: u64,
}

enum ArchiveDecoder<'a> {
    Plain(&'a [u8]),
    Gzip(Box<GzDecoder<&'a [u8]>>),
}

impl<'a> ArchiveByteStream<'a> {
    fn of(archive: &'a [u8], limits: &ArchiveLimits) -> Result<ArchiveByteStream<'a>, ArchiveError> {
        let from = match archive {
            [] => return Err(ArchiveError::Unsupported("empty")),
            [0x1f, 0x8b, ..] => ArchiveDecoder::Gzip(Box::new(GzDecoder::new(archive))),
            [b'P', b'K', 3 | 5, ..] => return Err(ArchiveError::Unsupported("a zip file")),
            [b'B', b'Z', b'h', ..] => return Err(ArchiveError::Unsupported("packed with bzip2")),
            [0xfd, b'7', b'z', b'X', ..] => return Err(ArchiveError::Unsupported("packed with xz")),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => return Err(ArchiveError::Unsupported("packed with zstd")),
            _ if archive.get(..BLOCK).is_some_and(tar_header::is_tar) => ArchiveDecoder::Plain(archive),
            _ => return Err(ArchiveError::Unsupported("of no format that is known here")),
        };
        let fair = (archive.len() as u64).saturating_mul(limits.ratio).max(limits.ratio_free_bytes);
        let fair = if matches!(from, ArchiveDecoder::Plain(_)) { u64::MAX } else { fair };
        Ok(ArchiveByteStream {
            from,
            read: 0,
            max_bytes: limits.stream(),
            max_by_ratio: fair,
            ratio: limits.ratio,
        })
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        let read = match &mut self.from {
            ArchiveDecoder::Plain(bytes) => bytes.read(buffer),
            ArchiveDecoder::Gzip(gzip) => gzip.read(buffer),
        };
        let read = read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => cut_off(),
            _ => ArchiveError::Damaged(format!("what gzip packed cannot be unpacked ({error})")),
        })?;
        self.read = self.read.saturating_add(read as u64);
        if self.read > self.max_by_ratio {
            return Err(ArchiveError::Ratio { most: self.ratio });
        }
        if self.read > self.max_bytes {
            return Err(ArchiveError::TooLarge(format!(
                "the archive unpacks to more than {} bytes",
                self.max_bytes
            )));
        }
        Ok(read)
    }

    fn read_exact(&mut self, mut buffer: &mut [u8]) -> Result<(), ArchiveError> {
        while !buffer.is_empty() {
            match self.read_some(buffer)? {
                0 => return Err(cut_off()),
                read => buffer = &mut buffer[read..],
            }
        }
        Ok(())
    }

    fn skip(&mut self, mut left: u64) -> Result<(), ArchiveError> {
        let mut buffer = [0; 16 << 10];
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            self.read_exact(&mut buffer[..part])?;
            left -= part as u64;
        }
        Ok(())
    }

    /// Only zeros may follow the end of an archive. Readers disagree about anything else there.
    fn end(&mut self) -> Result<(), ArchiveError> {
        let more = || ArchiveError::Damaged("something follows its end".to_owned());
        let mut buffer = [0; 16 << 10];
        loop {
            match self.read_some(&mut buffer)? {
                0 => break,
                read if buffer[..read].iter().all(|byte| *byte == 0) => {}
                _ => return Err(more()),
            }
        }
        match &self.from {
            ArchiveDecoder::Gzip(gzip) if !gzip.get_ref().is_empty() => Err(more()),
            ArchiveDecoder::Gzip(_) | ArchiveDecoder::Plain(_) => Ok(()),
        }
    }
}

fn cut_off() -> ArchiveError {
    ArchiveError::Damaged("it ends in the middle".to_owned())
}

/// The bytes of one file.
struct ArchiveFileReader<'s, 'a> {
    stream: &'s mut ArchiveByteStream<'a>,
    left: u64,
}

impl Read for ArchiveFileReader<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let part = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if part == 0 {
            return Ok(0);
        }
        match self.stream.read_some(&mut buffer[..part]).map_err(io::Error::other)? {
            0 => Err(io::Error::other(cut_off())),
            read => {
                self.left -= read as u64;
                Ok(read)
            }
        }
    }
}
