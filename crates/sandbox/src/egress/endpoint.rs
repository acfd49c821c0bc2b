//! What of a model service an agent may call, by dialect. Pure. Files, batches, fine-tuning and the organisation lie
//! behind the same key, and belong to the operator and to every tenant.

use ash_model::Dialect;
use hyper::Method;

/// What a request asks of a model service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Messages,
    CountTokens,
    ChatCompletions,
    Responses,
    Models,
}

impl Endpoint {
    /// Whether a model works for it.
    pub(super) fn costs(self) -> bool {
        match self {
            Endpoint::Messages | Endpoint::ChatCompletions | Endpoint::Responses => true,
            Endpoint::CountTokens | Endpoint::Models => false,
        }
    }

    /// Whether a service may be asked there to work on after its answer, so that nobody would count what that uses.
    pub(super) fn has_background(self) -> bool {
        match self {
            Endpoint::Responses => true,
            Endpoint::Messages | Endpoint::CountTokens | Endpoint::ChatCompletions | Endpoint::Models => {
                false
            }
        }
    }

    /// `path` is the one beneath the upstream's own, which ends with `/v1` or a deployment where the dialect has these.
    pub(super) fn of(dialect: Option<Dialect>, method: &Method, path: &str) -> Option<Endpoint> {
        let of_dialect = |dialect| match dialect {
            Dialect::Anthropic => anthropic(method, path),
            // A deployment is within the upstream.
            Dialect::Openai | Dialect::Azure => openai(method, path),
        };
        match dialect {
            Some(dialect) => of_dialect(dialect),
            None => Dialect::ALL.into_iter().find_map(of_dialect),
        }
    }
}

fn anthropic(method: &Method, path: &str) -> Option<Endpoint> {
    match (method, path) {
        (&Method::POST, "/v1/messages") => Some(Endpoint::Messages),
        (&Method::POST, "/v1/messages/count_tokens") => Some(Endpoint::CountTokens),
        (&Method::GET, "/v1/models") => Some(Endpoint::Models),
        (&Method::GET, _) => {
            path.strip_prefix("/v1/models/").filter(|id| is_id(id)).map(|_| Endpoint::Models)
        }
        _ => None,
    }
}

fn openai(method: &Method, path: &str) -> Option<Endpoint> {
    match (method, path) {
        (&Method::POST, "/chat/completions") => Some(Endpoint::ChatCompletions),
        (&Method::POST, "/responses") => Some(Endpoint::Responses),
        (&Method::GET, "/models") => Some(Endpoint::Models),
        _ => None,
    }
}

fn is_id(id: &str) -> bool {
    !id.is_empty() && !id.contains(['/', ';'])
}

/// For a refusal.
pub(super) fn listed(dialect: Option<Dialect>) -> &'static str {
    match dialect {
        Some(Dialect::Anthropic) | None => {
            "POST /v1/messages, POST /v1/messages/count_tokens, GET /v1/models and GET /v1/models/ID"
        }
        Some(Dialect::Openai | Dialect::Azure) => "POST /chat/completions, POST /responses and GET /models",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_has_what_talks_with_a_model_and_nothing_else() {
        let may = |dialect, request: &str| {
            let (method, path) = request.split_once(' ').expect("a method and a path");
            Endpoint::of(dialect, &method.parse().expect("a method"), path)
        };
        let anthropic = [
            ("POST /v1/messages", Endpoint::Messages),
            ("POST /v1/messages/count_tokens", Endpoint::CountTokens),
            ("GET /v1/models", Endpoint::Models),
            ("GET /v1/models/claude-opus-5-5", Endpoint::Models),
        ];
        let openai = [
            ("POST /chat/completions", Endpoint::ChatCompletions),
            ("POST /responses", Endpoint::Responses),
            ("GET /models", Endpoint::Models),
        ];
        for (request, endpoint) in anthropic {
            assert_eq!(may(Some(Dialect::Anthropic), request), Some(endpoint), "{request}");
            assert_eq!(may(None, request), Some(endpoint), "{request}");
            assert_eq!(may(Some(Dialect::Openai), request), None, "{request}");
        }
        for (request, endpoint) in openai {
            for dialect in [Some(Dialect::Openai), Some(Dialect::Azure), None] {
                assert_eq!(may(dialect, request), Some(endpoint), "{request}");
            }
            assert_eq!(may(Some(Dialect::Anthropic), request), None, "{request}");
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
            for dialect in [Some(Dialect::Anthropic), Some(Dialect::Openai), Some(Dialect::Azure), None] {
                assert_eq!(may(dialect, request), None, "{request}");
            }
        }
    }
}
