//! What the agent will remember. We look at its transcript before it does, compare it with our own log, and mend it
//! where it must be: what an agent does not find it forgets in silence.

use super::wake::{Waking, blocking};
use crate::{
    Result, history,
    ladder::{self, Recalled},
};
use ash_driver::{Driver, Expected, Logged, Memory, Mended, Native, Remembered, Survey, Words};
use ash_model::{Fact, Seq, Tier, TurnId};
use ash_sandbox::Inside;
use ash_snapshot::{Folder, Links, Owner, RelPath};
use ash_store::EventQuery;
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};
use uuid::Uuid;

/// 50 MB are a very long conversation, for which Claude Code takes 400 MB of memory.
const LONGEST_TRANSCRIPT: u64 = 128 << 20;
/// A longer line is no entry.
const LONGEST_ENTRY: u64 = 32 << 20;
/// What is put back from our log is held in memory.
const MOST_PUT_BACK: usize = 64 << 20;

/// How far down the ladder a start begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rung {
    /// As it lies there, mended if it must be.
    Found,
    /// From our own log alone.
    Rebuilt,
    /// Told as text.
    History,
}

/// A message that the agent should know, and where our log has it.
struct Message {
    expected: Expected,
    seq: Seq,
}

/// The conversation by our log.
#[derive(Default)]
struct Conversation {
    messages: Vec<Message>,
    kept: Option<Seq>,
}

impl Waking {
    /// Which conversation the agent takes up. On the way down the ladder what does not serve is put aside, not lost.
    pub(super) async fn recall(&self, rung: Rung, driver: &dyn Driver, inside: &Inside) -> Result<Recalled> {
        let id = self.session.native_id;
        let memory = ladder::memory(&self.state, id);
        let plain = Recalled {
            memory,
            tier: Tier::Native,
            found: None,
            repairs: Vec::new(),
            lost: Vec::new(),
            kept: None,
            messages: None,
            aside: None,
        };
        let from = match memory {
            Memory::Fresh { .. } => return Ok(plain),
            Memory::Own { id } => id,
            Memory::Fork { from, .. } => from,
        };
        let Some(place) = driver.transcript(&inside.workspace, from) else { return Ok(plain) };
        let conversation = self.conversation(driver).await?;
        let kept = conversation.kept;
        let messages = Some(conversation.messages.len() as u64);
        let at = Transcript { home: self.live.home(), place, runtime: self.session.runtime };
        let as_text = Recalled {
            memory: Memory::Fresh { id },
            tier: Tier::History,
            found: Some(Remembered::default()),
            kept,
            messages,
            ..plain.clone()
        };
        if rung == Rung::History {
            let aside = at.run(|at, _| at.put_aside()).await?;
            return Ok(Recalled { aside, ..as_text });
        }
        let expected: Vec<Expected> = conversation.messages.iter().map(|message| message.expected).collect();
        let survey = match rung {
            Rung::Found => at.clone().run(move |at, driver| at.survey(driver, &expected)).await?,
            Rung::Rebuilt | Rung::History => {
                Survey { missing: (0..expected.len()).collect(), ..Survey::default() }
            }
        };
        if survey.sound && survey.remembered.found {
            return Ok(Recalled { found: Some(survey.remembered), kept, messages, ..plain });
        }
        if conversation.messages.is_empty() && !survey.remembered.found {
            // Nothing was said yet that could be missing.
            let aside = at.run(|at, _| at.put_aside()).await?;
            return Ok(Recalled { memory: Memory::Fresh { id }, tier: Tier::Native, aside, ..plain });
        }
        let log = self.words(&conversation, &survey.missing).await?;
        let native = Native { id: from, cwd: inside.workspace.clone() };
        let owner = self.owner();
        let use_it = rung == Rung::Found;
        let expected: Vec<Expected> = conversation.messages.iter().map(|message| message.expected).collect();
        let mended = at
            .run(move |at, driver| {
                let mended = at.mend(driver, &log, &native, use_it);
                let aside = at.replace(&mended, owner)?;
                Ok((Mended { lines: Vec::new(), ..mended }, aside, at.survey(driver, &expected)?))
            })
            .await;
        let (mended, aside, found) = match mended {
            Ok(mended) => mended,
            Err(error) => {
                // Something is in the way that the agent made itself; it sees for itself what it can do with it.
                tracing::warn!(session = %self.session.id, %error, "the agent's transcript could not be mended");
                return Ok(as_text);
            }
        };
        let tier = if mended.rebuilt { Tier::Rebuilt } else { Tier::Repaired };
        tracing::warn!(session = %self.session.id, repairs = ?mended.repairs, lost = ?mended.lost, "the agent's transcript was mended");
        Ok(Recalled {
            memory,
            tier,
            found: Some(found.remembered),
            repairs: mended.repairs,
            lost: mended.lost,
            kept,
            messages,
            aside,
        })
    }

    /// What was put aside takes its place again: it was not its fault.
    pub(super) async fn take_back(&self, recalled: &Recalled) {
        let Some((place, aside)) = recalled.aside.clone() else { return };
        let at = Transcript { home: self.live.home(), place, runtime: self.session.runtime };
        if let Err(error) = at.run(move |at, _| at.take_back(&aside)).await {
            tracing::warn!(session = %self.session.id, %error, "a transcript that was put aside stays there");
        }
    }

    /// All messages that the agent should know, in the order in which they were said.
    async fn conversation(&self, driver: &dyn Driver) -> Result<Conversation> {
        let past = history::past(&self.rooms, self.session.no).await?;
        let current = self.state.current().map(|turn| turn.id);
        let mut found = Conversation::default();
        let mut begun: HashMap<TurnId, bool> = HashMap::new();
        let mut asked: HashMap<TurnId, Seq> = HashMap::new();
        // Of a turn that was cut off only what binds counts: what it was saying it says again.
        let mut cut: Vec<Message> = Vec::new();
        let mut bound = 0;
        let mut after = 0;
        loop {
            let kinds = vec!["queued", "started", "continued", "said"];
            let query = EventQuery { after, limit: 1000, kinds };
            let events = self.rooms.store.events(self.session.no, &query).await?;
            let Some(last) = events.last() else { break };
            after = last.seq;
            for event in events.iter().filter(|event| !past.hides(event)) {
                let mut add = |message: Message, binds: bool, turn: Option<TurnId>| {
                    if turn.is_some() && turn == current {
                        cut.push(message);
                        if binds {
                            bound = cut.len();
                        }
                    } else {
                        found.messages.push(message);
                    }
                };
                match &event.fact {
                    Fact::Queued { turn, .. } => _ = asked.insert(*turn, event.seq),
                    Fact::Started { turn, .. } | Fact::Continued { turn, .. } => {
                        if begun.insert(*turn, true).is_none()
                            && let Some(seq) = asked.get(turn)
                        {
                            let expected = Expected { id: turn.0, prompt: true, digest: None };
                            add(Message { expected, seq: *seq }, false, Some(*turn));
                        }
                    }
                    Fact::Said { line } => {
                        if let Some(spoken) = driver.spoken(line) {
                            let expected =
                                Expected { id: spoken.id, prompt: false, digest: Some(spoken.digest) };
                            add(Message { expected, seq: event.seq }, spoken.binds, event.turn);
                        }
                    }
                    _ => {}
                }
            }
        }
        cut.truncate(bound);
        found.kept = cut.last().map(|message| message.seq);
        found.messages.extend(cut);
        Ok(found)
    }

    /// The log, with the words of what is missing as far as we can hold them.
    async fn words(&self, conversation: &Conversation, missing: &[usize]) -> Result<Vec<Logged>> {
        let mut log: Vec<Logged> = conversation
            .messages
            .iter()
            .map(|message| Logged { id: message.expected.id, at: String::new(), words: None })
            .collect();
        let mut held = 0;
        for number in missing {
            let message = &conversation.messages[*number];
            let query = EventQuery { after: message.seq - 1, limit: 1, kinds: vec!["queued", "said"] };
            let found = self.rooms.store.events(self.session.no, &query).await?;
            let Some(event) = found.into_iter().next().filter(|event| event.seq == message.seq) else {
                continue;
            };
            let at = event.at.to_string();
            let words = match event.fact {
                Fact::Queued { content, .. } => Words::Prompt(content),
                Fact::Said { line } => Words::Line(line),
                _ => continue,
            };
            held += match &words {
                Words::Prompt(content) => content.to_string().len(),
                Words::Line(line) => line.len(),
            };
            if held > MOST_PUT_BACK {
                break;
            }
            log[*number] = Logged { at, words: Some(words), ..log[*number].clone() };
        }
        Ok(log)
    }

    fn owner(&self) -> Option<Owner> {
        self.tree.flatten().map(|uid| Owner { uid, gid: uid })
    }
}

/// What an agent keeps of its conversation is written by whoever is inside, so it may be anything and of any size.
#[derive(Clone)]
struct Transcript {
    home: PathBuf,
    place: String,
    runtime: ash_model::Runtime,
}

impl Transcript {
    async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce(&Transcript, &dyn Driver) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        blocking(move || work(&self, ash_driver::driver(self.runtime).as_ref())).await
    }

    fn home(&self) -> Result<Folder> {
        Ok(Folder::open(Path::new(&self.home))?)
    }

    fn path(&self) -> Result<RelPath> {
        Ok(RelPath::parse(&self.place).map_err(ash_snapshot::Error::from)?)
    }

    fn reader(&self) -> Result<Option<impl BufRead>> {
        let file = self.home()?.open_file(&self.path()?, Links::Refuse).ok();
        let file = file.filter(|(_, is)| is.size <= LONGEST_TRANSCRIPT);
        Ok(file.map(|(file, _)| BufReader::new(file.take(LONGEST_TRANSCRIPT))))
    }

    fn survey(&self, driver: &dyn Driver, expected: &[Expected]) -> Result<Survey> {
        let mut reader = self.reader()?;
        let mut lines = std::iter::from_fn(|| line(reader.as_mut()?));
        Ok(driver.survey(&mut lines, expected))
    }

    fn mend(&self, driver: &dyn Driver, log: &[Logged], native: &Native, use_it: bool) -> Mended {
        let mut reader = self.reader().ok().flatten().filter(|_| use_it);
        let mut lines = std::iter::from_fn(|| line(reader.as_mut()?));
        driver.mend(&mut lines, log, native)
    }

    /// The original is kept beside it, and is there until the new one is.
    fn replace(&self, mended: &Mended, owner: Option<Owner>) -> Result<Option<(String, String)>> {
        let (home, path) = (self.home()?, self.path()?);
        let aside = self.aside();
        let kept = home.link_aside(&path, &aside).or_else(|_| home.put_aside(&path, &aside))?;
        let mut bytes = Lines { lines: &mended.lines, at: 0, within: 0 };
        home.write_file(&path, &mut bytes, owner, 0o600)?;
        Ok(kept.then(|| (self.place.clone(), aside)))
    }

    fn put_aside(&self) -> Result<Option<(String, String)>> {
        let aside = self.aside();
        match self.home()?.put_aside(&self.path()?, &aside) {
            Ok(false) => Ok(None),
            Ok(true) => {
                tracing::warn!(transcript = self.place, "what is no conversation was put aside");
                Ok(Some((self.place.clone(), aside)))
            }
            // A folder on the way is none: the agent sees for itself.
            Err(error) => {
                tracing::warn!(transcript = self.place, %error, "what is no conversation stays");
                Ok(None)
            }
        }
    }

    fn take_back(&self, aside: &str) -> Result<()> {
        let (folder, name) = self.place.rsplit_once('/').unwrap_or(("", &self.place));
        let from = RelPath::parse(&format!("{folder}/{aside}")).map_err(ash_snapshot::Error::from)?;
        self.home()?.put_aside(&from, name)?;
        Ok(())
    }

    fn aside(&self) -> String {
        let name = self.place.rsplit('/').next().unwrap_or(&self.place);
        format!("{name}.{}", Uuid::new_v4())
    }
}

/// The next line. One that is too long is cut, and what is left of it are lines of their own: nonsense, both.
fn line(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let read = reader.by_ref().take(LONGEST_ENTRY).read_until(b'\n', &mut line).ok()?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    (read > 0).then_some(line)
}

/// Lines to be read as one file.
struct Lines<'l> {
    lines: &'l [Vec<u8>],
    at: usize,
    within: usize,
}

impl Read for Lines<'_> {
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
