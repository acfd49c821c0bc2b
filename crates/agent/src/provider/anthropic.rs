//! Anthropic's models over the Messages API. The sandbox has no network and no key: requests go in plain HTTP to a
//! socket, and the server behind it adds the key and forwards them.

mod request;
mod stream;

use super::failure::{CallTarget, ProviderFailure, ProviderKeyOwner, ProviderRefusal};
use super::http::HttpPost;
use super::{AnswerSink, Error, ModelClient, ModelReply, ModelRequest, service_call};
use crate::cancel::CancelToken;
use request::ThinkingScope;
use std::path::PathBuf;
use stream::AnthropicAssembler;

/// The model of sessions that name none.
pub(crate) const DEFAULT_MODEL: &str = "claude-sonnet-5-5";
/// The longest answer that we request, including thinking and tool calls.
const MAX_ANSWER_TOKENS: u32 = 32_000;

pub(super) struct AnthropicClient {
    pub(super) model: String,
    pub(super) socket: PathBuf,
}

impl ModelClient for AnthropicClient {
    fn model(&self) -> &str {
        &self.model
    }

    fn answer(
        &self,
        request: &ModelRequest<'_>,
        sink: AnswerSink<'_>,
        cancel: &CancelToken,
    ) -> Result<ModelReply, Error> {
        let asked = CallTarget { model: &self.model, key: ProviderKeyOwner::Server };
        let mut thoughts = ThinkingScope::OfTheTurn;
        service_call::call_with_retries(&asked, sink, cancel, |sink| {
            let answer = self.call(request, thoughts, sink, cancel);
            match answer {
                Err(failure) if thoughts == ThinkingScope::OfTheTurn && is_about_thoughts(&failure) => {
                    thoughts = ThinkingScope::LeftOut;
                    self.call(request, thoughts, sink, cancel)
                }
                answer => answer,
            }
        })
    }
}

impl AnthropicClient {
    fn call(
        &self,
        request: &ModelRequest<'_>,
        thoughts: ThinkingScope,
        sink: AnswerSink<'_>,
        cancel: &CancelToken,
    ) -> Result<ModelReply, ProviderFailure> {
        let body = request::body(&self.model, request, thoughts);
        let headers = &[("anthropic-version", "2023-06-01")];
        service_call::call::<AnthropicAssembler>(
            &self.socket,
            &HttpPost { target: "/v1/messages", headers, body: &body },
            sink,
            cancel,
        )
    }
}

/// Signatures of thinking blocks cover everything before them. If that changes, for example a CLAUDE.md between a crash
/// and the restart, the service refuses the blocks, and the agent continues without them.
fn is_about_thoughts(failure: &ProviderFailure) -> bool {
    match failure {
        ProviderFailure::Refused(ProviderRefusal { status: Some(400), message, .. }) => {
            ["`thinking`", "`redacted_thinking`"].iter().any(|word| message.contains(word))
        }
        ProviderFailure::Refused(_)
        | ProviderFailure::Cancelled
        | ProviderFailure::Broken(_)
        | ProviderFailure::Declined
        | ProviderFailure::OutOfTokens => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_thoughts_are_distinguished_from_other_errors() {
        let refused = |status, message: &str| {
            let (status, message) = (Some(status), message.to_owned());
            is_about_thoughts(&ProviderFailure::Refused(ProviderRefusal {
                status,
                message,
                ..ProviderRefusal::default()
            }))
        };
        let bound = "messages.5.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation.";
        assert!(refused(400, bound));
        assert!(!refused(400, "messages: no"));
        assert!(!refused(500, bound));
    }
}
