//! Malicious archives. Each has a counterpart that differs only in the attack and is accepted.

mod attacks;
mod mutations;
mod tools;

use super::{
    fuzzing::{SMALL, sign},
    *,
};
use ash_snapshot::{Folder, LinkPolicy};
use flate2::{Compression, write::GzEncoder};
use std::{io::Write, path::Path};

/// A tar written byte by byte, because libraries refuse to write these.
#[derive(Clone, Default)]
struct TestTarBuilder(Vec<u8>);

impl TestTarBuilder {
    fn entry(
        self,
        flag: u8,
        name: impl AsRef<[u8]>,
        target: impl AsRef<[u8]>,
        content: impl AsRef<[u8]>,
    ) -> TestTarBuilder {
        self.patched(flag, name.as_ref(), target.as_ref(), content.as_ref(), |_| {})
    }

    /// Adds an entry with a modified header and a correct checksum.
    fn patched(
        mut self,
        flag: u8,
        name: &[u8],
        target: &[u8],
        content: &[u8],
        patch: impl FnOnce(&mut [u8]),
    ) -> TestTarBuilder {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name);
        header[100..107].copy_from_slice(b"0000644");
        header[108..115].copy_from_slice(b"0000000");
        header[116..123].copy_from_slice(b"0000000");
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[136..147].copy_from_slice(b"14762050600");
        header[156] = flag;
        header[157..157 + target.len()].copy_from_slice(target);
        header[257..265].copy_from_slice(b"ustar\x0000");
        patch(&mut header);
        sign(&mut header);
        self.0.extend_from_slice(&header);
        self.bytes(content)
    }

    fn bytes(mut self, content: &[u8]) -> TestTarBuilder {
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> TestTarBuilder {
        self.entry(b'0', name, "", content)
    }

    fn folder(self, name: &str) -> TestTarBuilder {
        self.entry(b'5', name, "", "")
    }

    fn link(self, name: &str, target: impl AsRef<[u8]>) -> TestTarBuilder {
        self.entry(b'2', name, target, "")
    }

    fn hard(self, name: &str, target: &str) -> TestTarBuilder {
        self.entry(b'1', name, target, "")
    }

    fn pax(self, records: &[(&str, &[u8])]) -> TestTarBuilder {
        self.attributes(b'x', records)
    }

    fn attributes(self, flag: u8, records: &[(&str, &[u8])]) -> TestTarBuilder {
        let content: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        self.entry(flag, "PaxHeaders/x", "", content)
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = (1..9).map(|digits| rest + digits).find(|length| length.to_string().len() + rest == *length);
    [length.expect("a length").to_string().as_bytes(), b" ", key.as_bytes(), b"=", value, b"\n"].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).expect("packed");
    gzip.finish().expect("packed")
}

/// Unpacks like an upload: it checks the whole archive first, then writes each entry.
fn unpack_into(dir: &Path, archive: &[u8], limits: &ArchiveLimits) -> Result<usize, ArchiveError> {
    check_archive(archive, limits)?;
    let (folder, mut written) = (Folder::open(dir).expect("opened"), 0);
    read::visit_entries(archive, limits, &mut |entry| {
        written += usize::from(!matches!(entry, ArchiveEntry::Folder { .. }));
        let done = match entry {
            ArchiveEntry::File { path, mode, bytes } => {
                folder.replace_file(path, bytes, None, mode).map(drop)
            }
            ArchiveEntry::Copy { path, of } => {
                let (mut file, stat) = folder.open_file(of, LinkPolicy::Refuse).expect("what came before");
                folder.replace_file(path, &mut file, None, stat.mode).map(drop)
            }
            ArchiveEntry::Link { path, target } => folder.symlink(path, target, None),
            ArchiveEntry::Folder { path } => folder.make_subfolder(path, None),
        };
        done.expect("what was checked can be written");
        Ok::<(), ArchiveError>(())
    })?;
    Ok(written)
}
