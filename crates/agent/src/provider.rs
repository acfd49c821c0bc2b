//! Who answers: a model, or what stands in for one.

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
    /// The name that clients see.
    fn model(&self) -> &str;

    /// Whether a conversation can be too long for it.
    fn has_window(&self) -> bool {
        true
    }

    /// Answers the last turn, given everything before it. The text goes to the sink while it comes, and whole
    /// into the reply. A cancelled call returns soon, and with `Error::Cancelled`.
    fn answer(
        &self,
        request: &ModelRequest<'_>,
        sink: AnswerSink<'_>,
        cancel: &CancelToken,
    ) -> Result<ModelReply, Error>;
}

pub(crate) type AnswerSink<'a> = &'a mut dyn FnMut(AnswerProgress<'_>);

/// What is told while an answer comes.
pub(crate) enum AnswerProgress<'a> {
    Text(&'a str),
    Retrying(CallRetry),
}

/// A call failed and is made again. What was said in it is void.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallRetry {
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    pub(crate) delay: Duration,
    /// None if there was no answer at all.
    pub(crate) status: Option<u16>,
    /// In the words of Claude Code.
    pub(crate) kind: &'static str,
}

pub(crate) struct ModelRequest<'a> {
    pub(crate) system: Option<&'a str>,
    pub(crate) manner: &'a AgentSettings,
    /// At least one. Calls of earlier turns may be without a result, if the turn was cut and never taken up.
    pub(crate) turns: &'a [TranscriptTurn],
    /// The longest answer that there is room for, in tokens.
    pub(crate) room: u64,
}

/// Without calls, the answer is final.
#[derive(Debug, PartialEq)]
pub(crate) struct ModelReply {
    pub(crate) id: String,
    pub(crate) content: Vec<AssistantBlock>,
    pub(crate) usage: ApiUsage,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Error {
    Cancelled,
    /// Why, for a person.
    Failed(String),
    /// This request is not taken, today or tomorrow. What was asked in it must not be in the way of what is asked next.
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
