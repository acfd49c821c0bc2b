//! Chat completions in the formats of OpenAI and Azure. A request is converted to the Messages API, so that it gets the
//! same reply, and the reply is converted back.

mod chunks;
mod request;

pub(crate) use chunks::{chunks, overloaded, whole};
pub(crate) use request::{translated, wants_counts};
use serde_json::{Value, json};

const PATH: &str = "/chat/completions";
const DEPLOYMENTS: &str = "/openai/deployments/";

/// The path below the base URL of OpenAI, of a service without a path, or of an Azure deployment.
pub(crate) fn is_completion(path: &str) -> bool {
    let beneath = path.strip_suffix(PATH);
    beneath.is_some_and(|base| base.is_empty() || base == "/v1") || deployment(path).is_some()
}

/// The Azure deployment in the path.
fn deployment(path: &str) -> Option<&str> {
    let name = path.strip_prefix(DEPLOYMENTS)?.strip_suffix(PATH)?;
    Some(name).filter(|name| !name.is_empty() && !name.contains('/'))
}

/// An error response.
pub(crate) fn problem(status: u16, message: &str) -> Value {
    let (kind, code) = match status {
        401 => ("invalid_request_error", Some("invalid_api_key")),
        404 => ("invalid_request_error", Some("model_not_found")),
        429 => ("requests", Some("rate_limit_exceeded")),
        400..500 => ("invalid_request_error", None),
        _ => ("server_error", None),
    };
    json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_asked_for_beneath_three_bases() {
        for path in ["/chat/completions", "/v1/chat/completions", "/openai/deployments/d-1/chat/completions"]
        {
            assert!(is_completion(path), "{path}");
        }
        for path in ["/v2/chat/completions", "/openai/deployments/a/b/chat/completions", "/v1/messages", "/"]
        {
            assert!(!is_completion(path), "{path}");
        }
        assert_eq!(deployment("/openai/deployments/d-1/chat/completions"), Some("d-1"));
    }
}
