//! The prompt queue. The first prompt starts a thread that works until the queue is empty. An interrupt stops only the
//! running turn.

use crate::cancel::CancelToken;
use crate::client_calls::{ClientCallResult, ClientCalls};
use crate::compaction::WakeCallback;
use crate::conversation::PromptContent;
use crate::flags::{AgentFlags, AgentSettings};
use crate::out::StdoutWriter;
use crate::protocol::{
    AgentOutputLine, ControlRequest, ControlResponse, HostResponse, InitializeResponse, SystemNotice,
};
use crate::steering::SteeringQueue;
use crate::transcript::{self, ResumeReport, TranscriptLocation};
use crate::turn::{PendingPrompt, TurnRunner};
use crate::{ids, provider};
use ash_model::ClientTool;
use serde_json::Value;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Small, because thousands of agents run and nothing here recurses deeply.
const STACK: usize = 256 << 10;
/// How long a conversation that is slow to read stays in memory for the next prompt.
const CONVERSATION_CACHE_TIME: Duration = Duration::from_secs(30);

pub(crate) struct TurnWorker {
    state: Arc<TurnWorkerState>,
    resumed: Option<ResumeReport>,
    worker: Option<JoinHandle<()>>,
}

/// The state that both threads share.
struct TurnWorkerState {
    flags: AgentFlags,
    place: TranscriptLocation,
    out: StdoutWriter,
    declarations: Mutex<SessionDeclarations>,
    queue: Mutex<PromptQueue>,
    /// Wakes a worker that waits for a summary: a prompt or the summary has arrived.
    bell: Condvar,
    steering: SteeringQueue,
    client_calls: ClientCalls,
}

/// What the host says about the session at the start.
#[derive(Clone, PartialEq)]
struct SessionDeclarations {
    system_prompt: Option<String>,
    client_tools: Vec<ClientTool>,
}

#[derive(Default)]
struct PromptQueue {
    /// `Some` while a worker lives. The thread that sets it starts a worker; the worker clears it as its last act.
    running: Option<CancelToken>,
    waiting: VecDeque<PendingPrompt>,
    /// The input has ended; no more prompts come.
    leaving: bool,
}

impl TurnWorker {
    pub(crate) fn open(
        flags: AgentFlags,
        folder: PathBuf,
    ) -> Result<TurnWorker, transcript::TranscriptError> {
        let place = TranscriptLocation::new(folder, &flags.session);
        let resumed = place.prepare(flags.resume.as_deref())?;
        if resumed.is_some() {
            crate::return_memory();
        }
        let (system_prompt, client_tools) = (flags.system_prompt.clone(), Vec::new());
        let room = TurnWorkerState {
            flags,
            place,
            out: StdoutWriter::default(),
            declarations: Mutex::new(SessionDeclarations { system_prompt, client_tools }),
            queue: Mutex::default(),
            bell: Condvar::new(),
            steering: SteeringQueue::default(),
            client_calls: ClientCalls::default(),
        };
        Ok(TurnWorker { state: Arc::new(room), resumed, worker: None })
    }

    pub(crate) fn control(&self, request_id: &Value, request: ControlRequest) {
        match request.subtype.as_str() {
            "initialize" => {
                let said = [request.system_prompt, request.append_system_prompt];
                let said: Vec<String> = said.into_iter().flatten().collect();
                if !said.is_empty() {
                    self.state.declarations().system_prompt = Some(said.join("\n\n"));
                }
                if let Some(tools) = request.tools {
                    self.state.declarations().client_tools = tools;
                }
                self.state.answer(ControlResponse::Success { request_id, response: Some(self.hello()) });
            }
            "interrupt" => {
                let running = self.state.queue().running.clone();
                // Sent first, so that the response is never behind the end of the turn that it announces.
                self.state.answer(ControlResponse::Success { request_id, response: None });
                if let Some(running) = running {
                    running.cancel();
                    self.state.client_calls.cancelled();
                }
            }
            subtype => self.state.answer(ControlResponse::Error {
                request_id,
                error: &format!("unsupported request {subtype:?}"),
            }),
        }
    }

    fn hello(&self) -> InitializeResponse<'_> {
        InitializeResponse {
            agent: "builtin",
            version: env!("CARGO_PKG_VERSION"),
            resumed: self.resumed.as_ref(),
        }
    }

    pub(crate) fn prompt(&mut self, uuid: Option<String>, content: PromptContent, head: Option<String>) {
        let prompt = PendingPrompt { uuid: uuid.unwrap_or_else(ids::uuid), content, head };
        let mut queue = self.state.queue();
        if queue.running.is_some() {
            queue.waiting.push_back(prompt);
            self.state.bell.notify_all();
            return;
        }
        let cancel = self.state.new_cancel();
        queue.running = Some(cancel.clone());
        drop(queue);
        self.worker = Some(self.start(prompt, cancel));
    }

    /// Delivers a message to the turn `into` if that turn is running.
    pub(crate) fn steer(&self, into: String, prompt: PendingPrompt) {
        self.state.steering.push(into, prompt);
    }

    /// Delivers the result of a call to the turn that waits for it.
    pub(crate) fn respond(&self, response: HostResponse) {
        match response {
            HostResponse::Success { request_id, response } => {
                self.state.client_calls.respond(&request_id, response);
            }
            HostResponse::Error { request_id, error: content } => {
                self.state.client_calls.respond(&request_id, ClientCallResult { content, is_error: true });
            }
        }
    }

    fn start(&self, prompt: PendingPrompt, cancel: CancelToken) -> JoinHandle<()> {
        let room = self.state.clone();
        let work = move || {
            if catch_unwind(AssertUnwindSafe(|| room.work(prompt, cancel))).is_err() {
                // After a restart the host has the transcript as it is; a silent agent would hang for ever.
                std::process::exit(101);
            }
        };
        let started = Builder::new().name("turn".into()).stack_size(STACK).spawn(work);
        started.unwrap_or_else(|error| self.state.report_and_exit(&format!("cannot start a thread: {error}")))
    }

    pub(crate) fn complain(&self, error: &str) {
        self.state.complain(error);
    }

    /// Finishes all queued prompts before the exit, but not a summary that nothing waits for. A call of a client tool
    /// cannot be answered any more, so a turn that waits for it ends the process as a crash does.
    pub(crate) fn finish(self) {
        self.state.queue().leaving = true;
        self.state.bell.notify_all();
        self.state.client_calls.end_input();
        if let Some(worker) = self.worker {
            worker.join().expect("a worker that panics takes the process with it");
        }
    }
}

impl TurnWorkerState {
    fn queue(&self) -> MutexGuard<'_, PromptQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn declarations(&self) -> MutexGuard<'_, SessionDeclarations> {
        self.declarations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(self: &Arc<TurnWorkerState>, prompt: PendingPrompt, cancel: CancelToken) {
        let mut next = Some((prompt, cancel));
        while let Some(first) = next {
            next = self.work_from(first);
        }
        crate::return_memory();
    }

    /// Runs one prompt after another on the same conversation. Returns the prompt that requires reading it again.
    fn work_from(
        self: &Arc<TurnWorkerState>,
        first: (PendingPrompt, CancelToken),
    ) -> Option<(PendingPrompt, CancelToken)> {
        let (transcript, conversation) =
            self.place.open().unwrap_or_else(|error| self.report_and_exit(&error.to_string()));
        let declarations = self.declarations().clone();
        let client_tools = declarations.client_tools.clone();
        let settings = AgentSettings { client_tools, ..self.flags.settings.clone() };
        let mut agent = TurnRunner {
            session: &self.flags.session,
            system_prompt: declarations.system_prompt.as_deref(),
            system: None,
            settings: &settings,
            out: &self.out,
            answers: &self.flags.backend,
            provider: provider::client_for(&self.flags.backend),
            transcript,
            conversation,
            compacting: None,
            squeezed: false,
            ring: self.ring(),
            steering: &self.steering,
            client_calls: &self.client_calls,
        };
        let (mut prompt, mut cancel) = first;
        loop {
            agent.run_turn(prompt, &cancel);
            (prompt, cancel) = self.next(&mut agent)?;
            if !agent.transcript.is_as_left() || *self.declarations() != declarations {
                return Some((prompt, cancel));
            }
        }
    }

    /// The next prompt. Waits while a summary is pending, and for a short time if the conversation is slow to read again.
    fn next(&self, agent: &mut TurnRunner<'_>) -> Option<(PendingPrompt, CancelToken)> {
        let mut queue = self.queue();
        let until = agent.transcript.is_long().then(|| Instant::now() + CONVERSATION_CACHE_TIME);
        loop {
            if let Some(prompt) = queue.waiting.pop_front() {
                let cancel = self.new_cancel();
                queue.running = Some(cancel.clone());
                return Some((prompt, cancel));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.filter(|left| !left.is_zero() && !queue.leaving);
            match agent.compacting.as_ref().filter(|_| !queue.leaving) {
                Some(compacting) if compacting.is_done() => {
                    drop(queue);
                    // The next turn retries what failed.
                    agent.apply_compaction().err().iter().for_each(|error| self.complain(&error.to_string()));
                    queue = self.queue();
                }
                Some(_) => queue = self.bell.wait(queue).unwrap_or_else(PoisonError::into_inner),
                None => match left {
                    Some(left) => {
                        let waited = self.bell.wait_timeout(queue, left);
                        queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                    }
                    None => {
                        queue.running = None;
                        return None;
                    }
                },
            }
        }
    }

    fn ring(self: &Arc<TurnWorkerState>) -> WakeCallback {
        let room = self.clone();
        Arc::new(move || {
            // Holds the lock, so that the worker cannot miss the notification between its check and its wait.
            let _queue = room.queue();
            room.bell.notify_all();
        })
    }

    fn new_cancel(&self) -> CancelToken {
        CancelToken::new()
            .unwrap_or_else(|error| self.report_and_exit(&format!("cannot prepare a turn: {error}")))
    }

    fn answer(&self, response: ControlResponse<'_>) {
        self.out.write_line(&AgentOutputLine::ControlResponse { response });
    }

    fn complain(&self, error: &str) {
        self.out.write_line(&AgentOutputLine::System(SystemNotice::Error {
            session_id: &self.flags.session,
            error,
        }));
    }

    /// Called when no turn can run at all. The host sees the reason and can restart the agent.
    fn report_and_exit(&self, error: &str) -> ! {
        self.complain(error);
        std::process::exit(1)
    }
}
