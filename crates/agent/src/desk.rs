//! Where prompts wait. The first one starts a thread that works until none is left; an interrupt stops the
//! turn that is running and no other.

use crate::cancel::Cancel;
use crate::compaction::Ring;
use crate::conversation::Content;
use crate::flags::Flags;
use crate::out::Out;
use crate::steering::Steering;
use crate::transcript::{self, Place, Resumed};
use crate::turn::{Agent, Prompt};
use crate::wire::{Answer, Control, Hello, Line, Notice};
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
const LINGER: Duration = Duration::from_secs(30);

pub(crate) struct Desk {
    room: Arc<Room>,
    resumed: Option<Resumed>,
    worker: Option<JoinHandle<()>>,
}

/// What both threads see.
struct Room {
    flags: Flags,
    place: Place,
    out: Out,
    /// What the session has to say to the agent beforehand.
    system_prompt: Mutex<Option<String>>,
    queue: Mutex<Queue>,
    /// For a worker that waits for a summary: a prompt came, or the summary did.
    bell: Condvar,
    steering: Steering,
}

#[derive(Default)]
struct Queue {
    /// Some as long as a worker lives: whoever sets it starts one, whoever clears it was the last.
    running: Option<Cancel>,
    waiting: VecDeque<Prompt>,
    /// Nobody will ask anything any more.
    leaving: bool,
}

impl Desk {
    pub(crate) fn open(flags: Flags, folder: PathBuf) -> Result<Desk, transcript::Error> {
        let place = Place::new(folder, &flags.session);
        let resumed = place.prepare(flags.resume.as_deref())?;
        if resumed.is_some() {
            crate::return_memory();
        }
        let system_prompt = Mutex::new(flags.system_prompt.clone());
        let room = Room {
            flags,
            place,
            out: Out::default(),
            system_prompt,
            queue: Mutex::default(),
            bell: Condvar::new(),
            steering: Steering::default(),
        };
        Ok(Desk { room: Arc::new(room), resumed, worker: None })
    }

    pub(crate) fn control(&self, request_id: &Value, request: Control) {
        match request.subtype.as_str() {
            "initialize" => {
                let said = [request.system_prompt, request.append_system_prompt];
                let said: Vec<String> = said.into_iter().flatten().collect();
                if !said.is_empty() {
                    *self.room.system_prompt() = Some(said.join("\n\n"));
                }
                self.room.answer(Answer::Success { request_id, response: Some(self.hello()) });
            }
            "interrupt" => {
                let running = self.room.queue().running.clone();
                // Answered first, so that the answer is never behind the end of the turn that it announces.
                self.room.answer(Answer::Success { request_id, response: None });
                running.inspect(Cancel::cancel);
            }
            subtype => self
                .room
                .answer(Answer::Error { request_id, error: &format!("unsupported request {subtype:?}") }),
        }
    }

    fn hello(&self) -> Hello<'_> {
        Hello { agent: "builtin", version: env!("CARGO_PKG_VERSION"), resumed: self.resumed.as_ref() }
    }

    pub(crate) fn prompt(&mut self, uuid: Option<String>, content: Content, head: Option<String>) {
        let prompt = Prompt { uuid: uuid.unwrap_or_else(ids::uuid), content, head };
        let mut queue = self.room.queue();
        if queue.running.is_some() {
            queue.waiting.push_back(prompt);
            self.room.bell.notify_all();
            return;
        }
        let cancel = self.room.new_cancel();
        queue.running = Some(cancel.clone());
        drop(queue);
        self.worker = Some(self.start(prompt, cancel));
    }

    /// For the turn that runs, if it is this one.
    pub(crate) fn steer(&self, into: String, prompt: Prompt) {
        self.room.steering.say(into, prompt);
    }

    fn start(&self, prompt: Prompt, cancel: Cancel) -> JoinHandle<()> {
        let room = self.room.clone();
        let work = move || {
            if catch_unwind(AssertUnwindSafe(|| room.work(prompt, cancel))).is_err() {
                // Better gone and started again, with the transcript as it is, than silent for ever.
                std::process::exit(101);
            }
        };
        let started = Builder::new().name("turn".into()).stack_size(STACK).spawn(work);
        started.unwrap_or_else(|error| self.room.die(&format!("cannot start a thread: {error}")))
    }

    pub(crate) fn complain(&self, error: &str) {
        self.room.complain(error);
    }

    /// Everything that was asked for is done before we leave. A summary nobody asked for.
    pub(crate) fn finish(self) {
        self.room.queue().leaving = true;
        self.room.bell.notify_all();
        if let Some(worker) = self.worker {
            worker.join().expect("a worker that panics takes the process with it");
        }
    }
}

impl Room {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn system_prompt(&self) -> MutexGuard<'_, Option<String>> {
        self.system_prompt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(self: &Arc<Room>, prompt: Prompt, cancel: Cancel) {
        let mut next = Some((prompt, cancel));
        while let Some(first) = next {
            next = self.work_from(first);
        }
        crate::return_memory();
    }

    /// One prompt after the other, with what was read for the first. Answers the prompt for which it must be read again.
    fn work_from(self: &Arc<Room>, first: (Prompt, Cancel)) -> Option<(Prompt, Cancel)> {
        let (transcript, conversation) =
            self.place.open().unwrap_or_else(|error| self.die(&error.to_string()));
        let system_prompt = self.system_prompt().clone();
        let mut agent = Agent {
            session: &self.flags.session,
            system_prompt: system_prompt.as_deref(),
            system: None,
            manner: &self.flags.manner,
            out: &self.out,
            answers: &self.flags.answers,
            provider: provider::named(&self.flags.answers),
            transcript,
            conversation,
            compacting: None,
            squeezed: false,
            ring: self.ring(),
            steering: &self.steering,
        };
        let (mut prompt, mut cancel) = first;
        loop {
            agent.take(prompt, &cancel);
            (prompt, cancel) = self.next(&mut agent)?;
            if !agent.transcript.is_as_left() || *self.system_prompt() != system_prompt {
                return Some((prompt, cancel));
            }
        }
    }

    /// The next prompt. There may be one yet as long as a summary is on its way, and for a while if it would take long to
    /// read everything again.
    fn next(&self, agent: &mut Agent<'_>) -> Option<(Prompt, Cancel)> {
        let mut queue = self.queue();
        let until = agent.transcript.is_long().then(|| Instant::now() + LINGER);
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
                    agent.settle().err().iter().for_each(|error| self.complain(&error.to_string()));
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

    fn ring(self: &Arc<Room>) -> Ring {
        let room = self.clone();
        Arc::new(move || {
            // Under the lock: nobody is then between a look and a wait.
            let _queue = room.queue();
            room.bell.notify_all();
        })
    }

    fn new_cancel(&self) -> Cancel {
        Cancel::new().unwrap_or_else(|error| self.die(&format!("cannot prepare a turn: {error}")))
    }

    fn answer(&self, response: Answer<'_>) {
        self.out.say(&Line::ControlResponse { response });
    }

    fn complain(&self, error: &str) {
        self.out.say(&Line::System(Notice::Error { session_id: &self.flags.session, error }));
    }

    /// For when no turn can run at all: the host sees why and may start us again.
    fn die(&self, error: &str) -> ! {
        self.complain(error);
        std::process::exit(1)
    }
}
