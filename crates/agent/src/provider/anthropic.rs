//! Anthropic's models, over the Messages API. There is no network in here and no key: requests go in plain HTTP to
//! a socket, and whoever listens there adds the key and passes them on.

mod request;
mod stream;

use super::failure::{Asked, Failure, Key, Refusal};
use super::http::Post;
use super::{Error, Provider, Reply, Request, Sink, calling};
use crate::cancel::Cancel;
use request::Thoughts;
use std::path::PathBuf;
use stream::Message;

/// Where a session names none.
pub(crate) const DEFAULT_MODEL: &str = "claude-sonnet-5-5";
/// The longest answer that is asked for, thoughts and calls and all.
const MOST_TOKENS: u32 = 32_000;

pub(super) struct Anthropic {
    pub(super) model: String,
    pub(super) socket: PathBuf,
}

impl Provider for Anthropic {
    fn model(&self) -> &str {
        &self.model
    }

    fn answer(&self, request: &Request<'_>, sink: Sink<'_>, cancel: &Cancel) -> Result<Reply, Error> {
        let asked = Asked { model: &self.model, key: Key::Servers };
        let mut thoughts = Thoughts::OfTheTurn;
        calling::patiently(&asked, sink, cancel, |sink| {
            let answer = self.call(request, thoughts, sink, cancel);
            match answer {
                Err(failure) if thoughts == Thoughts::OfTheTurn && is_about_thoughts(&failure) => {
                    thoughts = Thoughts::LeftOut;
                    self.call(request, thoughts, sink, cancel)
                }
                answer => answer,
            }
        })
    }
}

impl Anthropic {
    fn call(
        &self,
        request: &Request<'_>,
        thoughts: Thoughts,
        sink: Sink<'_>,
        cancel: &Cancel,
    ) -> Result<Reply, Failure> {
        let body = request::body(&self.model, request, thoughts);
        let headers = &[("anthropic-version", "2023-06-01")];
        calling::call::<Message>(
            &self.socket,
            &Post { target: "/v1/messages", headers, body: &body },
            sink,
            cancel,
        )
    }
}

/// Thoughts are signed over all that was before them. After a change of that, as of a CLAUDE.md between a death
/// and the next start, they are refused, and the conversation goes on without them.
fn is_about_thoughts(failure: &Failure) -> bool {
    match failure {
        Failure::Refused(Refusal { status: Some(400), message, .. }) => {
            ["`thinking`", "`redacted_thinking`"].iter().any(|word| message.contains(word))
        }
        Failure::Refused(_)
        | Failure::Cancelled
        | Failure::Broken(_)
        | Failure::Declined
        | Failure::OutOfTokens => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_that_are_refused_are_told_from_everything_else() {
        let refused = |status, message: &str| {
            let (status, message) = (Some(status), message.to_owned());
            is_about_thoughts(&Failure::Refused(Refusal { status, message, ..Refusal::default() }))
        };
        let bound = "messages.5.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation.";
        assert!(refused(400, bound));
        assert!(!refused(400, "messages: no"));
        assert!(!refused(500, bound));
    }
}
