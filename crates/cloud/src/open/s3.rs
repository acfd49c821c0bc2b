//! Opens buckets of S3 and of services that speak its protocol.

use super::{
    EnvironmentVariables, aws_profile, aws_profile::AwsProfile, first, http_connector, is_plain, known,
    no_retries, options, unusable,
};
use crate::{bucket_error::BucketError, http::MetadataAccess, object_backend::ObjectBackend};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use secrecy::ExposeSecret;
use std::sync::Arc;

/// Where the keys come from, in object_store's order of precedence. Profiles are an addition of this crate.
enum AwsKeySource {
    Given,
    Profile(AwsProfile),
    WebIdentity,
    Container,
    Instance,
}

impl AwsKeySource {
    fn find(env: &EnvironmentVariables) -> Result<AwsKeySource, BucketError> {
        let has = |names: &[&str]| first(names, env).is_some();
        if has(&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]) {
            Ok(AwsKeySource::Given)
        } else if has(&["AWS_WEB_IDENTITY_TOKEN_FILE"]) && has(&["AWS_ROLE_ARN"]) {
            Ok(AwsKeySource::WebIdentity)
        } else if has(&["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"]) {
            Ok(AwsKeySource::Container)
        } else {
            Ok(aws_profile::find(env)?.map_or(AwsKeySource::Instance, AwsKeySource::Profile))
        }
    }

    fn metadata(&self) -> MetadataAccess {
        match self {
            AwsKeySource::Given | AwsKeySource::Profile(_) | AwsKeySource::WebIdentity => {
                MetadataAccess::Never
            }
            AwsKeySource::Container | AwsKeySource::Instance => MetadataAccess::Ask,
        }
    }
}

pub(super) fn open(bucket: &str, env: &EnvironmentVariables) -> Result<Arc<dyn ObjectBackend>, BucketError> {
    let endpoint = first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"], env);
    let region = first(&["ASH_S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"], env);
    let keys = AwsKeySource::find(env)?;
    if matches!(keys, AwsKeySource::Instance)
        && is_plain(endpoint)
        && !env.contains_key("AWS_METADATA_ENDPOINT")
    {
        return Err(BucketError::without_credentials(&format!("s3://{bucket}")));
    }
    let mut builder = builder_from_env(env)
        .with_bucket_name(bucket)
        .with_region(region.unwrap_or("us-east-1"))
        .with_client_options(options(endpoint))
        .with_retry(no_retries())
        .with_http_connector(http_connector(keys.metadata(), env));
    if !env.contains_key("AWS_VIRTUAL_HOSTED_STYLE_REQUEST") {
        // The certificate covers one label before the region, so a bucket with a dot in its name needs the path style.
        builder = builder.with_virtual_hosted_style_request(endpoint.is_none() && !bucket.contains('.'));
    }
    if let AwsKeySource::Profile(AwsProfile { key_id, secret, token }) = keys {
        builder = builder.with_access_key_id(key_id).with_secret_access_key(secret.expose_secret());
        if let Some(token) = token {
            builder = builder.with_token(token.expose_secret());
        }
    }
    builder.build().map(|store| Arc::new(store) as _).map_err(|e| unusable("s3", bucket, &e))
}

/// A builder with the settings from the environment, except those that this program decides itself: everything here
/// relies on conditional writes.
fn builder_from_env(env: &EnvironmentVariables) -> AmazonS3Builder {
    let mut builder = AmazonS3Builder::new();
    for (key, value) in known::<AmazonS3ConfigKey>("AWS_", env) {
        match key {
            AmazonS3ConfigKey::Client(_)
            | AmazonS3ConfigKey::Bucket
            | AmazonS3ConfigKey::ConditionalPut
            | AmazonS3ConfigKey::SkipSignature
            | AmazonS3ConfigKey::Region
            | AmazonS3ConfigKey::DefaultRegion => {}
            key => builder = builder.with_config(key, value),
        }
    }
    builder
}
