//! One turn: call the model, run its tool calls, and repeat until it gives a final answer.
//!
//! The agent records every step in the transcript before it shows it. The uuid of a turn is therefore an idempotency key:
//! after a crash the host sends the turn again, and it continues without repeating finished steps.

use crate::cancel::CancelToken;
use crate::client_calls::{self, ClientCallEnd, ClientCallResult, ClientCalls, OpenClientCalls};
use crate::compaction::{PendingCompaction, PreparedRequest, WakeCallback};
use crate::conversation::{
    AssistantBlock, AssistantMessage, AssistantRole, ConversationHistory, PromptContent, ResultSubtype,
    TerminalReason, ToolResult, ToolUse, TranscriptEntry, TranscriptFact, TranscriptItem, TranscriptTurn,
    TurnEndRecord, TurnResult, TurnStep, UserMessage, UserRole,
};
use crate::flags::{AgentSettings, ModelBackend};
use crate::out::StdoutWriter;
use crate::protocol::{AgentOutputLine, AgentRequest, StreamEvent, StreamTextDelta, SystemNotice};
use crate::provider::{self, AnswerProgress, ModelClient, ModelReply, ModelRequest};
use crate::steering::SteeringQueue;
use crate::transcript::{self, TranscriptFile};
use crate::{ids, instructions, tools};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Long work takes a hundred steps; a model that calls tools in a loop must stop at some point.
const MAX_STEPS: usize = 200;
const NOT_OFFERED: &str = "[Tool call not run: this session has no such tool]";
const NOT_RUN: &str = "[Tool call not run: the turn was interrupted]";
const NOT_ANSWERED: &str = "[Tool call cancelled: the turn was interrupted before the call was answered]";

pub(crate) struct PendingPrompt {
    pub(crate) uuid: String,
    pub(crate) content: PromptContent,
    /// A note from the host before the prompt.
    pub(crate) head: Option<String>,
}

pub(crate) struct TurnRunner<'a> {
    pub(crate) session: &'a str,
    /// The session's own system prompt.
    pub(crate) system_prompt: Option<&'a str>,
    /// The complete system prompt. It stays the same during a turn, because the signatures of thinking blocks cover it.
    pub(crate) system: Option<String>,
    pub(crate) settings: &'a AgentSettings,
    pub(crate) out: &'a StdoutWriter,
    pub(crate) answers: &'a ModelBackend,
    pub(crate) provider: Box<dyn ModelClient>,
    pub(crate) transcript: TranscriptFile,
    pub(crate) conversation: ConversationHistory,
    pub(crate) compacting: Option<PendingCompaction>,
    /// The last request left out pieces that a later request may show again.
    pub(crate) squeezed: bool,
    pub(crate) ring: WakeCallback,
    pub(crate) steering: &'a SteeringQueue,
    pub(crate) client_calls: &'a ClientCalls,
}

/// Why a turn ended.
pub(crate) enum TurnStop {
    Answered,
    OutOfRounds,
    Aborted { reason: TerminalReason, partial: String },
    Failed { reason: TerminalReason, why: String },
}

impl TurnRunner<'_> {
    pub(crate) fn run_turn(&mut self, prompt: PendingPrompt, cancel: &CancelToken) {
        let uuid = prompt.uuid.clone();
        if self.conversation.turn(&uuid).is_some_and(|turn| turn.ended.is_some()) {
            return self.show_again(&uuid);
        }
        self.system = instructions::system_prompt(self.system_prompt, &self.settings.skills);
        let started = Instant::now();
        let ended = self.attempt(prompt, cancel).and_then(|stop| {
            let fact = self.ending(stop, started);
            self.record(&uuid, fact)
        });
        match ended {
            Ok(()) => self.show_end(&uuid),
            Err(error) => self.show_unrecorded(&uuid, &error, started),
        }
        self.begin_compaction_early();
    }

    fn attempt(
        &mut self,
        prompt: PendingPrompt,
        cancel: &CancelToken,
    ) -> Result<TurnStop, transcript::TranscriptError> {
        let uuid = prompt.uuid;
        if self.conversation.turn(&uuid).is_none_or(|turn| turn.prompt.is_none()) {
            let message = UserMessage { role: UserRole::User, content: prompt.content };
            self.record(&uuid, TranscriptFact::User { message, head: prompt.head })?;
        }
        self.conversation.move_to_end(&uuid);
        self.show_start(&uuid);
        self.turn().steps.iter().for_each(|step| self.show_step(step));
        for call in self.calls_without_outcome() {
            self.record_result(ToolResult::refused(call, ToolResult::UNKNOWN))?;
        }
        // The rest are calls of client tools, which the agent repeats.
        if !self.turn().open_calls().is_empty()
            && let Some(stop) = self.finish_step(ClientCallAttempt::Repeated, cancel)?
        {
            return Ok(stop);
        }
        self.run_steps(cancel)
    }

    /// The open calls that must not be repeated, because they may have taken effect. The host knows each call of a client
    /// tool by its id, so the client executes it once however often the agent requests it.
    fn calls_without_outcome(&self) -> Vec<String> {
        let last: Vec<&ToolUse> =
            self.turn().steps.last().map(|step| step.open_calls().collect()).unwrap_or_default();
        let is_repeated =
            |id: &String| last.iter().any(|call| call.id == *id && self.settings.is_client_tool(&call.name));
        self.turn().open_calls().into_iter().filter(|id| !is_repeated(id)).collect()
    }

    fn run_steps(&mut self, cancel: &CancelToken) -> Result<TurnStop, transcript::TranscriptError> {
        while self.turn().answer().is_none() {
            if self.turn().steps.len() >= MAX_STEPS {
                return Ok(TurnStop::OutOfRounds);
            }
            let asked = self.prepare(cancel)?;
            let reply = match asked.and_then(|asked| self.ask(&asked, cancel)) {
                Ok(reply) => reply,
                Err(stop) => return Ok(stop),
            };
            self.record(
                &self.turn().uuid.clone(),
                TranscriptFact::Assistant { message: self.message(reply) },
            )?;
            if std::mem::take(&mut self.squeezed) {
                self.conversation.measured = None;
            }
            self.turn().steps.last().into_iter().for_each(|step| self.show_step(step));
            if let Some(stop) = self.finish_step(ClientCallAttempt::First, cancel)? {
                return Ok(stop);
            }
        }
        Ok(TurnStop::Answered)
    }

    fn finish_step(
        &mut self,
        attempt: ClientCallAttempt,
        cancel: &CancelToken,
    ) -> Result<Option<TurnStop>, transcript::TranscriptError> {
        if self.run_tools(attempt, cancel)? == ToolRunStatus::Aborted {
            let (reason, partial) = (TerminalReason::AbortedTools, String::new());
            return Ok(Some(TurnStop::Aborted { reason, partial }));
        }
        self.record_steering()?;
        Ok(None)
    }

    /// The model sees these messages with its next request. After its final answer there is no next request.
    fn record_steering(&mut self) -> Result<(), transcript::TranscriptError> {
        if self.turn().answer().is_some() {
            return Ok(());
        }
        let turn = self.turn().uuid.clone();
        for PendingPrompt { uuid, content, .. } in self.steering.take(&turn) {
            let message = UserMessage { role: UserRole::User, content };
            self.record_as(uuid.clone(), &turn, TranscriptFact::Steer { message })?;
            self.show_steer(&uuid);
        }
        Ok(())
    }

    fn show_steer(&self, uuid: &str) {
        let (session_id, turn) = (self.session, self.turn().uuid.as_str());
        self.out.write_line(&AgentOutputLine::System(SystemNotice::Steered { session_id, uuid, turn }));
    }

    fn ask(&mut self, asked: &PreparedRequest, cancel: &CancelToken) -> Result<ModelReply, TurnStop> {
        let mut partial = String::new();
        let (out, session_id, streaming) = (self.out, self.session, self.settings.streaming);
        let mut sink = |word: AnswerProgress<'_>| match word {
            AnswerProgress::Text(text) => {
                partial.push_str(text);
                if streaming {
                    let event = StreamEvent::ContentBlockDelta {
                        index: 0,
                        delta: StreamTextDelta::TextDelta { text },
                    };
                    out.write_line(&AgentOutputLine::StreamEvent { session_id, event });
                }
            }
            AnswerProgress::Retrying(again) => {
                partial.clear();
                let (uuid, retry) = (ids::uuid(), (&again).into());
                out.write_line(&AgentOutputLine::System(SystemNotice::ApiRetry {
                    session_id,
                    uuid: &uuid,
                    retry,
                }));
            }
        };
        let turns = asked.turns.as_deref().unwrap_or(self.conversation.turns());
        let (system, manner) = (self.system.as_deref(), self.settings);
        let request = ModelRequest { system, manner, turns, room: asked.room };
        match self.provider.answer(&request, &mut sink, cancel) {
            Ok(reply) => Ok(reply),
            Err(provider::Error::Failed(why)) => {
                Err(TurnStop::Failed { reason: TerminalReason::ApiError, why })
            }
            Err(provider::Error::Refused(why)) => {
                Err(TurnStop::Failed { reason: TerminalReason::InvalidRequest, why })
            }
            Err(provider::Error::Cancelled) => {
                Err(TurnStop::Aborted { reason: TerminalReason::AbortedStreaming, partial })
            }
        }
    }

    fn message(&self, reply: ModelReply) -> AssistantMessage {
        let mut content = reply.content;
        if content.is_empty() {
            content.push(AssistantBlock::Text { text: String::new() });
        }
        self.conversation.make_call_ids_unique(&mut content);
        let model = self.provider.model().to_owned();
        AssistantMessage { id: reply.id, role: AssistantRole::Assistant, model, content, usage: reply.usage }
    }

    /// Runs the open calls of the last step: requests those of client tools, runs our own in order meanwhile, and waits for
    /// the client last. After an interrupt it refuses the rest, so that each call has a result: models do not accept a
    /// conversation with open calls.
    fn run_tools(
        &mut self,
        attempt: ClientCallAttempt,
        cancel: &CancelToken,
    ) -> Result<ToolRunStatus, transcript::TranscriptError> {
        let calls: Vec<ToolUse> =
            self.turn().steps.last().map(|step| step.open_calls().cloned().collect()).unwrap_or_default();
        let (of_client, own): (Vec<&ToolUse>, Vec<&ToolUse>) =
            calls.iter().partition(|call| self.settings.is_client_tool(&call.name));
        let client_calls = self.client_calls;
        // The client may be executing a repeated call already, so an interrupt must cancel it.
        let is_requested = attempt == ClientCallAttempt::Repeated || !cancel.is_cancelled();
        let requested = is_requested.then(|| {
            let open = client_calls.open(of_client.iter().map(|call| call.id.as_str()));
            of_client.iter().for_each(|call| self.request_client_call(call));
            open
        });
        for call in own {
            let result = match cancel.is_cancelled() {
                true => ToolResult::refused(call.id.clone(), NOT_RUN),
                false if !self.settings.tools.iter().any(|tool| *tool == call.name) => {
                    ToolResult::refused(call.id.clone(), NOT_OFFERED)
                }
                false => tools::call(call, cancel),
            };
            self.record_result(result)?;
        }
        for call in of_client {
            let result = match &requested {
                Some(requested) => self.client_result(call, requested, cancel),
                None => ToolResult::refused(call.id.clone(), NOT_RUN),
            };
            self.record_result(result)?;
        }
        Ok(if !calls.is_empty() && cancel.is_cancelled() {
            ToolRunStatus::Aborted
        } else {
            ToolRunStatus::Done
        })
    }

    fn request_client_call(&self, call: &ToolUse) {
        let request =
            AgentRequest::ClientTool { tool_name: &call.name, input: &call.input, tool_use_id: &call.id };
        let request_id = &client_calls::request_id(&call.id);
        self.out.write_line(&AgentOutputLine::ControlRequest { request_id, request });
    }

    fn client_result(
        &self,
        call: &ToolUse,
        requested: &OpenClientCalls<'_>,
        cancel: &CancelToken,
    ) -> ToolResult {
        let tool_use_id = call.id.clone();
        match requested.wait(&tool_use_id, cancel) {
            ClientCallEnd::Answered(ClientCallResult { content, is_error }) => {
                ToolResult { tool_use_id, content, is_error, tool_use_result: None }
            }
            ClientCallEnd::Cancelled => {
                let request_id = &client_calls::request_id(&tool_use_id);
                self.out.write_line(&AgentOutputLine::ControlCancelRequest { request_id });
                ToolResult::refused(tool_use_id, NOT_ANSWERED)
            }
            // The transcript has the open call, so the agent requests it again when the host resumes the turn.
            ClientCallEnd::InputEnded => std::process::exit(1),
        }
    }

    fn ending(&self, stop: TurnStop, started: Instant) -> TranscriptFact {
        let (subtype, reason, error) = match &stop {
            TurnStop::Answered => (ResultSubtype::Success, None, None),
            TurnStop::OutOfRounds => {
                let error = format!("no answer after {MAX_STEPS} rounds of tools");
                (ResultSubtype::ErrorMaxTurns, Some(TerminalReason::MaxTurns), Some(error))
            }
            TurnStop::Aborted { reason, .. } => (ResultSubtype::ErrorDuringExecution, Some(*reason), None),
            TurnStop::Failed { reason, why } => {
                (ResultSubtype::ErrorDuringExecution, Some(*reason), Some(why.clone()))
            }
        };
        let ending = TurnResult {
            subtype,
            is_error: subtype != ResultSubtype::Success,
            terminal_reason: reason,
            errors: error.into_iter().collect(),
            num_turns: self.turn().steps.len(),
            usage: self.turn().usage(),
            duration_ms: milliseconds(started.elapsed()),
        };
        match stop {
            TurnStop::Aborted { partial, .. } => TranscriptFact::Interrupted { ending, partial },
            TurnStop::Answered | TurnStop::OutOfRounds | TurnStop::Failed { .. } => {
                TranscriptFact::Result(ending)
            }
        }
    }

    /// The running turn, which is the last of the conversation.
    fn turn(&self) -> &TranscriptTurn {
        self.conversation.turns().last().expect("a turn is recorded before it runs")
    }

    pub(crate) fn record(
        &mut self,
        turn: &str,
        fact: TranscriptFact,
    ) -> Result<(), transcript::TranscriptError> {
        let uuid = if let TranscriptFact::User { .. } = fact { turn.to_owned() } else { ids::uuid() };
        self.record_as(uuid, turn, fact)
    }

    fn record_as(
        &mut self,
        uuid: String,
        turn: &str,
        fact: TranscriptFact,
    ) -> Result<(), transcript::TranscriptError> {
        let at = now();
        let entry = TranscriptEntry { fact, uuid, turn: turn.to_owned(), at };
        self.transcript.append(&entry)?;
        self.conversation.add(entry);
        Ok(())
    }

    fn record_result(&mut self, result: ToolResult) -> Result<(), transcript::TranscriptError> {
        let (turn, id) = (self.turn().uuid.clone(), result.tool_use_id.clone());
        self.record(&turn, TranscriptFact::ToolResult(result))?;
        let results = self.turn().steps.iter().rev().flat_map(|step| &step.results);
        results
            .filter(|shown| shown.content.tool_use_id == id)
            .take(1)
            .for_each(|shown| self.show_result(shown));
        Ok(())
    }

    fn show_start(&self, turn: &str) {
        let cwd = std::env::current_dir().unwrap_or_default();
        self.out.write_line(&AgentOutputLine::System(SystemNotice::Init {
            session_id: self.session,
            model: self.provider.model(),
            tools: &self.settings.tool_names(),
            cwd: &cwd.to_string_lossy(),
            turn,
        }));
    }

    fn show_step(&self, step: &TurnStep) {
        let TurnStep { uuid, message, results, steers } = step;
        self.out.write_line(&AgentOutputLine::Assistant { uuid, session_id: self.session, message });
        results.iter().for_each(|result| self.show_result(result));
        steers.iter().for_each(|steer| self.show_steer(&steer.uuid));
    }

    fn show_result(&self, result: &TranscriptItem<ToolResult>) {
        self.out.write_line(&AgentOutputLine::User {
            uuid: &result.uuid,
            session_id: self.session,
            message: (&result.content).into(),
            tool_use_result: result.content.tool_use_result.as_ref(),
        });
    }
}

impl TurnRunner<'_> {
    /// The host sent a finished turn again: repeats the same output and runs nothing.
    fn show_again(&self, uuid: &str) {
        let answer = self.conversation.turn(uuid).and_then(TranscriptTurn::answer);
        answer.into_iter().for_each(|step| self.show_step(step));
        self.show_end(uuid);
    }

    fn show_end(&self, uuid: &str) {
        let turn = self.conversation.turn(uuid);
        let Some((turn, ended)) = turn.and_then(|turn| Some((turn, turn.ended.as_ref()?))) else { return };
        let text = match ended.ending.subtype {
            ResultSubtype::Success => turn.answer().map(|step| step.message.text()).unwrap_or_default(),
            ResultSubtype::ErrorDuringExecution | ResultSubtype::ErrorMaxTurns
                if ended.ending.errors.is_empty() =>
            {
                ended.partial.clone()
            }
            ResultSubtype::ErrorDuringExecution | ResultSubtype::ErrorMaxTurns => {
                ended.ending.errors.join("\n")
            }
        };
        self.show_result_line(uuid, ended, &text);
    }

    /// Reports a full disk, which would otherwise look like a hung agent. The host can send the turn again when there is
    /// space.
    fn show_unrecorded(&self, uuid: &str, error: &transcript::TranscriptError, started: Instant) {
        let turn = self.conversation.turn(uuid);
        let ending = TurnResult {
            subtype: ResultSubtype::ErrorDuringExecution,
            is_error: true,
            terminal_reason: Some(TerminalReason::TranscriptError),
            errors: vec![error.to_string()],
            num_turns: turn.map_or(0, |turn| turn.steps.len()),
            usage: turn.map(TranscriptTurn::usage).unwrap_or_default(),
            duration_ms: milliseconds(started.elapsed()),
        };
        let ended = TurnEndRecord { uuid: ids::uuid(), ending, partial: String::new() };
        self.show_result_line(uuid, &ended, &error.to_string());
    }

    fn show_result_line(&self, turn: &str, ended: &TurnEndRecord, result: &str) {
        let TurnEndRecord { uuid, ending, partial: _ } = ended;
        let session_id = self.session;
        self.out.write_line(&AgentOutputLine::Result {
            uuid,
            session_id,
            user_message_uuid: turn,
            ending,
            result,
        });
    }
}

/// Whether the calls of client tools may have been requested before, by a process that died.
#[derive(Clone, Copy, PartialEq)]
enum ClientCallAttempt {
    First,
    Repeated,
}

#[derive(PartialEq)]
enum ToolRunStatus {
    Done,
    Aborted,
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(milliseconds).unwrap_or_default()
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
