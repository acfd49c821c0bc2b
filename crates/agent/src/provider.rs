//! Who answers: a model, or what stands in for one.

mod anthropic;
mod calling;
mod failure;
mod http;
mod messages;
mod offline;
mod openai;
mod patience;
mod sse;
mod wire;

use crate::cancel::Cancel;
use crate::conversation::{Block, Turn, Usage};
use crate::flags::{Answers, Manner};
use std::time::Duration;

pub(crate) use anthropic::DEFAULT_MODEL;

pub(crate) trait Provider {
    /// The name that clients see.
    fn model(&self) -> &str;

    /// Whether a conversation can be too long for it.
    fn has_window(&self) -> bool {
        true
    }

    /// Answers the last turn, given everything before it. The text goes to the sink while it comes, and whole
    /// into the reply. A cancelled call returns soon, and with `Error::Cancelled`.
    fn answer(&self, request: &Request<'_>, sink: Sink<'_>, cancel: &Cancel) -> Result<Reply, Error>;
}

pub(crate) type Sink<'a> = &'a mut dyn FnMut(Word<'_>);

/// What is told while an answer comes.
pub(crate) enum Word<'a> {
    Text(&'a str),
    Again(Again),
}

/// A call failed and is made again. What was said in it is void.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Again {
    pub(crate) attempt: u32,
    pub(crate) most: u32,
    pub(crate) delay: Duration,
    /// None if there was no answer at all.
    pub(crate) status: Option<u16>,
    /// In the words of Claude Code.
    pub(crate) kind: &'static str,
}

pub(crate) struct Request<'a> {
    pub(crate) system: Option<&'a str>,
    pub(crate) manner: &'a Manner,
    /// At least one. Calls of earlier turns may be without a result, if the turn was cut and never taken up.
    pub(crate) turns: &'a [Turn],
    /// The longest answer that there is room for, in tokens.
    pub(crate) room: u64,
}

/// Without calls, the answer is final.
#[derive(Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) id: String,
    pub(crate) content: Vec<Block>,
    pub(crate) usage: Usage,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Error {
    Cancelled,
    /// Why, for a person.
    Failed(String),
    /// This request is not taken, today or tomorrow. What was asked in it must not be in the way of what is asked next.
    Refused(String),
}

pub(crate) fn named(answers: &Answers) -> Box<dyn Provider> {
    match answers {
        Answers::Offline => Box::new(offline::Offline),
        Answers::Anthropic { model, socket } => {
            Box::new(anthropic::Anthropic { model: model.clone(), socket: socket.clone() })
        }
        Answers::OpenAi { model, socket, api_version } => {
            Box::new(openai::OpenAi::new(model.clone(), socket.clone(), api_version.as_deref()))
        }
    }
}
