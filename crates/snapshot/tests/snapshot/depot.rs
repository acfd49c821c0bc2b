//! A directory that stands in for the remote store. It records requests, and fails on demand.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Mutex};

use ash_snapshot::{PackPrefix, PackRange, RemotePackSource, Repo, TreeId};

#[derive(Debug)]
pub(crate) struct Depot {
    pub(crate) dir: PathBuf,
    asked: Mutex<Asked>,
    weather: Mutex<Weather>,
    /// The earlier size of a pack, which the next request gets instead of the current one.
    was: Mutex<Option<(String, u64)>>,
    /// If set, readers wait for each other, so that they run at the same time.
    meeting: Option<Barrier>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Packs whose first bytes were requested.
    pub(crate) begun: Vec<String>,
    pub(crate) reads: Vec<PackRange>,
}

impl Asked {
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.begun.len(), self.reads.len())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    Fine,
    /// Fails after this many responses.
    Worse(usize),
    Down,
}

impl Depot {
    pub(crate) fn new(dir: &Path) -> Arc<Depot> {
        Depot::meeting(dir, None)
    }

    pub(crate) fn meeting(dir: &Path, meeting: Option<Barrier>) -> Arc<Depot> {
        std::fs::create_dir_all(dir).expect("made");
        let weather = Mutex::new(Weather::Fine);
        Arc::new(Depot {
            dir: dir.to_owned(),
            asked: Mutex::default(),
            weather,
            was: Mutex::default(),
            meeting,
        })
    }

    pub(crate) fn path(&self, pack: &str) -> PathBuf {
        self.dir.join(pack)
    }

    /// The size of a stored pack.
    pub(crate) fn length(&self, pack: &str) -> u64 {
        std::fs::metadata(self.path(pack)).expect("there").len()
    }

    pub(crate) fn has(&self, pack: &str) -> bool {
        self.path(pack).exists()
    }

    /// The requests since the last call.
    pub(crate) fn asked(&self) -> Asked {
        std::mem::take(&mut self.asked.lock().expect("no code panicked while it held this lock"))
    }

    pub(crate) fn set(&self, weather: Weather) {
        *self.weather.lock().expect("no code panicked while it held this lock") = weather;
    }

    /// Uploads a pack after all packs it needs.
    pub(crate) fn send(&self, repo: &Repo, tree: &TreeId) {
        for pack in repo.references(tree).expect("read") {
            if !self.has(&pack) {
                let (trees, _) = repo.find_by_prefix(&pack).expect("listed");
                self.send(repo, &trees[0]);
            }
        }
        self.put(repo, tree.pack_name());
    }

    /// Uploads a pack in its current form. A concurrent reader gets the old or the new one.
    pub(crate) fn put(&self, repo: &Repo, pack: &str) {
        let (path, size) = repo.pack_file(pack).expect("it is here");
        let (fresh, to) = (self.dir.join("fresh"), self.path(pack));
        assert_eq!(std::fs::copy(path, &fresh).expect("copied"), size);
        std::fs::rename(fresh, to).expect("named");
    }

    /// The next request gets this earlier size, and zeros in place of the earlier first bytes.
    pub(crate) fn remember(&self, pack: &str, size: u64) {
        *self.was.lock().expect("no code panicked while it held this lock") = Some((pack.to_owned(), size));
    }

    fn size(&self, pack: &str) -> io::Result<Option<u64>> {
        match std::fs::metadata(self.path(pack)) {
            Ok(is) => Ok(Some(is.len())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn weather(&self) -> io::Result<()> {
        let mut weather = self.weather.lock().expect("no code panicked while it held this lock");
        *weather = match *weather {
            Weather::Fine => Weather::Fine,
            Weather::Worse(0) | Weather::Down => Weather::Down,
            Weather::Worse(left) => Weather::Worse(left - 1),
        };
        match *weather {
            Weather::Fine | Weather::Worse(_) => Ok(()),
            Weather::Down => Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }

    fn part(&self, part: &PackRange) -> io::Result<Vec<u8>> {
        self.weather()?;
        assert!(!part.range.is_empty(), "stores refuse to read nothing: {part:?}");
        let file = match std::fs::File::open(self.path(&part.pack)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        let end = file.metadata()?.len().clamp(part.range.start, part.range.end);
        let mut bytes = vec![0; (end - part.range.start) as usize];
        file.read_exact_at(&mut bytes, part.range.start)?;
        Ok(bytes)
    }
}

impl RemotePackSource for Depot {
    fn read_prefixes(
        &self,
        packs: &[String],
        most: u64,
        each: &mut dyn FnMut(usize, Option<PackPrefix>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.asked
            .lock()
            .expect("no code panicked while it held this lock")
            .begun
            .extend(packs.iter().cloned());
        let mut was = self.was.lock().expect("no code panicked while it held this lock");
        let was = was.take_if(|(pack, _)| packs.contains(pack));
        for (number, pack) in packs.iter().enumerate().rev() {
            let bytes = self.part(&PackRange { pack: pack.clone(), range: 0..most })?;
            let begun = match &was {
                Some((of, size)) if of == pack => {
                    Some(PackPrefix { size: *size, bytes: vec![0; most.min(*size) as usize] })
                }
                Some(_) | None => self.size(pack)?.map(|size| PackPrefix { size, bytes }),
            };
            each(number, begun)?;
        }
        Ok(())
    }

    /// Serves the last range first, because callers must not rely on an order.
    fn read_ranges(
        &self,
        parts: &[PackRange],
        each: &mut dyn FnMut(usize, Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.asked
            .lock()
            .expect("no code panicked while it held this lock")
            .reads
            .extend(parts.iter().cloned());
        if let Some(meeting) = &self.meeting {
            meeting.wait();
        }
        for (number, part) in parts.iter().enumerate().rev() {
            each(number, self.part(part)?)?;
        }
        Ok(())
    }
}
