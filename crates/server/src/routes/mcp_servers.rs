//! The option `mcpServers`: the known fields of a server. A misspelt field is refused, because a secret in it would be
//! stored and shown in clear text.

use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The fields of the reference, of Claude Code, and of the SDKs that we follow.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct McpServer {
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<McpTransport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers_helper: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    always_load: Option<bool>,
}

#[derive(Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum McpTransport {
    Stdio,
    Local,
    Http,
    StreamableHttp,
    Sse,
    Ws,
}

/// With the coercions of the reference, and without null fields.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    field: D,
) -> Result<Option<Map<String, Value>>, D::Error> {
    let Some(servers) = Option::<BTreeMap<String, McpServer>>::deserialize(field)? else { return Ok(None) };
    let plain = |(name, server): (String, McpServer)| {
        Ok::<_, D::Error>((name, serde_json::to_value(server).map_err(D::Error::custom)?))
    };
    servers.into_iter().map(plain).collect::<Result<_, D::Error>>().map(Some)
}
