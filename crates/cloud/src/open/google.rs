//! Opens buckets of Google Cloud Storage with the settings that the environment has for it.

use super::{EnvironmentVariables, first, http_connector, is_plain, known, no_retries, options};
use crate::{
    bucket_error::{BucketError, BucketErrorCode},
    http::MetadataAccess,
    object_backend::ObjectBackend,
};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use std::sync::Arc;

pub(super) fn open(bucket: &str, env: &EnvironmentVariables) -> Result<Arc<dyn ObjectBackend>, BucketError> {
    let emulator = first(&["STORAGE_EMULATOR_HOST"], env).map(|host| match host.contains("://") {
        true => host.trim_end_matches('/').to_owned(),
        false => format!("http://{host}"),
    });
    let base = emulator.as_deref().or_else(|| first(&["GOOGLE_BASE_URL"], env));
    let mut builder = GoogleCloudStorageBuilder::new().with_bucket_name(bucket);
    if let Some(base) = base {
        builder = builder.with_base_url(base);
    }
    // An emulator gets a fixed token: it must not see real credentials, and without any token the store would ask the
    // metadata service.
    let fixed = (emulator.is_some() || is_plain(base)).then_some("emulator");
    let (builder, metadata) = match first(&["GOOGLE_BEARER_TOKEN"], env).or(fixed) {
        Some(token) => (builder.with_bearer_token(token), MetadataAccess::Never),
        None => with_credentials(builder, env),
    };
    let built = builder
        .with_client_options(options(base))
        .with_retry(no_retries())
        .with_http_connector(http_connector(metadata, env))
        .build();
    // The error omits the reason, which may quote part of a key.
    built.map(|store| Arc::new(store) as _).map_err(|_| {
        let sentence = "Google's credentials cannot be read: GOOGLE_APPLICATION_CREDENTIALS and \
                        GOOGLE_SERVICE_ACCOUNT are paths of JSON files, GOOGLE_SERVICE_ACCOUNT_KEY is the JSON itself.";
        BucketError::new(BucketErrorCode::NoCredentials, sentence)
    })
}

/// Credentials from the environment, else those that `gcloud` stored in the home directory, else the instance's.
fn with_credentials(
    mut builder: GoogleCloudStorageBuilder,
    env: &EnvironmentVariables,
) -> (GoogleCloudStorageBuilder, MetadataAccess) {
    let mut metadata = MetadataAccess::Ask;
    for (key, value) in known::<GoogleConfigKey>("GOOGLE_", env) {
        use GoogleConfigKey::{ApplicationCredentials, ServiceAccount, ServiceAccountKey};
        if matches!(key, ApplicationCredentials | ServiceAccount | ServiceAccountKey) {
            builder = builder.with_config(key, value);
            metadata = MetadataAccess::Never;
        }
    }
    let home =
        env.get("HOME").map(|home| format!("{home}/.config/gcloud/application_default_credentials.json"));
    match home.filter(|path| metadata == MetadataAccess::Ask && std::path::Path::new(path).exists()) {
        Some(path) => (builder.with_application_credentials(path), MetadataAccess::Never),
        None => (builder, metadata),
    }
}
