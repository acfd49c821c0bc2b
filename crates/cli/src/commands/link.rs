//! `ash link`: selects another server for all later commands.

use crate::{
    api::{ApiClient, CliError, Result},
    settings::{ClientSettings, SavedClientConfig},
};

pub(crate) async fn link(url: String, settings: &ClientSettings) -> Result<()> {
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(CliError::invalid(format!("\"{url}\" must begin with http:// or https://")));
    }
    let api_key = settings.key.clone();
    let settings = ClientSettings { server: Some(url.clone()), ..settings.clone() };
    let api = ApiClient::new(&settings);
    api.get("/health").await?;
    api.get("/api/agents").await?;
    let path =
        SavedClientConfig { server_url: Some(url.trim_end_matches('/').to_owned()), api_key }.store()?;
    eprintln!("linked to {url}; saved in {}", path.display());
    Ok(())
}

pub(crate) fn unlink() -> Result<()> {
    SavedClientConfig::default().store()?;
    eprintln!("back to the local server");
    Ok(())
}
