//! Contents that are fetched but not yet in their place: one nameless file, so that memory stays small.

use crate::api::{Failure, Result};
use std::{
    cell::Cell,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
};

pub(super) struct Spool {
    file: File,
    end: Cell<u64>,
}

/// Where in the spool a content is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    at: u64,
    length: u64,
}

impl Spool {
    pub(super) fn new() -> Result<Spool> {
        let file = tempfile::tempfile().map_err(Failure::local("cannot make a temporary file"))?;
        Ok(Spool { file, end: Cell::new(0) })
    }

    pub(super) fn add(&self, content: &[u8]) -> Result<Span> {
        let (at, length) = (self.end.get(), content.len() as u64);
        self.file.write_all_at(content, at).map_err(Failure::local("cannot write a temporary file"))?;
        self.end.set(at + length);
        Ok(Span { at, length })
    }

    pub(super) fn read(&self, span: &Span) -> impl Read {
        Reading { file: &self.file, at: span.at, end: span.at + span.length }
    }
}

struct Reading<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
