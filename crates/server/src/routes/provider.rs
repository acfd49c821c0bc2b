//! The model service of a session: the server's own, or one that the client names with its own key or a stored one.

use super::extract::bad_body;
use crate::{
    app::AppState,
    auth::Caller,
    field_coercion,
    problem::{ApiProblem, ApiResult},
};
use ash_model::{ByokEndpoint, CredentialId, CredentialKind, FailureKind, ModelApiDialect, ModelProvider};
use ash_sandbox::EgressPolicy;
use ash_session::{egress_with_key, key_header, upstream};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{ObjectBuilder, OneOfBuilder, Schema, Type},
    },
};

const ANTHROPIC: &str = "https://api.anthropic.com";
const OPENAI: &str = "https://api.openai.com/v1";
/// The oldest version that is not a preview and reports the usage of an answer.
const API_VERSION: &str = "2024-10-21";
/// Maximum bytes of a text that becomes part of a URL.
const MAX_URL_SEGMENT_BYTES: usize = 64;
const MAX_PROVIDER_HEADERS: usize = 32;

/// The model service that a caller selects.
pub(super) enum ProviderSelection {
    /// By name; the server has the endpoint and the key.
    Known(ModelProvider),
    Own(ByokEndpoint, EgressPolicy),
    /// With the key of a stored credential.
    Stored(ByokEndpoint, CredentialId),
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ProviderRequest {
    /// `anthropic`, `openai` or `azure`; `offline` without other fields.
    r#type: String,
    /// Also accepted as `endpoint`.
    #[serde(alias = "endpoint")]
    base_url: Option<String>,
    api_key: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    deployment_id: Option<String>,
    api_version: Option<String>,
}

/// A name, or [`ProviderRequest`].
pub(super) fn provider_schema() -> RefOr<Schema> {
    let name = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["offline", "anthropic"]));
    let description =
        "A service that the server has a key for, or one that the caller names, with its own key.";
    OneOfBuilder::new().item(name).item(ProviderRequest::schema()).description(Some(description)).into()
}

/// A name, an object with only a `type`, or an endpoint with a key.
pub(super) fn parse_provider(app: &AppState, given: Value) -> ApiResult<ProviderSelection> {
    if let Some(name) = given.as_str() {
        return known(name).map(ProviderSelection::Known);
    }
    if !given.is_object() {
        return Err(invalid(
            "provider must be a name, or {type, baseUrl, apiKey, headers, deploymentId, apiVersion}",
        ));
    }
    // A `FieldError` has names but no values, so it cannot reveal the key.
    let given: ProviderRequest =
        field_coercion::as_written(given).map_err(|error| bad_body(error.within("provider")))?;
    let bare = given.api_key.is_none() && given.headers.is_empty() && given.base_url.is_none();
    if bare && given.deployment_id.is_none() && given.api_version.is_none() {
        return known(&given.r#type).map(ProviderSelection::Known);
    }
    parse_byok_provider(app, given)
}

fn known(name: &str) -> ApiResult<ModelProvider> {
    ModelProvider::parse(name).ok_or_else(|| match ModelApiDialect::parse(name) {
        Some(_) => invalid(&format!("provider \"{name}\" needs an apiKey: the server has none for it")),
        None => invalid("provider must be \"offline\" or \"anthropic\", or {type, baseUrl, apiKey, headers}"),
    })
}

fn parse_byok_provider(app: &AppState, given: ProviderRequest) -> ApiResult<ProviderSelection> {
    let ProviderRequest { r#type, base_url, api_key, headers: more, deployment_id, api_version } = given;
    let dialect = ModelApiDialect::parse(&r#type).ok_or_else(|| unsupported(&r#type))?;
    let own = build_endpoint(dialect, base_url, deployment_id, api_version)?;
    let public = app.provider_access.check(&own.base_url).map_err(ash_session::Error::from)?;
    if more.len() > MAX_PROVIDER_HEADERS {
        return Err(invalid(&format!("provider.headers has more than {MAX_PROVIDER_HEADERS}")));
    }
    let mut headers: BTreeMap<String, SecretString> =
        more.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value.into())).collect();
    if let Some(key) = api_key {
        let (name, value) = key_header(dialect, &key);
        headers.insert(name.to_owned(), value);
    }
    if headers.is_empty() {
        return Err(invalid("provider needs an apiKey, or headers with which it is called"));
    }
    let way = EgressPolicy { upstream: upstream(&own), headers, public, dialect: Some(dialect) };
    way.check().map_err(|error| invalid(&format!("provider: {error}")))?;
    Ok(ProviderSelection::Own(own, way))
}

/// The service of a stored credential: the usual one of its type, or the one that the caller names beside it.
pub(super) async fn parse_stored_provider(
    app: &AppState,
    caller: &Caller,
    (id, given): (String, Option<Value>),
) -> ApiResult<ProviderSelection> {
    let (id, dialect) = app.credentials.for_session(&caller.0, &id).await?;
    let base_url = match given {
        None => None,
        Some(Value::String(name)) => {
            is_of_credential(&name, dialect)?;
            None
        }
        Some(given @ Value::Object(_)) => {
            let given: ProviderRequest =
                field_coercion::as_written(given).map_err(|error| bad_body(error.within("provider")))?;
            if given.api_key.is_some() || !given.headers.is_empty() {
                return Err(invalid(
                    "provider.apiKey and provider.headers cannot stand beside credentialId, whose key is sent: leave out one of them",
                ));
            }
            is_of_credential(&given.r#type, dialect)?;
            if given.deployment_id.is_some() || given.api_version.is_some() {
                return Err(invalid("provider.deploymentId and provider.apiVersion are for type \"azure\""));
            }
            given.base_url
        }
        Some(_) => return Err(invalid("provider must be a name, or {type, baseUrl}, beside credentialId")),
    };
    let own = build_endpoint(dialect, base_url, None, None)?;
    let public = app.provider_access.check(&own.base_url).map_err(ash_session::Error::from)?;
    let way = egress_with_key(&own, &SecretString::default(), public);
    way.check().map_err(|error| invalid(&format!("provider: {error}")))?;
    Ok(ProviderSelection::Stored(own, id))
}

fn is_of_credential(r#type: &str, dialect: ModelApiDialect) -> ApiResult<()> {
    match r#type == dialect.as_str() {
        true => Ok(()),
        false => Err(invalid(&format!(
            "provider must be of the credential's type \"{}\", or be left out",
            dialect.as_str()
        ))),
    }
}

/// Whether the key of a credential can be sent as a header, if sessions send it.
pub(super) fn check_stored_key(kind: CredentialKind, key: &SecretString) -> ApiResult<()> {
    let Some(dialect) = kind.dialect() else { return Ok(()) };
    let own = build_endpoint(dialect, None, None, None)?;
    egress_with_key(&own, key, true).check().map_err(|error| invalid(&format!("key: {error}")))
}

fn unsupported(r#type: &str) -> ApiProblem {
    let error = format!(
        "No agent here can call a provider of type \"{}\"; there are {}, each with any baseUrl that speaks its API",
        shortened(r#type),
        ModelApiDialect::ALL.map(|dialect| format!("\"{}\"", dialect.as_str())).join(", "),
    );
    ApiProblem::new(FailureKind::Unprocessable, "provider_unsupported", error)
}

/// The stored part of the caller's endpoint.
fn build_endpoint(
    dialect: ModelApiDialect,
    base_url: Option<String>,
    deployment_id: Option<String>,
    api_version: Option<String>,
) -> ApiResult<ByokEndpoint> {
    let usual = match dialect {
        ModelApiDialect::Anthropic => Some(ANTHROPIC.to_owned()),
        ModelApiDialect::Openai => Some(OPENAI.to_owned()),
        ModelApiDialect::Azure => None,
    };
    let base_url =
        base_url.or(usual).ok_or_else(|| invalid("provider of type \"azure\" needs an endpoint"))?;
    let (deployment_id, api_version) = match dialect {
        ModelApiDialect::Anthropic | ModelApiDialect::Openai
            if deployment_id.is_none() && api_version.is_none() =>
        {
            (None, None)
        }
        ModelApiDialect::Anthropic | ModelApiDialect::Openai => {
            return Err(invalid("provider.deploymentId and provider.apiVersion are for type \"azure\""));
        }
        ModelApiDialect::Azure => {
            let deployment =
                deployment_id.ok_or_else(|| invalid("provider of type \"azure\" needs a deploymentId"))?;
            let version = api_version.unwrap_or_else(|| API_VERSION.to_owned());
            (
                Some(parse_url_segment("deploymentId", deployment)?),
                Some(parse_url_segment("apiVersion", version)?),
            )
        }
    };
    Ok(ByokEndpoint { r#type: dialect, base_url, deployment_id, api_version })
}

/// Checks a text that becomes part of a URL, so that it cannot change the rest of the URL.
fn parse_url_segment(name: &str, text: String) -> ApiResult<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let fine = (1..=MAX_URL_SEGMENT_BYTES).contains(&text.len())
        && text.bytes().all(plain)
        && !text.starts_with('.');
    match fine {
        true => Ok(text),
        false => Err(invalid(&format!(
            "provider.{name} must be 1 to {MAX_URL_SEGMENT_BYTES} letters, digits, hyphens, underscores and dots"
        ))),
    }
}

/// Services of this kind have no common model, so the caller must name one. A deployment already has its model.
pub(super) fn has_model(dialect: ModelApiDialect, model: Option<&str>) -> ApiResult<()> {
    match (dialect, model) {
        (ModelApiDialect::Openai, None) => Err(invalid(
            "provider of type \"openai\" needs the session's `model`: the name of one that it has",
        )),
        (ModelApiDialect::Openai, Some(_)) | (ModelApiDialect::Anthropic | ModelApiDialect::Azure, _) => {
            Ok(())
        }
    }
}

fn invalid(error: &str) -> ApiProblem {
    ApiProblem::invalid("invalid_body", error)
}

fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}
