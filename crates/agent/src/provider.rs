//! Who answers: a model, or what stands in for one.

mod offline;

use crate::cancel::Cancel;
use crate::conversation::{ToolUse, Turn, Usage};
use crate::flags::ProviderName;

pub(crate) trait Provider {
    /// The name that clients see.
    fn model(&self) -> &str;

    /// Answers the last turn, given everything before it. The text goes to the sink while it comes, and whole
    /// into the reply. A cancelled call returns soon, and with `Error::Cancelled`.
    fn answer(&self, request: &Request<'_>, sink: Sink<'_>, cancel: &Cancel) -> Result<Reply, Error>;
}

pub(crate) type Sink<'a> = &'a mut dyn FnMut(&str);

pub(crate) struct Request<'a> {
    pub(crate) system: Option<&'a str>,
    /// At least one. Calls of earlier turns may be without a result, if the turn was cut and never taken up.
    pub(crate) turns: &'a [Turn],
}

/// Without calls, the answer is final.
pub(crate) struct Reply {
    pub(crate) id: String,
    pub(crate) text: String,
    pub(crate) calls: Vec<ToolUse>,
    pub(crate) usage: Usage,
}

#[derive(Debug)]
pub(crate) enum Error {
    Cancelled,
    /// Why, for a person.
    #[allow(dead_code, reason = "nothing can fail offline; over a network it does")]
    Failed(String),
}

pub(crate) fn named(name: ProviderName) -> Box<dyn Provider> {
    match name {
        ProviderName::Offline => Box::new(offline::Offline),
    }
}
