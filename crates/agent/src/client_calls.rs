//! Calls of tools that the session's client executes. The agent writes a request for each call and waits for the host's
//! responses. The ids are those of the model's calls, so after a restart the agent repeats a request under the same id.

use crate::cancel::CancelToken;
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What the client's tool returned.
#[derive(Debug, PartialEq, Deserialize)]
pub(crate) struct ClientCallResult {
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) is_error: bool,
}

/// How the wait for a call ended.
#[derive(Debug, PartialEq)]
pub(crate) enum ClientCallEnd {
    Answered(ClientCallResult),
    Cancelled,
    /// The host closed stdin, so no response can come.
    InputEnded,
}

/// The id of the request for a call.
pub(crate) fn request_id(tool_use_id: &str) -> String {
    format!("call-{tool_use_id}")
}

/// The open calls of the running step. One thread reads the responses, another waits for them.
#[derive(Default)]
pub(crate) struct ClientCalls {
    state: Mutex<ClientCallsState>,
    changed: Condvar,
}

#[derive(Default)]
struct ClientCallsState {
    /// By request id. `None`: not answered yet.
    open: HashMap<String, Option<ClientCallResult>>,
    input_ended: bool,
}

impl ClientCalls {
    /// Accepts responses to these calls from now on. Called before the requests are written, so that no response is lost.
    pub(crate) fn open<'a>(&self, tool_use_ids: impl Iterator<Item = &'a str>) -> OpenClientCalls<'_> {
        self.lock().open = tool_use_ids.map(|id| (request_id(id), None)).collect();
        OpenClientCalls(self)
    }

    /// The first response to an open call counts. All others are ignored.
    pub(crate) fn respond(&self, request_id: &str, result: ClientCallResult) {
        if let Some(answer) = self.lock().open.get_mut(request_id) {
            answer.get_or_insert(result);
        }
        self.changed.notify_all();
    }

    /// Called after the turn's token was cancelled.
    pub(crate) fn cancelled(&self) {
        // Holds the lock, so that the worker cannot miss the notification between its check and its wait.
        let _state = self.lock();
        self.changed.notify_all();
    }

    pub(crate) fn end_input(&self) {
        self.lock().input_ended = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, ClientCallsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Responses count while this exists.
pub(crate) struct OpenClientCalls<'a>(&'a ClientCalls);

impl OpenClientCalls<'_> {
    /// Waits for the response, however long it takes. A response that is already there counts even after an interrupt.
    pub(crate) fn wait(&self, tool_use_id: &str, cancel: &CancelToken) -> ClientCallEnd {
        let id = request_id(tool_use_id);
        let mut state = self.0.lock();
        loop {
            if let Some(result) = state.open.get_mut(&id).and_then(Option::take) {
                return ClientCallEnd::Answered(result);
            }
            if cancel.is_cancelled() {
                return ClientCallEnd::Cancelled;
            }
            if state.input_ended {
                return ClientCallEnd::InputEnded;
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for OpenClientCalls<'_> {
    fn drop(&mut self) {
        self.0.lock().open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(content: &str) -> ClientCallResult {
        ClientCallResult { content: content.into(), is_error: false }
    }

    fn cancelled() -> CancelToken {
        let cancel = CancelToken::new().expect("eventfd");
        cancel.cancel();
        cancel
    }

    #[test]
    fn only_the_first_response_to_an_open_call_counts() {
        let calls = ClientCalls::default();
        calls.respond("call-a", result("early"));
        let open = calls.open(["a", "b"].into_iter());
        for (id, content) in
            [("call-a", "first"), ("call-a", "second"), ("a", "foreign"), ("call-c", "foreign")]
        {
            calls.respond(id, result(content));
        }
        let end = open.wait("a", &cancelled());
        assert_eq!(end, ClientCallEnd::Answered(result("first")), "an answer counts even after an interrupt");
        assert_eq!(open.wait("b", &cancelled()), ClientCallEnd::Cancelled);
        drop(open);
        calls.respond("call-b", result("late"));
        assert_eq!(calls.open(["b"].into_iter()).wait("b", &cancelled()), ClientCallEnd::Cancelled);
    }
}
