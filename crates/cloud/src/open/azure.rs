//! Opens containers of Azure Blob Storage with the settings that the environment has for it.

use super::{EnvironmentVariables, http_connector, is_plain, known, no_retries, options, unusable};
use crate::{
    bucket_error::{BucketError, BucketErrorCode},
    http::MetadataAccess,
    object_backend::ObjectBackend,
};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use std::sync::Arc;

pub(super) fn open(
    container: &str,
    env: &EnvironmentVariables,
) -> Result<Arc<dyn ObjectBackend>, BucketError> {
    let builder = builder_from_env(env);
    let is_set = |key: &AzureConfigKey| builder.get_config_value(key).is_some();
    if !is_set(&AzureConfigKey::AccountName) {
        let sentence =
            format!("az://{container} does not say in which account it is: set AZURE_STORAGE_ACCOUNT_NAME.");
        return Err(BucketError::new(BucketErrorCode::NoCredentials, sentence));
    }
    let credentials = [
        AzureConfigKey::AccessKey,
        AzureConfigKey::SasKey,
        AzureConfigKey::Token,
        AzureConfigKey::FederatedTokenFile,
        AzureConfigKey::ClientSecret,
    ];
    let metadata = if credentials.iter().any(is_set) { MetadataAccess::Never } else { MetadataAccess::Ask };
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    if metadata == MetadataAccess::Ask && is_plain(endpoint.as_deref()) {
        return Err(BucketError::without_credentials(&format!("az://{container}")));
    }
    let built = builder
        .with_container_name(container)
        .with_client_options(options(endpoint.as_deref()))
        .with_retry(no_retries())
        .with_http_connector(http_connector(metadata, env))
        .build();
    built.map(|store| Arc::new(store) as _).map_err(|e| unusable("az", container, &e))
}

/// A builder with the settings from the environment, except those that this program decides itself.
fn builder_from_env(env: &EnvironmentVariables) -> MicrosoftAzureBuilder {
    let mut builder = MicrosoftAzureBuilder::new();
    // The names that Azure's own tools use.
    for (name, key) in [
        ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
        ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
        ("IDENTITY_ENDPOINT", AzureConfigKey::MsiEndpoint),
    ] {
        if let Some(value) = env.get(name) {
            builder = builder.with_config(key, value);
        }
    }
    for (key, value) in known::<AzureConfigKey>("AZURE_", env) {
        match key {
            // The emulator setting implies a port that the operator did not choose.
            AzureConfigKey::UseEmulator
            | AzureConfigKey::Client(_)
            | AzureConfigKey::ContainerName
            | AzureConfigKey::SkipSignature => {}
            key => builder = builder.with_config(key, value),
        }
    }
    builder
}
