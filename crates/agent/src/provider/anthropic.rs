//! Anthropic's models, over the Messages API. There is no network in here and no key: requests go in plain HTTP to
//! a socket, and whoever listens there adds the key and passes them on.

mod failure;
mod http;
mod patience;
mod request;
mod sse;
mod stream;
mod wire;

use super::{Again, Error, Provider, Reply, Request, Sink, Word};
use crate::cancel::Cancel;
use crate::ids;
use failure::Failure;
use patience::Next;
use request::Thoughts;
use std::path::PathBuf;
use stream::Message;
use wire::Wire;

/// Where a session names none.
pub(crate) const DEFAULT_MODEL: &str = "claude-sonnet-5-5";
/// The longest answer that is asked for, thoughts and calls and all.
const MOST_TOKENS: u32 = 32_000;
/// Of a refusal this much is read.
const MOST_REFUSAL: usize = 64 << 10;

pub(super) struct Anthropic {
    pub(super) model: String,
    pub(super) socket: PathBuf,
}

impl Provider for Anthropic {
    fn model(&self) -> &str {
        &self.model
    }

    fn answer(&self, request: &Request<'_>, sink: Sink<'_>, cancel: &Cancel) -> Result<Reply, Error> {
        let mut thoughts = Thoughts::OfTheTurn;
        let mut attempt = 1;
        loop {
            let body = request::body(&self.model, request, thoughts);
            let failure = match self.call(&body, sink, cancel) {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            if thoughts == Thoughts::OfTheTurn && failure.is_about_thoughts() {
                thoughts = Thoughts::LeftOut;
                continue;
            }
            match patience::next(&failure, attempt, ids::dice()) {
                Next::Cancelled => return Err(Error::Cancelled),
                Next::GiveUp => {
                    let why = failure.explain(&self.model, attempt);
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
}

impl Anthropic {
    /// One request and its answer, on a connection of its own: nothing of a broken one is left for the next.
    fn call(&self, body: &[u8], sink: Sink<'_>, cancel: &Cancel) -> Result<Reply, Failure> {
        let mut wire = Wire::connect(&self.socket, cancel)?;
        wire.send(&http::request("/v1/messages", body))?;
        let answer = http::answer(wire)?;
        match answer.head.status {
            200 => listen(answer, sink),
            _ => Err(refusal(answer)),
        }
    }
}

fn listen<S: http::Source>(mut answer: http::Answer<S>, sink: Sink<'_>) -> Result<Reply, Failure> {
    let mut events = sse::Events::default();
    let mut message = Message::default();
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
    Err(Failure::Broken("the answer ended before it was whole".into()))
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
