//! Builds a store from a URL and an environment. The caller passes the environment: nothing is read from the process.

mod aws_profile;
mod azure;
mod google;
mod s3;

use crate::{
    bucket_error::{BucketError, BucketErrorCode},
    directory_store::DirectoryObjectStore,
    http::{BucketHttpConnector, MetadataAccess},
    object_backend::ObjectBackend,
};
use object_store::{ClientOptions, RetryConfig, path::Path};
use reqwest::Url;
use std::{collections::BTreeMap, sync::Arc};

type EnvironmentVariables = BTreeMap<String, String>;

/// The store behind a URL without wrappers, and the prefix in the URL.
pub(crate) fn open_backend(
    url: &str,
    env: &EnvironmentVariables,
) -> Result<(Arc<dyn ObjectBackend>, Path), BucketError> {
    // An empty variable counts as not set.
    let env =
        env.iter().filter(|(_, value)| !value.is_empty()).map(|(k, v)| (k.clone(), v.clone())).collect();
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(unknown(url));
    };
    if rest.contains(['@', '?', '#']) {
        // The error does not quote the URL: the part before an @ may be a key.
        let sentence =
            "A bucket's URL has no keys and no parameters in it: those are taken from the environment.";
        return Err(BucketError::new(BucketErrorCode::Settings, sentence));
    }
    if scheme == "file" {
        return Ok((directory(url)?, Path::default()));
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(unknown(url));
    }
    let prefix = Path::parse(prefix).map_err(|e| {
        BucketError::new(BucketErrorCode::Settings, format!("{url} has a prefix that cannot be used: {e}."))
    })?;
    let store = match scheme {
        "s3" => s3::open(bucket, &env)?,
        "gs" => google::open(bucket, &env)?,
        "az" => azure::open(bucket, &env)?,
        _ => return Err(unknown(url)),
    };
    Ok((store, prefix))
}

fn unknown(url: &str) -> BucketError {
    let known = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory";
    BucketError::new(BucketErrorCode::Settings, format!("{url} is not the URL of a bucket: use {known}."))
}

fn directory(url: &str) -> Result<Arc<dyn ObjectBackend>, BucketError> {
    let path = Url::parse(url).ok().and_then(|url| url.to_file_path().ok()).ok_or_else(|| unknown(url))?;
    if !path.is_dir() {
        return Err(BucketError::new(
            BucketErrorCode::BucketMissing,
            format!("There is no directory {}: make it.", path.display()),
        ));
    }
    match DirectoryObjectStore::new(path) {
        Ok(disk) => Ok(Arc::new(disk)),
        Err(e) => Err(BucketError::of(&e, url)),
    }
}

fn unusable(scheme: &str, bucket: &str, error: &object_store::Error) -> BucketError {
    let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    BucketError::new(
        BucketErrorCode::Settings,
        format!("{scheme}://{bucket} cannot be used as it is set up: {cause}."),
    )
}

/// The variables that a builder knows.
fn known<'e, K: std::str::FromStr>(begin: &str, env: &'e EnvironmentVariables) -> Vec<(K, &'e str)> {
    let ours = env.iter().filter(|(name, _)| name.starts_with(begin));
    ours.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value.as_str()))).collect()
}

fn first<'e>(names: &[&str], env: &'e EnvironmentVariables) -> Option<&'e str> {
    names.iter().find_map(|name| env.get(*name)).map(String::as_str)
}

/// Plain HTTP is allowed only if the endpoint says http://.
fn options(endpoint: Option<&str>) -> ClientOptions {
    ClientOptions::new().with_allow_http(is_plain(endpoint))
}

/// Whether the endpoint uses plain HTTP. No cloud does, so such an endpoint gets no cloud credentials.
fn is_plain(endpoint: Option<&str>) -> bool {
    endpoint.is_some_and(|url| url.starts_with("http://"))
}

/// Turns retries off: only `RetryingObjectStore` retries.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn http_connector(metadata: MetadataAccess, env: &EnvironmentVariables) -> BucketHttpConnector {
    let host = |url: &str| Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
    BucketHttpConnector {
        metadata,
        metadata_host: env.get("AWS_METADATA_ENDPOINT").and_then(|url| host(url)),
        proxy: first(&["HTTPS_PROXY", "https_proxy"], env).map(str::to_owned),
        no_proxy: first(&["NO_PROXY", "no_proxy"], env).map(str::to_owned),
    }
}
