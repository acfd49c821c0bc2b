//! What lives outside the server: a shim with an agent, its inputs and its output.

use super::{Luck, World};
use ash_driver::{AgentInput, UsageReport};
use ash_model::{
    Fact, Incarnation, ModelPrices, ModelStopReason, PermissionId, PermissionRequest,
    PermissionTimeoutPolicy, PermissionVerdict, Timestamp, TokenUsage, ToolOutput, ToolRequest,
    ToolRequestId, ToolTimeoutPolicy, TurnId, TurnOutcome,
};
use ash_session::machine::{StateCommand, UsageContext};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How long a request waits.
pub(super) const WAIT: Duration = Duration::from_secs(1);

/// A shim with its agent.
#[derive(Debug)]
pub(super) struct Shim {
    pub(super) incarnation: Incarnation,
    /// A dead one has left its journal.
    pub(super) alive: bool,
    pub(super) last_in: u64,
    /// How often the options had been changed that the agent was started with.
    pub(super) changes: u64,
    pub(super) prompts: BTreeSet<TurnId>,
    pub(super) working: Option<TurnId>,
    pub(super) asked_to_stop: bool,
    /// The agent's open requests.
    pub(super) waiting: BTreeSet<String>,
    /// Its open calls of the client's tools: the agent's own id by the name of the request.
    pub(super) calls: BTreeMap<String, String>,
    /// Messages that it was told in the middle of its turn and has not acknowledged.
    pub(super) steers: Vec<TurnId>,
    pub(super) answered: BTreeSet<String>,
    /// What the agent said and no server has read.
    pub(super) unheard: Vec<Said>,
}

#[derive(Debug)]
pub(super) enum Said {
    Steered(TurnId),
    Rested(TurnId, TurnOutcome),
    Asked(String),
    Withdrawn(String),
    /// A call of a client's tool: the name of the request, and the agent's own id.
    Called(String, String),
    Used(UsageReport),
    /// The answer to a setting.
    Agreed(u64),
}

/// What the agent stores of its calls. It outlives the sandbox.
#[derive(Debug, Default)]
pub(super) struct AgentMemory {
    /// The turn and the agent's own id of each call.
    calls: Vec<(TurnId, String)>,
    outputs: BTreeSet<String>,
}

impl AgentMemory {
    fn open_calls(&self, turn: TurnId) -> Vec<String> {
        let open = self.calls.iter().filter(|(of, id)| *of == turn && !self.outputs.contains(id));
        open.map(|(_, id)| id.clone()).collect()
    }
}

impl Shim {
    pub(super) fn new(incarnation: Incarnation) -> Shim {
        Shim {
            incarnation,
            alive: true,
            last_in: 1,
            changes: 0,
            prompts: BTreeSet::new(),
            working: None,
            asked_to_stop: false,
            waiting: BTreeSet::new(),
            calls: BTreeMap::new(),
            steers: Vec::new(),
            answered: BTreeSet::new(),
            unheard: Vec::new(),
        }
    }

    /// `memory`: what the agent stores beside its files.
    fn take(&mut self, input: u64, say: AgentInput, memory: &mut AgentMemory) {
        assert!(input > self.last_in, "input {input} came after {}", self.last_in);
        self.last_in = input;
        match say {
            AgentInput::Hello { .. } => panic!("greeted twice"),
            AgentInput::Prompt { turn, .. } => {
                assert!(self.prompts.insert(turn), "a prompt reached the agent twice");
                assert_eq!(self.working, None, "two prompts at once");
                self.working = Some(turn);
                self.asked_to_stop = false;
                self.steers.clear();
                // It makes the calls again whose output it has not stored.
                for id in memory.open_calls(turn) {
                    let request = format!("{id} again {}", self.incarnation.0);
                    self.calls.insert(request.clone(), id.clone());
                    self.unheard.push(Said::Called(request, id));
                }
            }
            AgentInput::ToolOutput { request, .. } => {
                // One that it has withdrawn is too late.
                if let Some(id) = self.calls.remove(&request) {
                    assert!(memory.outputs.insert(id), "an output reached the agent twice");
                }
            }
            AgentInput::ToolServerReply { .. } => panic!("this agent does not ask"),
            AgentInput::Interrupt { turn } if self.working == Some(turn) => {
                self.asked_to_stop = true;
                let waiting = std::mem::take(&mut self.waiting);
                let calls = std::mem::take(&mut self.calls);
                self.unheard.extend(calls.into_keys().map(Said::Withdrawn));
                self.unheard.extend(waiting.into_iter().map(Said::Withdrawn));
            }
            // An interrupt that is too late is for a turn that is over.
            AgentInput::Interrupt { .. } => {}
            AgentInput::SetLiveSetting { input, .. } => self.unheard.push(Said::Agreed(input)),
            AgentInput::Steer { turn, into, .. } => {
                // A steering message that is too late is not for this turn, and is sent again.
                if self.working == Some(into) {
                    self.steers.push(turn);
                }
            }
            AgentInput::Answer { request, .. } => {
                assert!(self.answered.insert(request.clone()), "an answer reached the agent twice");
                self.waiting.remove(&request);
            }
        }
    }
}

impl World {
    pub(super) fn tell(&mut self, input: u64, say: AgentInput) {
        if std::mem::take(&mut self.crash_before_telling) {
            self.machine = None;
            self.callers.clear();
            return;
        }
        let heard = self.is_connected();
        if let Some(shim) = self.shim.as_mut().filter(|_| heard) {
            shim.take(input, say, &mut self.memory);
        }
    }

    pub(super) fn rest(&mut self) {
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.alive) else { return };
        if !shim.waiting.is_empty() || !shim.calls.is_empty() {
            return;
        }
        let Some(turn) = shim.working.take() else { return };
        let how = if std::mem::take(&mut shim.asked_to_stop) {
            TurnOutcome::Interrupted
        } else {
            TurnOutcome::Done
        };
        shim.unheard.push(Said::Rested(turn, how));
        self.hear();
    }

    /// The agent works by itself as soon as the session gives that work a turn.
    pub(super) fn start_itself(&mut self) {
        let idle = self.shim.as_ref().is_some_and(|shim| shim.alive && shim.working.is_none());
        if idle && self.is_connected() {
            self.machine_mut().runtime.agent.self_started = true;
        }
    }

    pub(super) fn begin_self_started_turn(&mut self) {
        let turn = TurnId(self.next_fresh());
        self.note(vec![Fact::SelfStarted { turn }]);
        self.machine_mut().runtime.agent.self_started = false;
        let shim = self.shim.as_mut().expect("its agent");
        assert_eq!(shim.working.replace(turn), None, "two turns at once");
        shim.asked_to_stop = false;
    }

    pub(super) fn take_up(&mut self) {
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.alive && shim.working.is_some()) else {
            return;
        };
        let steers = std::mem::take(&mut shim.steers);
        shim.unheard.extend(steers.into_iter().map(Said::Steered));
        self.hear();
    }

    pub(super) fn ask_leave(&mut self) {
        let request = self.next_fresh().to_string();
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.alive && !shim.asked_to_stop) else { return };
        shim.waiting.insert(request.clone());
        shim.unheard.push(Said::Asked(request));
        self.hear();
    }

    /// The agent calls a tool of the client.
    pub(super) fn call_tool(&mut self) {
        let (request, id) = (self.next_fresh().to_string(), self.next_fresh().to_string());
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.alive && !shim.asked_to_stop) else { return };
        let Some(turn) = shim.working else { return };
        shim.calls.insert(request.clone(), id.clone());
        self.memory.calls.push((turn, id.clone()));
        shim.unheard.push(Said::Called(request, id));
        self.hear();
    }

    /// A client answers the first call that is open.
    pub(super) fn answer_tool(&mut self) {
        if self.machine.is_none() {
            return;
        }
        let open = self.state().open_tool_calls().next().map(|call| call.asked.id);
        let id = open.unwrap_or_else(|| ToolRequestId(self.next_fresh()));
        self.ask(StateCommand::AnswerTool { id, output: ToolOutput::Error("no".into()) });
    }

    fn called(&mut self, request: String, id: String) -> Fact {
        let state = self.state();
        let turn = state.under_way();
        let policy = match self.fresh.is_multiple_of(3) {
            true => ToolTimeoutPolicy::Interrupt,
            false => ToolTimeoutPolicy::Fail,
        };
        let call = ToolRequest {
            id: ToolRequestId(self.next_fresh()),
            turn,
            request,
            tool: "lookup".into(),
            input: serde_json::json!({}),
            tool_use_id: Some(id),
            expires_at: Some(Timestamp(self.now.wall.0 + 1000)),
            on_timeout: policy,
        };
        let state = self.state();
        state.tool_call(call, state.awake.as_ref().map_or(0, |awake| awake.next_input))
    }

    pub(super) fn withdraw(&mut self) {
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.alive) else { return };
        let Some(request) = shim.waiting.pop_first() else { return };
        shim.unheard.push(Said::Withdrawn(request));
        self.hear();
    }

    pub(super) fn answer_request(&mut self, luck: Luck) {
        if self.machine.is_none() {
            return;
        }
        let pending = self.state().pending.first().map(|pending| pending.asked.clone());
        let answers = pending.iter().filter(|asked| asked.question);
        let answers = answers.map(|_| ("Which?".to_owned(), "A".to_owned())).collect();
        let verdict = match luck {
            Luck::Good => {
                PermissionVerdict::Allow { updated_input: None, answers, updated_permissions: Vec::new() }
            }
            Luck::Bad => PermissionVerdict::deny("no"),
        };
        let id = pending.map_or_else(|| PermissionId(self.next_fresh()), |asked| asked.id);
        self.ask(StateCommand::Answer { id, verdict });
    }

    /// Uses ten tokens, reported in two lines.
    pub(super) fn use_some(&mut self, end: ModelStopReason) {
        let id = self.next_fresh().to_string();
        let Some(shim) = self.shim.as_mut().filter(|shim| shim.alive && shim.working.is_some()) else {
            return;
        };
        let usage = TokenUsage { input_tokens: 10, ..TokenUsage::default() };
        let model = "m".to_owned();
        let begun = UsageReport::Answer { id, model, helper: false, usage, end: None };
        let over = UsageReport::More { usage, end: Some(end) };
        shim.unheard.extend([begun, over].map(Said::Used));
        self.hear();
    }

    fn used(&self, report: UsageReport) -> Vec<Fact> {
        let turn = self.state().current();
        let (turn, attempt) = (turn.map(|turn| turn.id), turn.map_or(0, |turn| turn.attempt));
        let when = UsageContext { turn, attempt, prices: &ModelPrices::default() };
        self.state().meter.account(report, when).into_iter().map(Fact::Used).collect()
    }

    fn asked(&mut self, request: String) -> Fact {
        let id = PermissionId(self.next_fresh());
        let state = self.state();
        let turn = state.under_way();
        let ways = [
            PermissionTimeoutPolicy::Deny,
            PermissionTimeoutPolicy::Allow,
            PermissionTimeoutPolicy::Interrupt,
        ];
        Fact::PermissionRequested(PermissionRequest {
            id,
            turn,
            request,
            tool: "Bash".into(),
            input: serde_json::json!({}),
            tool_use_id: None,
            suggestions: Vec::new(),
            question: self.fresh.is_multiple_of(2),
            expires_at: Timestamp(self.now.wall.0 + 1000),
            on_timeout: ways[usize::try_from(self.fresh % 3).expect("small")],
        })
    }

    pub(super) fn is_connected(&self) -> bool {
        self.machine.as_ref().is_some_and(|machine| machine.runtime.is_connected())
    }

    pub(super) fn hear(&mut self) {
        if !self.is_connected() {
            return;
        }
        let unheard = self.shim.as_mut().map(|shim| std::mem::take(&mut shim.unheard)).unwrap_or_default();
        self.digest(unheard);
    }

    pub(super) fn digest(&mut self, unheard: Vec<Said>) {
        let last = self.state().awake.as_ref().map_or(0, |awake| awake.next_input - 1);
        self.note_all(unheard);
        // The outputs of calls that the agent repeats.
        for (input, say) in self.state().undelivered_inputs(last) {
            self.tell(input, say);
            if self.machine.is_none() {
                return;
            }
        }
    }

    fn note_all(&mut self, unheard: Vec<Said>) {
        for said in unheard {
            let current = self.state().current().map(|turn| turn.id);
            let facts = match said {
                Said::Agreed(input) => {
                    self.machine_mut().setting_answered(input, false);
                    Vec::new()
                }
                Said::Rested(turn, how) => {
                    let ends = self.state().is_running(turn) && current == Some(turn);
                    if ends {
                        self.machine_mut().runtime.agent.interrupt_deadline = None;
                    }
                    ends.then(|| rested(turn, how)).into_iter().collect()
                }
                Said::Steered(turn) => self.state().steering_acknowledged(turn).into_iter().collect(),
                Said::Asked(request) => vec![self.asked(request)],
                Said::Withdrawn(request) => self.state().withdrawn(&request).into_iter().collect(),
                Said::Called(request, id) => vec![self.called(request, id)],
                Said::Used(report) => self.used(report),
            };
            self.note(facts);
        }
    }
}

/// What the agent answers in this turn.
pub(super) fn answer_of(turn: TurnId) -> String {
    format!("answer to {turn}")
}

fn rested(turn: TurnId, how: TurnOutcome) -> Fact {
    Fact::Rested { turn, outcome: how, text: answer_of(turn), usage: TokenUsage::default(), problem: None }
}
