//! Models of every service with chat completions: OpenAI, Azure, and compatible ones. The sandbox has no network and no
//! key: the server behind the socket knows the service and its key.

mod request;
mod stream;

use super::failure::{CallTarget, ProviderKeyOwner};
use super::http::HttpPost;
use super::{AnswerSink, Error, ModelClient, ModelReply, ModelRequest, service_call};
use crate::cancel::CancelToken;
use crate::conversation::AssistantBlock;
use crate::ids;
use std::path::PathBuf;
use stream::OpenAiAssembler;

/// Services accept no longer call id.
const MAX_CALL_ID_BYTES: usize = 40;

pub(super) struct OpenAiClient {
    model: String,
    socket: PathBuf,
    target: String,
}

impl OpenAiClient {
    pub(super) fn new(model: String, socket: PathBuf, api_version: Option<&str>) -> OpenAiClient {
        let version = api_version.map(|version| format!("?api-version={version}")).unwrap_or_default();
        OpenAiClient { model, socket, target: format!("/chat/completions{version}") }
    }
}

impl ModelClient for OpenAiClient {
    fn model(&self) -> &str {
        &self.model
    }

    fn answer(
        &self,
        request: &ModelRequest<'_>,
        sink: AnswerSink<'_>,
        cancel: &CancelToken,
    ) -> Result<ModelReply, Error> {
        let asked = CallTarget { model: &self.model, key: ProviderKeyOwner::Client };
        let body = request::body(&self.model, request);
        let post = HttpPost { target: &self.target, headers: &[], body: &body };
        let call =
            |sink: AnswerSink<'_>| service_call::call::<OpenAiAssembler>(&self.socket, &post, sink, cancel);
        service_call::call_with_retries(&asked, sink, cancel, call).map(named)
    }
}

/// Replaces ids that another service would refuse: the conversation may continue there.
fn named(mut reply: ModelReply) -> ModelReply {
    for block in &mut reply.content {
        match block {
            AssistantBlock::ToolUse(call) => {
                if !is_plain(&call.id) {
                    call.id = ids::prefixed("call_");
                }
            }
            AssistantBlock::Text { .. }
            | AssistantBlock::Thinking { .. }
            | AssistantBlock::RedactedThinking { .. } => {}
        }
    }
    if reply.id.is_empty() {
        reply.id = ids::prefixed("chatcmpl-");
    }
    reply
}

fn is_plain(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=MAX_CALL_ID_BYTES).contains(&id.len()) && id.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{ApiUsage, ToolUse};
    use serde_json::json;

    #[test]
    fn a_call_has_an_id_that_every_service_accepts() {
        let long = "x".repeat(41);
        let ids = ["call_0", "functions.run:0", "", &long];
        let call = |id: &str| {
            AssistantBlock::ToolUse(ToolUse { id: id.into(), name: "run".into(), input: json!({}) })
        };
        let content = ids.iter().map(|id| call(id)).collect();
        let reply = named(ModelReply { id: String::new(), content, usage: ApiUsage::default() });
        let names: Vec<String> = reply
            .content
            .iter()
            .filter_map(|block| match block {
                AssistantBlock::ToolUse(call) => Some(call.id.clone()),
                AssistantBlock::Text { .. }
                | AssistantBlock::Thinking { .. }
                | AssistantBlock::RedactedThinking { .. } => None,
            })
            .collect();
        assert_eq!(names.iter().filter(|name| ids.contains(&name.as_str())).collect::<Vec<_>>(), ["call_0"]);
        assert!(names.iter().all(|name| is_plain(name)), "{names:?}");
        assert!(reply.id.starts_with("chatcmpl-"), "{}", reply.id);
    }
}
