//! From a URL and an environment to a store. The environment is the caller's: nothing is read from the process.

mod azure;
mod google;
mod profile;
mod s3;

use crate::{
    disk::Disk,
    http::{Door, Metadata},
    shelf::Shelf,
    trouble::{Code, Trouble},
};
use object_store::{ClientOptions, RetryConfig, path::Path};
use reqwest::Url;
use std::{collections::BTreeMap, sync::Arc};

type Environment = BTreeMap<String, String>;

/// The store behind a URL without any wrapper around it, and the prefix within.
pub(crate) fn shelf(url: &str, env: &Environment) -> Result<(Arc<dyn Shelf>, Path), Trouble> {
    // A variable that is set to nothing is not set.
    let env =
        env.iter().filter(|(_, value)| !value.is_empty()).map(|(k, v)| (k.clone(), v.clone())).collect();
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(unknown(url));
    };
    if rest.contains(['@', '?', '#']) {
        // Not shown: what is before an @ may be a key.
        let sentence =
            "A bucket's URL has no keys and no parameters in it: those are taken from the environment.";
        return Err(Trouble::new(Code::Settings, sentence));
    }
    if scheme == "file" {
        return Ok((directory(url)?, Path::default()));
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(unknown(url));
    }
    let prefix = Path::parse(prefix)
        .map_err(|e| Trouble::new(Code::Settings, format!("{url} has a prefix that cannot be used: {e}.")))?;
    let store = match scheme {
        "s3" => s3::open(bucket, &env)?,
        "gs" => google::open(bucket, &env)?,
        "az" => azure::open(bucket, &env)?,
        _ => return Err(unknown(url)),
    };
    Ok((store, prefix))
}

fn unknown(url: &str) -> Trouble {
    let known = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory";
    Trouble::new(Code::Settings, format!("{url} is not the URL of a bucket: use {known}."))
}

fn directory(url: &str) -> Result<Arc<dyn Shelf>, Trouble> {
    let path = Url::parse(url).ok().and_then(|url| url.to_file_path().ok()).ok_or_else(|| unknown(url))?;
    if !path.is_dir() {
        return Err(Trouble::new(
            Code::BucketMissing,
            format!("There is no directory {}: make it.", path.display()),
        ));
    }
    match Disk::new(path) {
        Ok(disk) => Ok(Arc::new(disk)),
        Err(e) => Err(Trouble::of(&e, url)),
    }
}

fn unusable(scheme: &str, bucket: &str, error: &object_store::Error) -> Trouble {
    let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    Trouble::new(Code::Settings, format!("{scheme}://{bucket} cannot be used as it is set up: {cause}."))
}

/// Variables that a builder knows.
fn known<'e, K: std::str::FromStr>(begin: &str, env: &'e Environment) -> Vec<(K, &'e str)> {
    let ours = env.iter().filter(|(name, _)| name.starts_with(begin));
    ours.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value.as_str()))).collect()
}

fn first<'e>(names: &[&str], env: &'e Environment) -> Option<&'e str> {
    names.iter().find_map(|name| env.get(*name)).map(String::as_str)
}

/// Whoever writes http:// means it; nobody else gets it.
fn options(endpoint: Option<&str>) -> ClientOptions {
    ClientOptions::new().with_allow_http(is_plain(endpoint))
}

/// No cloud is like this, and what is like this is not told a cloud's credentials.
fn is_plain(endpoint: Option<&str>) -> bool {
    endpoint.is_some_and(|url| url.starts_with("http://"))
}

/// `Retried` is the one place where something is tried again.
fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn door(metadata: Metadata, env: &Environment) -> Door {
    let host = |url: &str| Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
    Door {
        metadata,
        metadata_host: env.get("AWS_METADATA_ENDPOINT").and_then(|url| host(url)),
        proxy: first(&["HTTPS_PROXY", "https_proxy"], env).map(str::to_owned),
        no_proxy: first(&["NO_PROXY", "no_proxy"], env).map(str::to_owned),
    }
}
