//! The file in which an agent keeps its conversation. Processes in the sandbox can write to it.

use crate::Result;
use crate::blocking;
use crate::live_directory::open_root;
use ash_driver::{
    AgentDriver, ExpectedMessage, LoggedMessage, MendedTranscript, TranscriptIdentity, TranscriptSurvey,
};
use ash_snapshot::{FileOwner, Folder, LinkPolicy, RelPath};
use std::{
    io::{BufRead, BufReader, Read},
    path::PathBuf,
};
use uuid::Uuid;

/// A very long conversation has 50 MB, for which Claude Code takes 400 MB of memory.
const MAX_TRANSCRIPT_BYTES: u64 = 128 << 20;
/// A longer line is not a valid entry.
const MAX_ENTRY_BYTES: u64 = 32 << 20;

/// A transcript is written by processes in the sandbox, so it may have any content and any size.
#[derive(Clone)]
pub(super) struct AgentTranscript {
    pub(super) home: PathBuf,
    pub(super) place: String,
    pub(super) runtime: ash_model::AgentRuntime,
}

impl AgentTranscript {
    pub(super) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce(&AgentTranscript, &dyn AgentDriver) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        blocking(move || work(&self, ash_driver::driver(self.runtime).as_ref())).await
    }

    fn home(&self) -> Result<Folder> {
        Ok(open_root(&self.home)?)
    }

    fn path(&self) -> Result<RelPath> {
        Ok(RelPath::parse(&self.place).map_err(ash_snapshot::Error::from)?)
    }

    fn reader(&self) -> Result<Option<impl BufRead>> {
        let file = self.home()?.open_file(&self.path()?, LinkPolicy::Refuse).ok();
        let file = file.filter(|(_, is)| is.size <= MAX_TRANSCRIPT_BYTES);
        Ok(file.map(|(file, _)| BufReader::new(file.take(MAX_TRANSCRIPT_BYTES))))
    }

    pub(super) fn survey(
        &self,
        driver: &dyn AgentDriver,
        expected: &[ExpectedMessage],
    ) -> Result<TranscriptSurvey> {
        let mut reader = self.reader()?;
        let mut lines = std::iter::from_fn(|| line(reader.as_mut()?));
        Ok(driver.survey(&mut lines, expected))
    }

    pub(super) fn mend(
        &self,
        driver: &dyn AgentDriver,
        log: &[LoggedMessage],
        native: &TranscriptIdentity,
        use_it: bool,
    ) -> MendedTranscript {
        let mut reader = self.reader().ok().flatten().filter(|_| use_it);
        let mut lines = std::iter::from_fn(|| line(reader.as_mut()?));
        driver.mend(&mut lines, log, native)
    }

    /// Replaces the transcript. The original is kept beside it until the new one is in place.
    pub(super) fn replace(
        &self,
        lines: &[Vec<u8>],
        owner: Option<FileOwner>,
    ) -> Result<Option<(String, String)>> {
        let (home, path) = (self.home()?, self.path()?);
        let aside = self.aside();
        let kept = home.link_aside(&path, &aside).or_else(|_| home.rename_aside(&path, &aside))?;
        let mut bytes = JoinedLines { lines, at: 0, within: 0 };
        home.write_file(&path, &mut bytes, owner, 0o600)?;
        Ok(kept.then(|| (self.place.clone(), aside)))
    }

    pub(super) fn put_aside(&self) -> Result<Option<(String, String)>> {
        let aside = self.aside();
        match self.home()?.rename_aside(&self.path()?, &aside) {
            Ok(false) => Ok(None),
            Ok(true) => {
                tracing::warn!(
                    transcript = self.place,
                    "a transcript without a readable conversation was moved aside"
                );
                Ok(Some((self.place.clone(), aside)))
            }
            // Something that is not a folder is on the way: the agent finds that out by itself.
            Err(error) => {
                tracing::warn!(transcript = self.place, %error, "a transcript without a readable conversation could not be moved aside");
                Ok(None)
            }
        }
    }

    pub(super) fn take_back(&self, aside: &str) -> Result<()> {
        let (folder, name) = self.place.rsplit_once('/').unwrap_or(("", &self.place));
        let from = RelPath::parse(&format!("{folder}/{aside}")).map_err(ash_snapshot::Error::from)?;
        self.home()?.rename_aside(&from, name)?;
        Ok(())
    }

    fn aside(&self) -> String {
        let name = self.place.rsplit('/').next().unwrap_or(&self.place);
        format!("{name}.{}", Uuid::new_v4())
    }
}

/// The next line. A line that is too long is cut, and its parts are read as lines of their own, all of them invalid.
fn line(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let read = reader.by_ref().take(MAX_ENTRY_BYTES).read_until(b'\n', &mut line).ok()?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    (read > 0).then_some(line)
}

/// Lines to be read as one file.
struct JoinedLines<'l> {
    lines: &'l [Vec<u8>],
    at: usize,
    within: usize,
}

impl Read for JoinedLines<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(line) = self.lines.get(self.at) else { return Ok(0) };
        if self.within == line.len() {
            let [first, ..] = buffer else { return Ok(0) };
            *first = b'\n';
            (self.at, self.within) = (self.at + 1, 0);
            return Ok(1);
        }
        let count = buffer.len().min(line.len() - self.within);
        buffer[..count].copy_from_slice(&line[self.within..self.within + count]);
        self.within += count;
        Ok(count)
    }
}
