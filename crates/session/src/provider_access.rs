//! The model services that clients may name for keys of their own. A server that calls what a client names must not become
//! a way to services that only its machine can reach.

use ash_model::{ByokEndpoint, FailureKind, ModelApiDialect};
use ash_sandbox::EgressPolicy;
use secrecy::{ExposeSecret, SecretString};

/// The operator's choice. The lists are base URLs, each with everything beneath it.
#[derive(Debug, Clone)]
pub enum ProviderAccess {
    /// No service at all.
    Off,
    /// Those of the operator's list.
    Listed(Vec<String>),
    /// Those of the operator's list, and every public host.
    Public(Vec<String>),
}

/// Why a session may not call a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProviderRefusal {
    #[error(
        "This server takes no model service from clients (ASH_OWN_PROVIDERS=off). Leave provider out, and the server's own is used"
    )]
    Off,
    #[error("provider.baseUrl is not a URL")]
    NotAUrl,
    #[error(
        "provider.baseUrl must be https: with the name of a public host; others the operator allows with ASH_PROVIDER_URLS"
    )]
    NotPublic,
    #[error(
        "provider.baseUrl is none of those that this server allows; the operator adds it to ASH_PROVIDER_URLS"
    )]
    NotListed,
}

impl ProviderRefusal {
    pub(crate) fn kind(self) -> FailureKind {
        match self {
            ProviderRefusal::Off | ProviderRefusal::NotListed => FailureKind::Forbidden,
            ProviderRefusal::NotAUrl | ProviderRefusal::NotPublic => FailureKind::Invalid,
        }
    }

    pub(crate) fn code(self) -> &'static str {
        match self {
            ProviderRefusal::Off => "own_providers_off",
            ProviderRefusal::NotAUrl | ProviderRefusal::NotPublic => "invalid_body",
            ProviderRefusal::NotListed => "provider_not_listed",
        }
    }
}

impl ProviderAccess {
    /// Answers whether the URL must resolve to a public address.
    pub fn check(&self, base_url: &str) -> Result<bool, ProviderRefusal> {
        let (urls, elsewhere) = match self {
            ProviderAccess::Off => return Err(ProviderRefusal::Off),
            ProviderAccess::Listed(urls) => (urls, Err(ProviderRefusal::NotListed)),
            ProviderAccess::Public(urls) => (urls, Ok(true)),
        };
        let (_, is_public) = ash_sandbox::origin_of(base_url).ok_or(ProviderRefusal::NotAUrl)?;
        if urls.iter().any(|allowed| ash_sandbox::is_beneath(base_url, allowed)) {
            return Ok(false);
        }
        elsewhere.and_then(|public| if is_public { Ok(public) } else { Err(ProviderRefusal::NotPublic) })
    }
}

/// The header with the key of a service.
pub fn key_header(dialect: ModelApiDialect, key: &str) -> (&'static str, SecretString) {
    match dialect {
        ModelApiDialect::Anthropic => ("x-api-key", key.into()),
        ModelApiDialect::Openai => ("authorization", format!("Bearer {key}").into()),
        ModelApiDialect::Azure => ("api-key", key.into()),
    }
}

/// The base URL of the agent's calls. At Azure the agent can reach only the deployment.
pub fn upstream(own: &ByokEndpoint) -> String {
    match &own.deployment_id {
        Some(deployment) => {
            format!("{}/openai/deployments/{deployment}", own.base_url.trim_end_matches('/'))
        }
        None => own.base_url.clone(),
    }
}

/// The access to a service with a key alone. `public`: its host must resolve to a public address.
pub fn egress_with_key(own: &ByokEndpoint, key: &SecretString, public: bool) -> EgressPolicy {
    let (name, value) = key_header(own.r#type, key.expose_secret());
    let headers = [(name.to_owned(), value)].into();
    EgressPolicy { upstream: upstream(own), headers, public, dialect: Some(own.r#type) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls() -> Vec<String> {
        vec!["https://gate.example/team".to_owned(), "http://127.0.0.1:9".to_owned()]
    }

    #[test]
    fn off_takes_no_service_from_a_client() {
        for url in ["https://gate.example/team", "https://models.example"] {
            assert_eq!(ProviderAccess::Off.check(url), Err(ProviderRefusal::Off), "{url}");
        }
    }

    #[test]
    fn list_takes_what_the_operator_names_and_what_lies_beneath() {
        let listed = |url| ProviderAccess::Listed(urls()).check(url);
        assert_eq!(listed("https://gate.example/team"), Ok(false));
        assert_eq!(listed("https://gate.example/team/v1"), Ok(false));
        assert_eq!(listed("http://127.0.0.1:9/v1"), Ok(false));
        assert_eq!(listed("https://gate.example/other"), Err(ProviderRefusal::NotListed));
        assert_eq!(listed("https://gate.example/team-b"), Err(ProviderRefusal::NotListed));
        assert_eq!(listed("https://api.anthropic.com"), Err(ProviderRefusal::NotListed));
    }

    #[test]
    fn public_takes_these_and_every_public_host() {
        let public = |url| ProviderAccess::Public(urls()).check(url);
        assert_eq!(public("http://127.0.0.1:9/v1"), Ok(false));
        // Outside of a listed path, the gateway is like any other host and needs a public address.
        assert_eq!(public("https://gate.example/other"), Ok(true));
        assert_eq!(public("https://models.example"), Ok(true));
        assert_eq!(public("http://127.0.0.1:8/v1"), Err(ProviderRefusal::NotPublic));
        assert_eq!(public("models"), Err(ProviderRefusal::NotAUrl));
    }
}
