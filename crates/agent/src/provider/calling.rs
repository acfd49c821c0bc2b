//! How a service is asked for an answer, whatever it speaks: on a connection of its own, listening while it speaks,
//! and again if that may help.

use super::failure::{Asked, Failure};
use super::http::{self, Post};
use super::patience::{self, Next};
use super::sse::Events;
use super::wire::Wire;
use super::{Again, Error, Reply, Sink, Word};
use crate::cancel::Cancel;
use crate::conversation::{Block, Usage};
use crate::ids;
use ash_model::{shown_tool_name, tool_name};
use serde_json::{Map, Value};
use std::path::Path;

/// Of a refusal this much is read.
const MOST_REFUSAL: usize = 64 << 10;

/// An answer that is put together from the events in which it comes.
pub(super) trait Message: Default {
    /// The text is what the user should see at once.
    fn take(&mut self, data: &[u8]) -> Result<Option<String>, Failure>;

    /// The service has said that nothing more comes.
    fn is_over(&self) -> bool;

    /// Whether the service may stop speaking here, without another word.
    fn is_whole(&self) -> bool;

    fn reply(self) -> Result<Reply, Failure>;
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Usual,
    OutOfTokens,
    Declined,
}

/// Until there is an answer, or no hope for one.
pub(super) fn patiently(
    asked: &Asked<'_>,
    sink: Sink<'_>,
    cancel: &Cancel,
    mut call: impl FnMut(Sink<'_>) -> Result<Reply, Failure>,
) -> Result<Reply, Error> {
    let mut attempt = 1;
    loop {
        let failure = match call(sink) {
            Ok(reply) => return Ok(reply),
            Err(failure) => failure,
        };
        match patience::next(&failure, attempt, ids::dice()) {
            Next::Cancelled => return Err(Error::Cancelled),
            Next::GiveUp => {
                let why = failure.explain(asked, attempt);
                return Err(if failure.is_for_good() { Error::Refused(why) } else { Error::Failed(why) });
            }
            Next::Again { delay } => {
                let (status, kind) = (failure.status(), failure.kind());
                sink(Word::Again(Again { attempt, most: patience::MOST, delay, status, kind }));
                if cancel.within(delay) {
                    return Err(Error::Cancelled);
                }
                attempt += 1;
            }
        }
    }
}

/// One request and its answer, on a connection of its own: nothing of a broken one is left for the next.
pub(super) fn call<M: Message>(
    socket: &Path,
    post: &Post<'_>,
    sink: Sink<'_>,
    cancel: &Cancel,
) -> Result<Reply, Failure> {
    let mut wire = Wire::connect(socket, cancel)?;
    wire.send(&http::request(post))?;
    let answer = http::answer(wire)?;
    match answer.head.status {
        200 => listen::<M, _>(answer, sink),
        _ => Err(refusal(answer)),
    }
}

fn listen<M: Message, S: http::Source>(
    mut answer: http::Answer<S>,
    sink: Sink<'_>,
) -> Result<Reply, Failure> {
    let mut events = Events::default();
    let mut message = M::default();
    let mut piece = Vec::new();
    while answer.body.read(&mut piece)? {
        for data in events.take(&piece)? {
            if let Some(text) = message.take(&data)? {
                sink(Word::Text(&text));
            }
        }
        if message.is_over() {
            return message.reply();
        }
        piece.clear();
    }
    match message.is_whole() {
        true => message.reply(),
        false => Err(Failure::Broken("the answer ended before it was whole".into())),
    }
}

fn refusal<S: http::Source>(mut answer: http::Answer<S>) -> Failure {
    let mut body = Vec::new();
    while body.len() < MOST_REFUSAL {
        match answer.body.read(&mut body) {
            Ok(true) => {}
            Err(Failure::Cancelled) => return Failure::Cancelled,
            // The status says enough.
            Ok(false) | Err(_) => break,
        }
    }
    body.truncate(MOST_REFUSAL);
    Failure::refused(&answer.head, &body)
}

pub(super) fn reply(id: String, content: Vec<Block>, usage: Usage, end: End) -> Result<Reply, Failure> {
    let content = content.into_iter().map(named).collect::<Result<Vec<Block>, Failure>>()?;
    let says = |block: &Block| match block {
        Block::Text { text } => !text.trim().is_empty(),
        Block::ToolUse(_) => true,
        Block::Thinking { .. } | Block::RedactedThinking { .. } => false,
    };
    match (content.iter().any(says), end) {
        (_, End::Declined) => Err(Failure::Declined),
        (false, End::OutOfTokens) => Err(Failure::OutOfTokens),
        (true, End::OutOfTokens) | (_, End::Usual) => Ok(Reply { id, content, usage }),
    }
}

/// Every service refuses a conversation with a name in it that it would not take itself.
fn named(mut block: Block) -> Result<Block, Failure> {
    match &mut block {
        Block::ToolUse(call) => {
            call.name = tool_name(&call.name).ok_or_else(|| Failure::nonsense("a call of no tool"))?;
        }
        Block::Text { .. } | Block::Thinking { .. } | Block::RedactedThinking { .. } => {}
    }
    Ok(block)
}

/// What a tool is called with. A call that was cut off because the answer reached its longest is kept without its
/// input, which no tool that changes anything accepts: the model is told so, and tries again.
pub(super) fn input(name: &str, text: &str, end: End) -> Result<Value, Failure> {
    let input = match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(input) => input,
        Err(_) if end == End::OutOfTokens || text.trim().is_empty() => Map::new(),
        Err(error) => {
            let name = shown_tool_name(name);
            return Err(Failure::nonsense(&format!("the input of {name}: {error}")));
        }
    };
    Ok(Value::Object(input))
}
