//! What the agent will remember. Before the agent reads its transcript, the server compares it with its own log and
//! repairs it where necessary: an agent ignores silently what it does not find.

use super::{SessionStartJob, transcript::AgentTranscript};
use crate::{
    Error, LogVisibility, Result,
    ladder::{self, RecalledConversation},
    live_directory::TranscriptRepair,
};
use ash_driver::{
    AgentDriver, ConversationSource, ExpectedMessage, LoggedContent, LoggedMessage, MendedTranscript,
    ResumedConversation, TranscriptIdentity, TranscriptSurvey,
};
use ash_model::{EventSeq, Fact, Tier, TurnId};
use ash_sandbox::SandboxLayout;
use ash_snapshot::FileOwner;
use ash_store::EventQuery;
use std::collections::{HashMap, VecDeque};

/// What is restored from the server's log is held in memory.
const MAX_RESTORED_BYTES: usize = 64 << 20;
/// A longer conversation is compared from its end; each message is held in memory with its digest.
const MAX_COMPARED_MESSAGES: usize = 1 << 18;

/// At which rung of the ladder a start begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rung {
    /// The transcript as it is, repaired if necessary.
    Transcript,
    /// Rebuilt from the server's log alone.
    Rebuilt,
    /// Told as text.
    History,
}

/// A message that the agent should know, and its position in the log.
struct ExpectedLogMessage {
    expected: ExpectedMessage,
    seq: EventSeq,
}

/// The conversation by the server's log.
#[derive(Default)]
struct LoggedConversation {
    messages: VecDeque<ExpectedLogMessage>,
    kept: Option<EventSeq>,
    /// How many messages came before these.
    older: u64,
}

impl LoggedConversation {
    fn add(&mut self, message: ExpectedLogMessage) {
        if self.messages.len() == MAX_COMPARED_MESSAGES {
            self.messages.pop_front();
            self.older += 1;
        }
        self.messages.push_back(message);
    }

    fn expected(&self) -> Vec<ExpectedMessage> {
        self.messages.iter().map(|message| message.expected).collect()
    }

    fn not_compared(&self) -> Option<String> {
        (self.older > 0)
            .then(|| format!("the first {} messages were not compared: there are too many", self.older))
    }
}

impl SessionStartJob {
    /// Decides which conversation the agent continues. A transcript that fails on the way down the ladder is put aside,
    /// not lost. `before`: how an earlier start repaired it that died before it was recorded.
    pub(super) async fn prepare_memory(
        &self,
        rung: Rung,
        (driver, inside): (&dyn AgentDriver, &SandboxLayout),
        before: Option<&TranscriptRepair>,
    ) -> Result<RecalledConversation> {
        let id = self.session.native_id;
        let memory = ladder::conversation_source(&self.state, id);
        let plain = RecalledConversation {
            memory,
            tier: Tier::Native,
            found: None,
            repairs: Vec::new(),
            lost: Vec::new(),
            prompts: Vec::new(),
            resumed_after: None,
            messages: None,
            aside: None,
        };
        let from = match memory {
            ConversationSource::Fresh { .. } => return Ok(plain),
            ConversationSource::Resume { id } => id,
            ConversationSource::Fork { from, .. } => from,
        };
        let Some(place) = driver.transcript(&inside.workspace, from) else { return Ok(plain) };
        let conversation = self.conversation(driver, rung).await?;
        let kept = conversation.kept;
        let messages = Some(conversation.messages.len() as u64);
        let at = AgentTranscript { home: self.live.home(), place, runtime: self.session.runtime };
        let as_text = RecalledConversation {
            memory: ConversationSource::Fresh { id },
            tier: Tier::History,
            found: Some(ResumedConversation::default()),
            resumed_after: kept,
            messages,
            ..plain.clone()
        };
        if rung == Rung::History {
            let aside = at.run(|at, _| at.put_aside()).await?;
            return Ok(RecalledConversation { aside, ..as_text });
        }
        let survey = match rung {
            Rung::Transcript => {
                let expected = conversation.expected();
                at.clone().run(move |at, driver| at.survey(driver, &expected)).await?
            }
            Rung::Rebuilt | Rung::History => TranscriptSurvey {
                missing: (0..conversation.messages.len()).collect(),
                ..TranscriptSurvey::default()
            },
        };
        let unsure = conversation.not_compared();
        if survey.is_sound && survey.resumed.is_found {
            let found = Some(survey.resumed);
            let whole = RecalledConversation {
                found,
                prompts: survey.prompts,
                resumed_after: kept,
                messages,
                ..plain
            };
            let TranscriptRepair { tier, repairs, mut lost } = match before.cloned() {
                Some(before) => before,
                None => TranscriptRepair { tier: Tier::Native, repairs: Vec::new(), lost: Vec::new() },
            };
            lost.extend(unsure);
            return Ok(RecalledConversation { tier, repairs, lost, ..whole });
        }
        if conversation.messages.is_empty() && !survey.resumed.is_found {
            // There is no message yet that could be missing.
            let aside = at.run(|at, _| at.put_aside()).await?;
            return Ok(RecalledConversation {
                memory: ConversationSource::Fresh { id },
                tier: Tier::Native,
                aside,
                ..plain
            });
        }
        // Limited, because each repair holds a whole conversation in memory.
        let _turn = self.services.repair_permits.acquire().await.map_err(|_| Error::Stopping)?;
        let log = self.words(&conversation, &survey.missing).await?;
        let native = TranscriptIdentity { id: from, cwd: inside.workspace.clone() };
        let owner = self.owner();
        let use_it = rung == Rung::Transcript;
        let expected = conversation.expected();
        let (live, before) = (self.live.clone(), before.cloned());
        let mended = at
            .run(move |at, driver| {
                let MendedTranscript { lines, rebuilt, repairs, lost } =
                    at.mend(driver, &log, &native, use_it);
                let tier = if rebuilt { Tier::Rebuilt } else { Tier::Repaired };
                let mut mending = TranscriptRepair { tier, repairs, lost }.after(before.as_ref());
                mending.lost.extend(unsure);
                live.note_mended(id, Some(mending.clone()))?;
                let aside = at.replace(&lines, owner)?;
                Ok((mending, aside, at.survey(driver, &expected)?))
            })
            .await;
        let (TranscriptRepair { tier, repairs, lost }, aside, found) = match mended {
            Ok(mended) => mended,
            Err(error) => {
                // A file of the agent is in the way; the agent handles it by itself.
                tracing::warn!(session = %self.session.id, %error, "the agent's transcript could not be repaired");
                return Ok(as_text);
            }
        };
        tracing::warn!(session = %self.session.id, ?repairs, ?lost, "the agent's transcript was repaired");
        let (found, prompts) = (Some(found.resumed), found.prompts);
        Ok(RecalledConversation {
            memory,
            tier,
            found,
            repairs,
            lost,
            prompts,
            resumed_after: kept,
            messages,
            aside,
        })
    }

    /// Restores a transcript that was put aside: it was not the cause of the failure.
    pub(super) async fn restore_put_aside(&self, recalled: &RecalledConversation) {
        let Some((place, aside)) = recalled.aside.clone() else { return };
        let at = AgentTranscript { home: self.live.home(), place, runtime: self.session.runtime };
        if let Err(error) = at.run(move |at, _| at.take_back(&aside)).await {
            tracing::warn!(session = %self.session.id, %error, "a transcript that was moved aside could not be removed");
        }
    }

    /// All messages that the agent should know, in the order of the conversation.
    async fn conversation(&self, driver: &dyn AgentDriver, rung: Rung) -> Result<LoggedConversation> {
        let past = LogVisibility::read(self.services.store.as_ref(), self.session.no, EventSeq::MAX).await?;
        let current = self.state.current().map(|turn| turn.id);
        let mut found = LoggedConversation::default();
        let mut begun: HashMap<TurnId, bool> = HashMap::new();
        let mut asked: HashMap<TurnId, EventSeq> = HashMap::new();
        // Of a turn that was cut, everything up to its last tool call or result counts: the agent repeats the text
        // after that.
        let mut cut: Vec<ExpectedLogMessage> = Vec::new();
        let mut bound = 0;
        let mut after = 0;
        loop {
            let kinds = vec!["queued", "steered", "started", "continued", "said"];
            let query = EventQuery { after, limit: 1000, kinds };
            let events = self.services.store.events(self.session.no, &query).await?;
            let Some(last) = events.last() else { break };
            after = last.seq;
            for event in events.iter().filter(|event| !past.hides(event)) {
                let mut add = |message: ExpectedLogMessage, binds: bool, turn: Option<TurnId>| {
                    if turn.is_some() && turn == current {
                        cut.push(message);
                        if binds {
                            bound = cut.len();
                        }
                    } else {
                        found.add(message);
                    }
                };
                match &event.fact {
                    Fact::Queued { turn, .. } => _ = asked.insert(*turn, event.seq),
                    // The agent keeps a message that it acknowledged in the middle of a turn as a note, not as a message.
                    Fact::Steered { turn, into } if rung == Rung::Rebuilt => {
                        if let Some(seq) = asked.get(turn).filter(|_| begun.insert(*turn, true).is_none()) {
                            let expected = ExpectedMessage { id: turn.0, prompt: true, digest: None };
                            add(ExpectedLogMessage { expected, seq: *seq }, false, Some(*into));
                        }
                    }
                    Fact::Started { turn, .. } | Fact::Continued { turn, .. } => {
                        if begun.insert(*turn, true).is_none()
                            && let Some(seq) = asked.get(turn)
                        {
                            let expected = ExpectedMessage { id: turn.0, prompt: true, digest: None };
                            add(ExpectedLogMessage { expected, seq: *seq }, false, Some(*turn));
                        }
                    }
                    Fact::Said { line } => {
                        if let Some(spoken) = driver.message_fingerprint(line) {
                            let expected =
                                ExpectedMessage { id: spoken.id, prompt: false, digest: Some(spoken.digest) };
                            add(
                                ExpectedLogMessage { expected, seq: event.seq },
                                spoken.has_call_or_result,
                                event.turn,
                            );
                        }
                    }
                    _ => {}
                }
            }
        }
        cut.truncate(bound);
        found.kept = cut.last().map(|message| message.seq);
        cut.into_iter().for_each(|message| found.add(message));
        Ok(found)
    }

    /// The log, with the text of missing messages as far as it fits into memory.
    async fn words(
        &self,
        conversation: &LoggedConversation,
        missing: &[usize],
    ) -> Result<Vec<LoggedMessage>> {
        let mut log: Vec<LoggedMessage> = conversation
            .messages
            .iter()
            .map(|message| LoggedMessage { id: message.expected.id, at: String::new(), words: None })
            .collect();
        // Sorted by position, because the log is read once: a message may have waited while others were said.
        let mut missing = missing.to_vec();
        missing.sort_by_key(|number| conversation.messages[*number].seq);
        let mut missing = missing.into_iter().peekable();
        let (mut held, mut after) = (0, 0);
        while let Some(next) = missing.peek() {
            let next = conversation.messages[*next].seq;
            let query = EventQuery { after: after.max(next - 1), limit: 100, kinds: vec!["queued", "said"] };
            let events = self.services.store.events(self.session.no, &query).await?;
            let Some(last) = events.last() else { break };
            after = last.seq;
            for event in events {
                let seq_of = |number: &usize| conversation.messages[*number].seq;
                while missing.next_if(|number| seq_of(number) < event.seq).is_some() {}
                let Some(number) = missing.next_if(|number| seq_of(number) == event.seq) else { continue };
                let at = event.at.to_string();
                let words = match event.fact {
                    Fact::Queued { content, .. } => LoggedContent::Prompt(content),
                    Fact::Said { line } => LoggedContent::Line(line),
                    _ => continue,
                };
                held += match &words {
                    LoggedContent::Prompt(content) => content.to_string().len(),
                    LoggedContent::Line(line) => line.len(),
                };
                if held > MAX_RESTORED_BYTES {
                    return Ok(log);
                }
                log[number] = LoggedMessage { at, words: Some(words), ..log[number].clone() };
            }
        }
        Ok(log)
    }

    pub(super) fn owner(&self) -> Option<FileOwner> {
        self.tree.and_then(|tree| tree.uid).map(|uid| FileOwner { uid, gid: uid })
    }
}
