//! One turn: ask the provider, run the tools it calls, ask again, until it has answered.
//!
//! Every step is in the transcript before it is shown. That makes a turn's uuid a promise: sent again after a
//! crash, the turn goes on where it stopped, and nothing that finished is done twice.

use crate::cancel::Cancel;
use crate::compaction::{Asked, Compacting, Ring};
use crate::conversation::{
    Assistant, AssistantMessage, Block, Content, Conversation, Ended, Ending, Entry, Fact, Reason, Shown,
    Step, Subtype, ToolResult, ToolUse, Turn, User, UserMessage,
};
use crate::flags::{Answers, Manner};
use crate::out::Out;
use crate::provider::{self, Provider, Reply, Request, Word};
use crate::steering::Steering;
use crate::transcript::{self, Transcript};
use crate::wire::{Delta, Event, Line, Notice};
use crate::{ids, instructions, tools};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Long work takes a hundred; a model that calls tools in circles must come to an end.
const ROUNDS: usize = 200;
const NOT_OFFERED: &str = "[Tool call not run: this session has no such tool]";
const NOT_RUN: &str = "[Tool call not run: the turn was interrupted]";

pub(crate) struct Prompt {
    pub(crate) uuid: String,
    pub(crate) content: Content,
    /// What the host has to say before it.
    pub(crate) head: Option<String>,
}

pub(crate) struct Agent<'a> {
    pub(crate) session: &'a str,
    /// The session's own.
    pub(crate) system_prompt: Option<&'a str>,
    /// All that the agent is told beforehand. It stays the same while a turn lasts: thoughts are signed over it.
    pub(crate) system: Option<String>,
    pub(crate) manner: &'a Manner,
    pub(crate) out: &'a Out,
    pub(crate) answers: &'a Answers,
    pub(crate) provider: Box<dyn Provider>,
    pub(crate) transcript: Transcript,
    pub(crate) conversation: Conversation,
    pub(crate) compacting: Option<Compacting>,
    /// Of the last request pieces were left out that may be shown again.
    pub(crate) squeezed: bool,
    pub(crate) ring: Ring,
    pub(crate) steering: &'a Steering,
}

/// Why a turn is over.
pub(crate) enum Stop {
    Answered,
    OutOfRounds,
    Aborted { reason: Reason, partial: String },
    Failed { reason: Reason, why: String },
}

impl Agent<'_> {
    pub(crate) fn take(&mut self, prompt: Prompt, cancel: &Cancel) {
        let uuid = prompt.uuid.clone();
        if self.conversation.turn(&uuid).is_some_and(|turn| turn.ended.is_some()) {
            return self.show_again(&uuid);
        }
        self.system = instructions::all(self.system_prompt, &self.manner.skills);
        let started = Instant::now();
        let ended = self.attempt(prompt, cancel).and_then(|stop| {
            let fact = self.ending(stop, started);
            self.record(&uuid, fact)
        });
        match ended {
            Ok(()) => self.show_end(&uuid),
            Err(error) => self.show_unrecorded(&uuid, &error, started),
        }
        self.look_ahead();
    }

    fn attempt(&mut self, prompt: Prompt, cancel: &Cancel) -> Result<Stop, transcript::Error> {
        let uuid = prompt.uuid;
        if self.conversation.turn(&uuid).is_none_or(|turn| turn.prompt.is_none()) {
            let message = UserMessage { role: User::User, content: prompt.content };
            self.record(&uuid, Fact::User { message, head: prompt.head })?;
        }
        self.conversation.bring_to_the_end(&uuid);
        self.show_start(&uuid);
        self.turn().steps.iter().for_each(|step| self.show_step(step));
        for call in self.turn().open_calls() {
            self.record_result(ToolResult::refused(call, ToolResult::UNKNOWN))?;
        }
        self.rounds(cancel)
    }

    fn rounds(&mut self, cancel: &Cancel) -> Result<Stop, transcript::Error> {
        while self.turn().answer().is_none() {
            if self.turn().steps.len() >= ROUNDS {
                return Ok(Stop::OutOfRounds);
            }
            let asked = self.prepare(cancel)?;
            let reply = match asked.and_then(|asked| self.ask(&asked, cancel)) {
                Ok(reply) => reply,
                Err(stop) => return Ok(stop),
            };
            self.record(&self.turn().uuid.clone(), Fact::Assistant { message: self.message(reply) })?;
            if std::mem::take(&mut self.squeezed) {
                self.conversation.measured = None;
            }
            self.turn().steps.last().into_iter().for_each(|step| self.show_step(step));
            if self.run_tools(cancel)? == Tools::Aborted {
                return Ok(Stop::Aborted { reason: Reason::AbortedTools, partial: String::new() });
            }
            self.hear_steers()?;
        }
        Ok(Stop::Answered)
    }

    /// The model sees them with its next request. After its last word there is none.
    fn hear_steers(&mut self) -> Result<(), transcript::Error> {
        if self.turn().answer().is_some() {
            return Ok(());
        }
        let turn = self.turn().uuid.clone();
        for Prompt { uuid, content, .. } in self.steering.take(&turn) {
            let message = UserMessage { role: User::User, content };
            self.record_as(uuid.clone(), &turn, Fact::Steer { message })?;
            self.show_steer(&uuid);
        }
        Ok(())
    }

    fn show_steer(&self, uuid: &str) {
        let (session_id, turn) = (self.session, self.turn().uuid.as_str());
        self.out.say(&Line::System(Notice::Steered { session_id, uuid, turn }));
    }

    fn ask(&mut self, asked: &Asked, cancel: &Cancel) -> Result<Reply, Stop> {
        let mut partial = String::new();
        let (out, session_id, streaming) = (self.out, self.session, self.manner.streaming);
        let mut sink = |word: Word<'_>| match word {
            Word::Text(text) => {
                partial.push_str(text);
                if streaming {
                    let event = Event::ContentBlockDelta { index: 0, delta: Delta::TextDelta { text } };
                    out.say(&Line::StreamEvent { session_id, event });
                }
            }
            Word::Again(again) => {
                partial.clear();
                let (uuid, retry) = (ids::uuid(), (&again).into());
                out.say(&Line::System(Notice::ApiRetry { session_id, uuid: &uuid, retry }));
            }
        };
        let turns = asked.turns.as_deref().unwrap_or(self.conversation.turns());
        let (system, manner) = (self.system.as_deref(), self.manner);
        let request = Request { system, manner, turns, room: asked.room };
        match self.provider.answer(&request, &mut sink, cancel) {
            Ok(reply) => Ok(reply),
            Err(provider::Error::Failed(why)) => Err(Stop::Failed { reason: Reason::ApiError, why }),
            Err(provider::Error::Refused(why)) => Err(Stop::Failed { reason: Reason::InvalidRequest, why }),
            Err(provider::Error::Cancelled) => {
                Err(Stop::Aborted { reason: Reason::AbortedStreaming, partial })
            }
        }
    }

    fn message(&self, reply: Reply) -> AssistantMessage {
        let mut content = reply.content;
        if content.is_empty() {
            content.push(Block::Text { text: String::new() });
        }
        let model = self.provider.model().to_owned();
        AssistantMessage { id: reply.id, role: Assistant::Assistant, model, content, usage: reply.usage }
    }

    /// Runs what the last step called, in order. After an interrupt the rest is refused, so that each call has
    /// its result: models do not accept a conversation with open calls.
    fn run_tools(&mut self, cancel: &Cancel) -> Result<Tools, transcript::Error> {
        let calls: Vec<ToolUse> =
            self.turn().steps.last().map(|step| step.message.calls().cloned().collect()).unwrap_or_default();
        for call in &calls {
            let result = match cancel.is_cancelled() {
                true => ToolResult::refused(call.id.clone(), NOT_RUN),
                false if !self.manner.tools.iter().any(|tool| *tool == call.name) => {
                    ToolResult::refused(call.id.clone(), NOT_OFFERED)
                }
                false => tools::call(call, cancel),
            };
            self.record_result(result)?;
        }
        Ok(if !calls.is_empty() && cancel.is_cancelled() { Tools::Aborted } else { Tools::Done })
    }

    fn ending(&self, stop: Stop, started: Instant) -> Fact {
        let (subtype, reason, error) = match &stop {
            Stop::Answered => (Subtype::Success, None, None),
            Stop::OutOfRounds => {
                let error = format!("no answer after {ROUNDS} rounds of tools");
                (Subtype::ErrorMaxTurns, Some(Reason::MaxTurns), Some(error))
            }
            Stop::Aborted { reason, .. } => (Subtype::ErrorDuringExecution, Some(*reason), None),
            Stop::Failed { reason, why } => (Subtype::ErrorDuringExecution, Some(*reason), Some(why.clone())),
        };
        let ending = Ending {
            subtype,
            is_error: subtype != Subtype::Success,
            terminal_reason: reason,
            errors: error.into_iter().collect(),
            num_turns: self.turn().steps.len(),
            usage: self.turn().usage(),
            duration_ms: milliseconds(started.elapsed()),
        };
        match stop {
            Stop::Aborted { partial, .. } => Fact::Interrupted { ending, partial },
            Stop::Answered | Stop::OutOfRounds | Stop::Failed { .. } => Fact::Result(ending),
        }
    }

    /// The turn that is running: the last of the conversation.
    fn turn(&self) -> &Turn {
        self.conversation.turns().last().expect("a turn is recorded before it runs")
    }

    pub(crate) fn record(&mut self, turn: &str, fact: Fact) -> Result<(), transcript::Error> {
        let uuid = if let Fact::User { .. } = fact { turn.to_owned() } else { ids::uuid() };
        self.record_as(uuid, turn, fact)
    }

    fn record_as(&mut self, uuid: String, turn: &str, fact: Fact) -> Result<(), transcript::Error> {
        let at = now();
        let entry = Entry { fact, uuid, turn: turn.to_owned(), at };
        self.transcript.append(&entry)?;
        self.conversation.add(entry);
        Ok(())
    }

    fn record_result(&mut self, result: ToolResult) -> Result<(), transcript::Error> {
        let (turn, id) = (self.turn().uuid.clone(), result.tool_use_id.clone());
        self.record(&turn, Fact::ToolResult(result))?;
        let results = self.turn().steps.iter().rev().flat_map(|step| &step.results);
        results
            .filter(|shown| shown.what.tool_use_id == id)
            .take(1)
            .for_each(|shown| self.show_result(shown));
        Ok(())
    }

    fn show_start(&self, turn: &str) {
        let cwd = std::env::current_dir().unwrap_or_default();
        self.out.say(&Line::System(Notice::Init {
            session_id: self.session,
            model: self.provider.model(),
            tools: &self.manner.tools,
            cwd: &cwd.to_string_lossy(),
            turn,
        }));
    }

    fn show_step(&self, step: &Step) {
        let Step { uuid, message, results, steers } = step;
        self.out.say(&Line::Assistant { uuid, session_id: self.session, message });
        results.iter().for_each(|result| self.show_result(result));
        steers.iter().for_each(|steer| self.show_steer(&steer.uuid));
    }

    fn show_result(&self, result: &Shown<ToolResult>) {
        self.out.say(&Line::User {
            uuid: &result.uuid,
            session_id: self.session,
            message: (&result.what).into(),
            tool_use_result: result.what.tool_use_result.as_ref(),
        });
    }
}

impl Agent<'_> {
    /// The prompt of a turn that has ended came again: it gets the same answer, and nothing runs.
    fn show_again(&self, uuid: &str) {
        let answer = self.conversation.turn(uuid).and_then(Turn::answer);
        answer.into_iter().for_each(|step| self.show_step(step));
        self.show_end(uuid);
    }

    fn show_end(&self, uuid: &str) {
        let turn = self.conversation.turn(uuid);
        let Some((turn, ended)) = turn.and_then(|turn| Some((turn, turn.ended.as_ref()?))) else { return };
        let text = match ended.ending.subtype {
            Subtype::Success => turn.answer().map(|step| step.message.text()).unwrap_or_default(),
            Subtype::ErrorDuringExecution | Subtype::ErrorMaxTurns if ended.ending.errors.is_empty() => {
                ended.partial.clone()
            }
            Subtype::ErrorDuringExecution | Subtype::ErrorMaxTurns => ended.ending.errors.join("\n"),
        };
        self.show_result_line(uuid, ended, &text);
    }

    /// A full disk must not look like an agent that hangs. Sent again when there is room, the turn goes on.
    fn show_unrecorded(&self, uuid: &str, error: &transcript::Error, started: Instant) {
        let turn = self.conversation.turn(uuid);
        let ending = Ending {
            subtype: Subtype::ErrorDuringExecution,
            is_error: true,
            terminal_reason: Some(Reason::TranscriptError),
            errors: vec![error.to_string()],
            num_turns: turn.map_or(0, |turn| turn.steps.len()),
            usage: turn.map(Turn::usage).unwrap_or_default(),
            duration_ms: milliseconds(started.elapsed()),
        };
        let ended = Ended { uuid: ids::uuid(), ending, partial: String::new() };
        self.show_result_line(uuid, &ended, &error.to_string());
    }

    fn show_result_line(&self, turn: &str, ended: &Ended, result: &str) {
        let Ended { uuid, ending, partial: _ } = ended;
        let session_id = self.session;
        self.out.say(&Line::Result { uuid, session_id, user_message_uuid: turn, ending, result });
    }
}

#[derive(PartialEq)]
enum Tools {
    Done,
    Aborted,
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(milliseconds).unwrap_or_default()
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
