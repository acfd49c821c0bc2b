//! Calls of the client's tools: what an answer means, and what happens when no client answers. A call lives as long as its
//! turn. It outlives the server, the sandbox and the client: an agent that is started again repeats it, and gets the
//! answer that a client gave in the meantime.

use super::{CommandRefusal, LogState};
use ash_driver::AgentInput;
use ash_model::{
    EventSeq, Fact, Timestamp, ToolAnswer, ToolOutput, ToolRepeat, ToolRequest, ToolRequestId,
    ToolTimeoutPolicy, TurnId, VerdictSource,
};
use std::sync::Arc;

/// How many delivered outputs a state holds, and their bytes.
const MAX_DELIVERED_CALLS: usize = 32;
const MAX_DELIVERED_BYTES: usize = 4 << 20;

const TOO_LATE: &str = "The client did not answer this call in time. Go on without it if you can.";
const TURN_OVER: &str = "The turn was stopped, so this call has no result. Do not continue it.";

/// A call of the turn under way. It may be large, and states are copied often, so it is shared.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientToolCall {
    pub seq: EventSeq,
    pub asked: Arc<ToolRequest>,
    /// The name under which the running agent waits for the output; `None`: the agent that asked is gone.
    pub request: Option<String>,
    /// What a client answered.
    pub output: Option<Arc<ToolOutput>>,
    /// An agent got the output. Whether it remembers it after a crash, only the agent knows.
    delivered: bool,
}

impl ClientToolCall {
    pub fn is_open(&self) -> bool {
        self.output.is_none()
    }

    /// Whether the agent repeats this call after a crash. Claude Code shows the model that a call was cut off, and the
    /// model makes it again under another id.
    fn is_repeated_by(&self, asked: &ToolRequest) -> bool {
        let same = self.asked.turn == asked.turn && self.asked.tool == asked.tool;
        let same_id = asked.tool_use_id.is_some() && self.asked.tool_use_id == asked.tool_use_id;
        same && self.request.is_none() && (same_id || (!self.delivered && self.asked.input == asked.input))
    }
}

impl LogState {
    /// What a call of the agent means: a new call, or one that it repeats. `input`: the number of the next input.
    pub fn tool_call(&self, asked: ToolRequest, input: u64) -> Fact {
        match self.tool_calls.iter().find(|call| call.is_repeated_by(&asked)) {
            Some(call) => Fact::ToolRepeated(ToolRepeat {
                id: call.asked.id,
                turn: call.asked.turn,
                request: asked.request,
                input: (!call.is_open()).then_some(input),
            }),
            None => Fact::ToolRequested(asked),
        }
    }

    pub fn open_tool_calls(&self) -> impl Iterator<Item = &ClientToolCall> {
        self.tool_calls.iter().filter(|call| call.is_open())
    }

    pub(super) fn answer_tool(
        &self,
        id: ToolRequestId,
        output: &ToolOutput,
    ) -> Result<Vec<Fact>, CommandRefusal> {
        let call = self.open_tool_calls().find(|call| call.asked.id == id);
        let call = call.ok_or(CommandRefusal::NoSuchToolCall)?;
        let input = self.awake.as_ref().map_or(0, |awake| awake.next_input);
        Ok(vec![answered(call, Some(output.clone()), VerdictSource::Client, input)])
    }

    /// The answers to calls whose time or whose turn is over. `input`: the number of the next input.
    pub(super) fn overdue_tool_calls(&self, now: Timestamp, mut input: u64, mut stopping: bool) -> Vec<Fact> {
        let mut facts = Vec::new();
        for call in self.open_tool_calls() {
            if call.asked.turn.is_some_and(|turn| self.under_way() != Some(turn)) {
                facts.push(answered(call, None, VerdictSource::Cancelled, 0));
                continue;
            }
            if call.asked.expires_at.is_none_or(|at| at > now) {
                continue;
            }
            let running = call.asked.turn.filter(|turn| self.is_running(*turn));
            match (call.asked.on_timeout, running) {
                // The agent withdraws the call when it stops.
                (_, Some(_)) if stopping => {}
                (ToolTimeoutPolicy::Interrupt, Some(turn)) => {
                    facts.push(Fact::Interrupting { turn, input });
                    (input, stopping) = (input + 1, true);
                }
                (ToolTimeoutPolicy::Interrupt | ToolTimeoutPolicy::Fail, _) => {
                    let output = ToolOutput::Error(TOO_LATE.to_owned());
                    facts.push(answered(call, Some(output), VerdictSource::Policy, input));
                    input += u64::from(call.request.is_some());
                }
            }
        }
        facts
    }

    /// When the first call expires.
    pub(super) fn next_overdue_tool_call(&self) -> Option<Timestamp> {
        let stopping = self.was_asked_to_stop();
        let open = self.open_tool_calls().filter(|call| !(stopping && call.asked.turn.is_some()));
        open.filter_map(|call| call.asked.expires_at).min()
    }

    /// The turn ends, and its open calls with it.
    pub(super) fn withdraw_tool_calls_of(&self, turn: TurnId) -> Vec<Fact> {
        let of_turn = self.open_tool_calls().filter(|call| call.asked.turn == Some(turn));
        of_turn.map(|call| answered(call, None, VerdictSource::Cancelled, 0)).collect()
    }

    /// The sandbox is gone: a call outside of turns is not repeated.
    pub(super) fn withdraw_tool_calls_outside_turns(&self) -> impl Iterator<Item = Fact> {
        let outside = self.open_tool_calls().filter(|call| call.asked.turn.is_none());
        outside.map(|call| answered(call, None, VerdictSource::Cancelled, 0))
    }

    /// What an agent gets that waits in a cut turn when that turn ends.
    pub(super) fn fail_tool_calls_of_cut_turn(&self, turn: TurnId, mut input: u64) -> Vec<Fact> {
        let waits = |call: &&ClientToolCall| call.asked.turn == Some(turn) && call.request.is_some();
        let fail = |call: &ClientToolCall| {
            let output = ToolOutput::Error(TURN_OVER.to_owned());
            let fact = answered(call, Some(output), VerdictSource::Cancelled, input);
            input += 1;
            fact
        };
        self.open_tool_calls().filter(waits).map(fail).collect()
    }

    /// The agent itself does not wait any more.
    pub(super) fn withdrawn_tool_call(&self, request: &str) -> Option<Fact> {
        let is_it = |name: &String| {
            let rest = name.strip_prefix(request);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let call = self.open_tool_calls().find(|call| call.request.as_ref().is_some_and(is_it));
        call.map(|call| answered(call, None, VerdictSource::Cancelled, 0))
    }

    pub(super) fn note_tool_requested(&mut self, seq: EventSeq, asked: &ToolRequest) {
        self.tool_calls.push(ClientToolCall {
            seq,
            request: Some(asked.request.clone()),
            asked: Arc::new(asked.clone()),
            output: None,
            delivered: false,
        });
    }

    pub(super) fn note_tool_answered(&mut self, answer: &ToolAnswer) {
        let Some(place) = self.tool_calls.iter().position(|call| call.asked.id == answer.id) else { return };
        let Some(output) = &answer.output else {
            self.tool_calls.remove(place);
            return;
        };
        self.tool_calls[place].output = Some(Arc::new(output.clone()));
        if let Some(input) = answer.input {
            self.note_delivery(place, input);
        }
    }

    pub(super) fn note_tool_repeated(&mut self, repeat: &ToolRepeat) {
        let Some(place) = self.tool_calls.iter().position(|call| call.asked.id == repeat.id) else { return };
        self.tool_calls[place].request = Some(repeat.request.clone());
        if let Some(input) = repeat.input {
            self.note_delivery(place, input);
        }
    }

    fn note_delivery(&mut self, place: usize, input: u64) {
        let call = &mut self.tool_calls[place];
        call.delivered = true;
        if let (Some(request), Some(output)) = (&call.request, &call.output) {
            let say = AgentInput::ToolOutput { request: request.clone(), output: (**output).clone() };
            self.remember_input(input, say);
        }
        self.forget_oldest_delivered();
    }

    /// An agent repeats only its last calls: it has stored the outputs of the others.
    fn forget_oldest_delivered(&mut self) {
        let (mut calls, mut bytes) = (0, 0);
        let mut kept = Vec::with_capacity(self.tool_calls.len());
        for call in std::mem::take(&mut self.tool_calls).into_iter().rev() {
            let size = call.output.as_ref().map_or(0, |output| output.size());
            let counts = call.delivered;
            if !counts || (calls < MAX_DELIVERED_CALLS && bytes + size <= MAX_DELIVERED_BYTES) || calls == 0 {
                (calls, bytes) = (calls + usize::from(counts), bytes + if counts { size } else { 0 });
                kept.push(call);
            }
        }
        kept.reverse();
        self.tool_calls = kept;
    }

    /// The agent is gone. The calls of its turn wait for the next one.
    pub(super) fn detach_tool_calls(&mut self) {
        self.tool_calls.retain(|call| call.asked.turn.is_some());
        self.tool_calls.iter_mut().for_each(|call| call.request = None);
    }

    pub(super) fn forget_tool_calls_of(&mut self, turn: TurnId) {
        self.tool_calls.retain(|call| call.asked.turn != Some(turn));
    }
}

/// `input`: the number of the next input, which an agent that waits gets.
fn answered(call: &ClientToolCall, output: Option<ToolOutput>, by: VerdictSource, input: u64) -> Fact {
    let input = (output.is_some() && call.request.is_some()).then_some(input);
    Fact::ToolAnswered(ToolAnswer { id: call.asked.id, turn: call.asked.turn, output, by, input })
}
