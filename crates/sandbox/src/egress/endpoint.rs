//! The endpoints of a model service that an agent may call, by dialect. Pure. The same key also opens files, batches,
//! fine-tuning and the organisation, which belong to the operator and to every tenant.

use ash_model::ModelApiDialect;
use hyper::Method;

/// The endpoint that a request calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelEndpoint {
    Messages,
    CountTokens,
    ChatCompletions,
    Responses,
    Models,
}

impl ModelEndpoint {
    /// Whether a call makes a model work.
    pub(super) fn costs(self) -> bool {
        match self {
            ModelEndpoint::Messages | ModelEndpoint::ChatCompletions | ModelEndpoint::Responses => true,
            ModelEndpoint::CountTokens | ModelEndpoint::Models => false,
        }
    }

    /// Whether a request may ask the service to continue after its answer, in which case the usage would not be
    /// counted.
    pub(super) fn has_background(self) -> bool {
        match self {
            ModelEndpoint::Responses => true,
            ModelEndpoint::Messages
            | ModelEndpoint::CountTokens
            | ModelEndpoint::ChatCompletions
            | ModelEndpoint::Models => false,
        }
    }

    /// Whether a stream reports its usage only on request.
    pub(super) fn counts_streams_on_request(self) -> bool {
        match self {
            ModelEndpoint::ChatCompletions => true,
            ModelEndpoint::Messages
            | ModelEndpoint::CountTokens
            | ModelEndpoint::Responses
            | ModelEndpoint::Models => false,
        }
    }

    /// `path` is relative to the upstream's own path, which ends with `/v1` or a deployment where the dialect has
    /// these.
    pub(super) fn of(dialect: Option<ModelApiDialect>, method: &Method, path: &str) -> Option<ModelEndpoint> {
        let of_dialect = |dialect| match dialect {
            ModelApiDialect::Anthropic => anthropic(method, path),
            // The upstream's path contains the deployment.
            ModelApiDialect::Openai | ModelApiDialect::Azure => openai(method, path),
        };
        match dialect {
            Some(dialect) => of_dialect(dialect),
            None => ModelApiDialect::ALL.into_iter().find_map(of_dialect),
        }
    }
}

fn anthropic(method: &Method, path: &str) -> Option<ModelEndpoint> {
    match (method, path) {
        (&Method::POST, "/v1/messages") => Some(ModelEndpoint::Messages),
        (&Method::POST, "/v1/messages/count_tokens") => Some(ModelEndpoint::CountTokens),
        (&Method::GET, "/v1/models") => Some(ModelEndpoint::Models),
        (&Method::GET, _) => {
            path.strip_prefix("/v1/models/").filter(|id| is_id(id)).map(|_| ModelEndpoint::Models)
        }
        _ => None,
    }
}

fn openai(method: &Method, path: &str) -> Option<ModelEndpoint> {
    match (method, path) {
        (&Method::POST, "/chat/completions") => Some(ModelEndpoint::ChatCompletions),
        (&Method::POST, "/responses") => Some(ModelEndpoint::Responses),
        (&Method::GET, "/models") => Some(ModelEndpoint::Models),
        _ => None,
    }
}

fn is_id(id: &str) -> bool {
    !id.is_empty() && !id.contains(['/', ';'])
}

/// The allowed endpoints, for the message of a refusal.
pub(super) fn listed(dialect: Option<ModelApiDialect>) -> &'static str {
    match dialect {
        Some(ModelApiDialect::Anthropic) | None => {
            "POST /v1/messages, POST /v1/messages/count_tokens, GET /v1/models and GET /v1/models/ID"
        }
        Some(ModelApiDialect::Openai | ModelApiDialect::Azure) => {
            "POST /chat/completions, POST /responses and GET /models"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_has_what_talks_with_a_model_and_nothing_else() {
        let may = |dialect, request: &str| {
            let (method, path) = request.split_once(' ').expect("a method and a path");
            ModelEndpoint::of(dialect, &method.parse().expect("a method"), path)
        };
        let anthropic = [
            ("POST /v1/messages", ModelEndpoint::Messages),
            ("POST /v1/messages/count_tokens", ModelEndpoint::CountTokens),
            ("GET /v1/models", ModelEndpoint::Models),
            ("GET /v1/models/claude-opus-5-5", ModelEndpoint::Models),
        ];
        let openai = [
            ("POST /chat/completions", ModelEndpoint::ChatCompletions),
            ("POST /responses", ModelEndpoint::Responses),
            ("GET /models", ModelEndpoint::Models),
        ];
        for (request, endpoint) in anthropic {
            assert_eq!(may(Some(ModelApiDialect::Anthropic), request), Some(endpoint), "{request}");
            assert_eq!(may(None, request), Some(endpoint), "{request}");
            assert_eq!(may(Some(ModelApiDialect::Openai), request), None, "{request}");
        }
        for (request, endpoint) in openai {
            for dialect in [Some(ModelApiDialect::Openai), Some(ModelApiDialect::Azure), None] {
                assert_eq!(may(dialect, request), Some(endpoint), "{request}");
            }
            assert_eq!(may(Some(ModelApiDialect::Anthropic), request), None, "{request}");
        }
        for request in [
            "GET /",
            "HEAD /v1/models",
            "GET /v1/messages",
            "POST /v1/models",
            "POST /v1/messages/",
            "POST /v1/messages/batches",
            "POST /v1/messages;x",
            "POST /V1/messages",
            "GET /v1/models/",
            "GET /v1/models/a/b",
            "DELETE /v1/models/a",
            "GET /v1/files",
            "POST /v1/files",
            "GET /v1/organizations/me",
            "GET /files",
            "POST /files",
            "POST /batches",
            "GET /responses/resp_1",
            "DELETE /models/a",
            "POST /fine_tuning/jobs",
        ] {
            for dialect in [
                Some(ModelApiDialect::Anthropic),
                Some(ModelApiDialect::Openai),
                Some(ModelApiDialect::Azure),
                None,
            ] {
                assert_eq!(may(dialect, request), None, "{request}");
            }
        }
    }
}
