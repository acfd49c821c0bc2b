//! Providers answer turns: model services, and the offline stand-in.

mod anthropic;
mod failure;
mod http;
mod messages;
mod model_socket;
mod offline;
mod openai;
mod retry;
mod service_call;
mod sse;

use crate::cancel::CancelToken;
use crate::conversation::{ApiUsage, AssistantBlock, TranscriptTurn};
use crate::flags::{AgentSettings, ModelBackend};
use std::time::Duration;

pub(crate) use anthropic::DEFAULT_MODEL;

pub(crate) trait ModelClient {
    /// The model name that clients see.
    fn model(&self) -> &str;

    /// Whether a conversation can exceed the provider's window.
    fn has_window(&self) -> bool {
        true
    }

    /// Answers the last turn in the context of all turns. Streams text to the sink, and returns all of it in the reply. A
    /// cancelled call returns soon, with `Error::Cancelled`.
    fn answer(
        &self,
        request: &ModelRequest<'_>,
        sink: AnswerSink<'_>,
        cancel: &CancelToken,
    ) -> Result<ModelReply, Error>;
}

pub(crate) type AnswerSink<'a> = &'a mut dyn FnMut(AnswerProgress<'_>);

/// Progress while an answer streams.
pub(crate) enum AnswerProgress<'a> {
    Text(&'a str),
    Retrying(CallRetry),
}

/// A failed call that the provider repeats. Its text so far is void.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallRetry {
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    pub(crate) delay: Duration,
    /// `None` if there was no response at all.
    pub(crate) status: Option<u16>,
    /// The error type in Claude Code's terms.
    pub(crate) kind: &'static str,
}

pub(crate) struct ModelRequest<'a> {
    pub(crate) system: Option<&'a str>,
    pub(crate) manner: &'a AgentSettings,
    /// At least one turn. Calls of earlier turns have no result if the turn was interrupted and never resumed.
    pub(crate) turns: &'a [TranscriptTurn],
    /// The longest answer that fits into the window, in tokens.
    pub(crate) room: u64,
}

/// A reply without calls is final.
#[derive(Debug, PartialEq)]
pub(crate) struct ModelReply {
    pub(crate) id: String,
    pub(crate) content: Vec<AssistantBlock>,
    pub(crate) usage: ApiUsage,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Error {
    Cancelled,
    /// The reason, for a person.
    Failed(String),
    /// The service will never accept this request. Later requests must leave its prompt out.
    Refused(String),
}

pub(crate) fn client_for(answers: &ModelBackend) -> Box<dyn ModelClient> {
    match answers {
        ModelBackend::Offline => Box::new(offline::OfflineClient),
        ModelBackend::Anthropic { model, socket } => {
            Box::new(anthropic::AnthropicClient { model: model.clone(), socket: socket.clone() })
        }
        ModelBackend::OpenAi { model, socket, api_version } => {
            Box::new(openai::OpenAiClient::new(model.clone(), socket.clone(), api_version.as_deref()))
        }
    }
}
