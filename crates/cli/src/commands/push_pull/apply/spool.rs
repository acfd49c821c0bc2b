//! Fetched contents that are not yet in their place: one file without a name, so that memory use stays small.

use crate::api::{CliError, Result};
use std::{
    cell::Cell,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
};

pub(super) struct ContentSpool {
    file: File,
    end: Cell<u64>,
}

/// The position of a content in the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpoolSpan {
    at: u64,
    length: u64,
}

impl ContentSpool {
    pub(super) fn new() -> Result<ContentSpool> {
        let file = tempfile::tempfile().map_err(CliError::from_io("cannot make a temporary file"))?;
        Ok(ContentSpool { file, end: Cell::new(0) })
    }

    pub(super) fn add(&self, content: &[u8]) -> Result<SpoolSpan> {
        let (at, length) = (self.end.get(), content.len() as u64);
        self.file.write_all_at(content, at).map_err(CliError::from_io("cannot write a temporary file"))?;
        self.end.set(at + length);
        Ok(SpoolSpan { at, length })
    }

    pub(super) fn read(&self, span: &SpoolSpan) -> impl Read {
        SpoolReader { file: &self.file, at: span.at, end: span.at + span.length }
    }
}

struct SpoolReader<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for SpoolReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
