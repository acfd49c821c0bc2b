//! Where prompts wait. The first one starts a thread that works until none is left; an interrupt stops the
//! turn that is running and no other.

use crate::cancel::CancelToken;
use crate::compaction::WakeCallback;
use crate::conversation::PromptContent;
use crate::flags::AgentFlags;
use crate::out::StdoutWriter;
use crate::protocol::{AgentOutputLine, ControlRequest, ControlResponse, InitializeResponse, SystemNotice};
use crate::steering::SteeringQueue;
use crate::transcript::{self, ResumeReport, TranscriptLocation};
use crate::turn::{PendingPrompt, TurnRunner};
use crate::{ids, provider};
use serde_json::Value;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Nothing here recurses deeply, and there are thousands of us.
const STACK: usize = 256 << 10;
/// So long a conversation that is long to read is held for the next prompt. After that we are at rest.
const CONVERSATION_CACHE_TIME: Duration = Duration::from_secs(30);

pub(crate) struct TurnWorker {
    state: Arc<TurnWorkerState>,
    resumed: Option<ResumeReport>,
    worker: Option<JoinHandle<()>>,
}

/// What both threads see.
struct TurnWorkerState {
    flags: AgentFlags,
    place: TranscriptLocation,
    out: StdoutWriter,
    /// What the session has to say to the agent beforehand.
    system_prompt: Mutex<Option<String>>,
    queue: Mutex<PromptQueue>,
    /// For a worker that waits for a summary: a prompt came, or the summary did.
    bell: Condvar,
    steering: SteeringQueue,
}

#[derive(Default)]
struct PromptQueue {
    /// Some as long as a worker lives: whoever sets it starts one, whoever clears it was the last.
    running: Option<CancelToken>,
    waiting: VecDeque<PendingPrompt>,
    /// Nobody will ask anything any more.
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
        let system_prompt = Mutex::new(flags.system_prompt.clone());
        let room = TurnWorkerState {
            flags,
            place,
            out: StdoutWriter::default(),
            system_prompt,
            queue: Mutex::default(),
            bell: Condvar::new(),
            steering: SteeringQueue::default(),
        };
        Ok(TurnWorker { state: Arc::new(room), resumed, worker: None })
    }

    pub(crate) fn control(&self, request_id: &Value, request: ControlRequest) {
        match request.subtype.as_str() {
            "initialize" => {
                let said = [request.system_prompt, request.append_system_prompt];
                let said: Vec<String> = said.into_iter().flatten().collect();
                if !said.is_empty() {
                    *self.state.system_prompt() = Some(said.join("\n\n"));
                }
                self.state.answer(ControlResponse::Success { request_id, response: Some(self.hello()) });
            }
            "interrupt" => {
                let running = self.state.queue().running.clone();
                // Answered first, so that the answer is never behind the end of the turn that it announces.
                self.state.answer(ControlResponse::Success { request_id, response: None });
                running.inspect(CancelToken::cancel);
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

    /// For the turn that runs, if it is this one.
    pub(crate) fn steer(&self, into: String, prompt: PendingPrompt) {
        self.state.steering.push(into, prompt);
    }

    fn start(&self, prompt: PendingPrompt, cancel: CancelToken) -> JoinHandle<()> {
        let room = self.state.clone();
        let work = move || {
            if catch_unwind(AssertUnwindSafe(|| room.work(prompt, cancel))).is_err() {
                // Better gone and started again, with the transcript as it is, than silent for ever.
                std::process::exit(101);
            }
        };
        let started = Builder::new().name("turn".into()).stack_size(STACK).spawn(work);
        started.unwrap_or_else(|error| self.state.report_and_exit(&format!("cannot start a thread: {error}")))
    }

    pub(crate) fn complain(&self, error: &str) {
        self.state.complain(error);
    }

    /// Everything that was asked for is done before we leave. A summary nobody asked for.
    pub(crate) fn finish(self) {
        self.state.queue().leaving = true;
        self.state.bell.notify_all();
        if let Some(worker) = self.worker {
            worker.join().expect("a worker that panics takes the process with it");
        }
    }
}

impl TurnWorkerState {
    fn queue(&self) -> MutexGuard<'_, PromptQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn system_prompt(&self) -> MutexGuard<'_, Option<String>> {
        self.system_prompt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(self: &Arc<TurnWorkerState>, prompt: PendingPrompt, cancel: CancelToken) {
        let mut next = Some((prompt, cancel));
        while let Some(first) = next {
            next = self.work_from(first);
        }
        crate::return_memory();
    }

    /// One prompt after the other, with what was read for the first. Answers the prompt for which it must be read again.
    fn work_from(
        self: &Arc<TurnWorkerState>,
        first: (PendingPrompt, CancelToken),
    ) -> Option<(PendingPrompt, CancelToken)> {
        let (transcript, conversation) =
            self.place.open().unwrap_or_else(|error| self.report_and_exit(&error.to_string()));
        let system_prompt = self.system_prompt().clone();
        let mut agent = TurnRunner {
            session: &self.flags.session,
            system_prompt: system_prompt.as_deref(),
            system: None,
            settings: &self.flags.settings,
            out: &self.out,
            answers: &self.flags.backend,
            provider: provider::client_for(&self.flags.backend),
            transcript,
            conversation,
            compacting: None,
            squeezed: false,
            ring: self.ring(),
            steering: &self.steering,
        };
        let (mut prompt, mut cancel) = first;
        loop {
            agent.run_turn(prompt, &cancel);
            (prompt, cancel) = self.next(&mut agent)?;
            if !agent.transcript.is_as_left() || *self.system_prompt() != system_prompt {
                return Some((prompt, cancel));
            }
        }
    }

    /// The next prompt. There may be one yet as long as a summary is on its way, and for a while if it would take long to
    /// read everything again.
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
                    // What failed is tried again when the next turn begins.
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
            // Under the lock: nobody is then between a look and a wait.
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

    /// For when no turn can run at all: the host sees why and may start us again.
    fn report_and_exit(&self, error: &str) -> ! {
        self.complain(error);
        std::process::exit(1)
    }
}
