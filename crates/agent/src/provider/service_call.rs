//! Calls a model service in any dialect: one connection per attempt, streaming, with retries.

use super::failure::{CallTarget, ProviderFailure};
use super::http::{self, HttpPost};
use super::model_socket::ModelSocket;
use super::retry::{self, RetryDecision};
use super::sse::SseDecoder;
use super::{AnswerProgress, AnswerSink, CallRetry, Error, ModelReply};
use crate::cancel::CancelToken;
use crate::conversation::{ApiUsage, AssistantBlock};
use crate::ids;
use ash_model::{shown_tool_name, tool_name};
use serde_json::{Map, Value};
use std::path::Path;

/// We read at most this much of an error response.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// Assembles an answer from the events of its stream.
pub(super) trait AnswerAssembler: Default {
    /// Returns text that the user should see at once.
    fn take(&mut self, data: &[u8]) -> Result<Option<String>, ProviderFailure>;

    /// Whether the service has sent its end marker.
    fn is_over(&self) -> bool;

    /// Whether the answer is complete if the service closes the connection here.
    fn is_whole(&self) -> bool;

    fn reply(self) -> Result<ModelReply, ProviderFailure>;
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    Complete,
    OutOfTokens,
    Declined,
}

/// Repeats the call until it succeeds or a retry is pointless.
pub(super) fn call_with_retries(
    asked: &CallTarget<'_>,
    sink: AnswerSink<'_>,
    cancel: &CancelToken,
    mut call: impl FnMut(AnswerSink<'_>) -> Result<ModelReply, ProviderFailure>,
) -> Result<ModelReply, Error> {
    let mut attempt = 1;
    loop {
        let failure = match call(sink) {
            Ok(reply) => return Ok(reply),
            Err(failure) => failure,
        };
        match retry::decide(&failure, attempt, ids::random_byte()) {
            RetryDecision::Cancelled => return Err(Error::Cancelled),
            RetryDecision::GiveUp => {
                let why = failure.explain(asked, attempt);
                return Err(if failure.is_permanent() { Error::Refused(why) } else { Error::Failed(why) });
            }
            RetryDecision::Again { delay } => {
                let (status, kind) = (failure.status(), failure.kind());
                sink(AnswerProgress::Retrying(CallRetry {
                    attempt,
                    max_attempts: retry::MAX_ATTEMPTS,
                    delay,
                    status,
                    kind,
                }));
                if cancel.within(delay) {
                    return Err(Error::Cancelled);
                }
                attempt += 1;
            }
        }
    }
}

/// One request and its response, on its own connection, so that a broken one leaves no state for the next.
pub(super) fn call<M: AnswerAssembler>(
    socket: &Path,
    post: &HttpPost<'_>,
    sink: AnswerSink<'_>,
    cancel: &CancelToken,
) -> Result<ModelReply, ProviderFailure> {
    let mut wire = ModelSocket::connect(socket, cancel)?;
    wire.send(&http::request(post))?;
    let answer = http::answer(wire)?;
    match answer.head.status {
        200 => listen::<M, _>(answer, sink),
        _ => Err(refusal(answer)),
    }
}

fn listen<M: AnswerAssembler, S: http::ByteSource>(
    mut answer: http::HttpResponse<S>,
    sink: AnswerSink<'_>,
) -> Result<ModelReply, ProviderFailure> {
    let mut events = SseDecoder::default();
    let mut message = M::default();
    let mut piece = Vec::new();
    while answer.body.read(&mut piece)? {
        for data in events.take(&piece)? {
            if let Some(text) = message.take(&data)? {
                sink(AnswerProgress::Text(&text));
            }
        }
        if message.is_over() {
            return message.reply();
        }
        piece.clear();
    }
    match message.is_whole() {
        true => message.reply(),
        false => Err(ProviderFailure::Broken("the answer ended before it was whole".into())),
    }
}

fn refusal<S: http::ByteSource>(mut answer: http::HttpResponse<S>) -> ProviderFailure {
    let mut body = Vec::new();
    while body.len() < MAX_REFUSAL_BYTES {
        match answer.body.read(&mut body) {
            Ok(true) => {}
            Err(ProviderFailure::Cancelled) => return ProviderFailure::Cancelled,
            // The status alone is enough.
            Ok(false) | Err(_) => break,
        }
    }
    body.truncate(MAX_REFUSAL_BYTES);
    ProviderFailure::refused(&answer.head, &body)
}

pub(super) fn reply(
    id: String,
    content: Vec<AssistantBlock>,
    usage: ApiUsage,
    end: StopReason,
) -> Result<ModelReply, ProviderFailure> {
    let content = content.into_iter().map(named).collect::<Result<Vec<AssistantBlock>, ProviderFailure>>()?;
    let says = |block: &AssistantBlock| match block {
        AssistantBlock::Text { text } => !text.trim().is_empty(),
        AssistantBlock::ToolUse(_) => true,
        AssistantBlock::Thinking { .. } | AssistantBlock::RedactedThinking { .. } => false,
    };
    match (content.iter().any(says), end) {
        (_, StopReason::Declined) => Err(ProviderFailure::Declined),
        (false, StopReason::OutOfTokens) => Err(ProviderFailure::OutOfTokens),
        (true, StopReason::OutOfTokens) | (_, StopReason::Complete) => Ok(ModelReply { id, content, usage }),
    }
}

/// Refuses invalid tool names: every later request with such a name would fail.
fn named(mut block: AssistantBlock) -> Result<AssistantBlock, ProviderFailure> {
    match &mut block {
        AssistantBlock::ToolUse(call) => {
            call.name =
                tool_name(&call.name).ok_or_else(|| ProviderFailure::malformed("a call of no tool"))?;
        }
        AssistantBlock::Text { .. }
        | AssistantBlock::Thinking { .. }
        | AssistantBlock::RedactedThinking { .. } => {}
    }
    Ok(block)
}

/// The input of a tool call. If the token limit cut the answer off, the call keeps no input. Tools that change anything
/// refuse that, so the model learns of it and tries again.
pub(super) fn input(name: &str, text: &str, end: StopReason) -> Result<Value, ProviderFailure> {
    let input = match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(input) => input,
        Err(_) if end == StopReason::OutOfTokens || text.trim().is_empty() => Map::new(),
        Err(error) => {
            let name = shown_tool_name(name);
            return Err(ProviderFailure::malformed(&format!("the input of {name}: {error}")));
        }
    };
    Ok(Value::Object(input))
}
