//! Who answers an agent: the server's own way to a model, or one that the client brings with a key of its own.

use crate::{
    app::App,
    problem::{Answer, Problem},
};
use ash_model::{Kind, OwnProvider, Provider};
use ash_sandbox::Egress;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

const ANTHROPIC: &str = "https://api.anthropic.com";
const MOST_HEADERS: usize = 32;

/// What a caller says of it.
pub(super) enum Wanted {
    /// By name; the server has the way.
    Known(Provider),
    Own(OwnProvider, Egress),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Given {
    r#type: String,
    #[serde(alias = "endpoint")]
    base_url: Option<String>,
    api_key: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    deployment_id: Option<String>,
}

/// A name, an object with nothing but its `type`, or one with a key.
pub(super) fn wanted(app: &App, given: Value) -> Answer<Wanted> {
    if let Some(name) = given.as_str() {
        return known(name).map(Wanted::Known);
    }
    // The words of the error must not repeat what was sent: there is a key in it.
    let given: Given = serde_json::from_value(given).map_err(|_| {
        invalid("provider must be a name, or {type, baseUrl, apiKey, headers} with text in each")
    })?;
    if given.api_key.is_none() && given.headers.is_empty() && given.base_url.is_none() {
        return known(&given.r#type).map(Wanted::Known);
    }
    own(app, given)
}

fn known(name: &str) -> Answer<Provider> {
    let unknown =
        || invalid("provider must be \"offline\" or \"anthropic\", or {type, baseUrl, apiKey, headers}");
    Provider::parse(name).ok_or_else(unknown)
}

fn own(app: &App, given: Given) -> Answer<Wanted> {
    let Given { r#type, base_url, api_key, headers: more, deployment_id } = given;
    if r#type != "anthropic" || deployment_id.is_some() {
        let error = format!(
            "No agent here can call a provider of type \"{}\"; \"anthropic\" works, with any baseUrl that speaks its API",
            shortened(&r#type)
        );
        return Err(Problem::new(Kind::Unprocessable, "provider_unsupported", error));
    }
    let base_url = base_url.unwrap_or_else(|| ANTHROPIC.to_owned());
    let public = check(app, &base_url)?;
    if more.len() > MOST_HEADERS {
        return Err(invalid(&format!("provider.headers has more than {MOST_HEADERS}")));
    }
    let mut headers: BTreeMap<String, SecretString> =
        more.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value.into())).collect();
    if let Some(key) = api_key {
        headers.insert("x-api-key".to_owned(), key.into());
    }
    if headers.is_empty() {
        return Err(invalid("provider needs an apiKey, or headers with which it is called"));
    }
    let way = Egress { upstream: base_url.clone(), headers, public };
    way.check().map_err(|error| invalid(&format!("provider: {error}")))?;
    Ok(Wanted::Own(OwnProvider { r#type, base_url }, way))
}

/// Whether it must be somewhere on the Internet: a client must not reach what is only this machine's to reach, unless
/// the operator has named it.
fn check(app: &App, text: &str) -> Answer<bool> {
    let (origin, is_public) =
        ash_sandbox::origin_of(text).ok_or_else(|| invalid("provider.baseUrl is not a URL"))?;
    let named = |allowed: &String| ash_sandbox::origin_of(allowed).is_some_and(|(other, _)| other == origin);
    if app.provider_urls.iter().any(named) {
        return Ok(false);
    }
    if is_public {
        return Ok(true);
    }
    Err(invalid(
        "provider.baseUrl must be https: with the name of a public host; others the operator allows with ASH_PROVIDER_URLS",
    ))
}

fn invalid(error: &str) -> Problem {
    Problem::invalid("invalid_body", error)
}

fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}
