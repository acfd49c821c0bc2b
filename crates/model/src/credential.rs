//! Keys for model services that the server stores for its tenants: what is known of one without its key.

use crate::ModelApiDialect;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The service that a stored key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CredentialKind {
    /// A key of Anthropic's Messages API.
    Anthropic,
    /// A key of a service with chat completions.
    Openai,
    /// A JSON object with the keys of an AWS account.
    Bedrock,
    /// A key of any other service.
    Custom,
}

impl CredentialKind {
    const ALL: [(CredentialKind, &'static str); 4] = [
        (CredentialKind::Anthropic, "anthropic"),
        (CredentialKind::Openai, "openai"),
        (CredentialKind::Bedrock, "bedrock"),
        (CredentialKind::Custom, "custom"),
    ];

    /// The name in the API and in the database.
    pub fn as_str(self) -> &'static str {
        CredentialKind::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    /// The kind of that name.
    pub fn parse(text: &str) -> Option<CredentialKind> {
        CredentialKind::ALL.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind)
    }

    /// The API that a session calls with the key. `None`: no session can use it.
    pub fn dialect(self) -> Option<ModelApiDialect> {
        match self {
            CredentialKind::Anthropic => Some(ModelApiDialect::Anthropic),
            CredentialKind::Openai => Some(ModelApiDialect::Openai),
            CredentialKind::Bedrock | CredentialKind::Custom => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_the_same_name_in_the_database_and_in_json() {
        for (kind, name) in CredentialKind::ALL {
            assert_eq!((kind.as_str(), CredentialKind::parse(name)), (name, Some(kind)));
            assert_eq!(serde_json::to_value(kind).expect("a text"), name);
        }
        assert_eq!(CredentialKind::parse("azure"), None);
    }
}
