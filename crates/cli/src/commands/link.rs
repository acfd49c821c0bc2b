//! `ash link`: another server from now on.

use crate::{
    api::{Api, Failure, Result},
    settings::{Saved, Settings},
};

pub(crate) async fn link(url: String, settings: &Settings) -> Result<()> {
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(Failure::invalid(format!("\"{url}\" must begin with http:// or https://")));
    }
    let api_key = settings.key.clone();
    let settings = Settings { server: Some(url.clone()), ..settings.clone() };
    let api = Api::new(&settings);
    api.get("/health").await?;
    api.get("/api/agents").await?;
    let path = Saved { server_url: Some(url.trim_end_matches('/').to_owned()), api_key }.store()?;
    eprintln!("linked to {url}; saved in {}", path.display());
    Ok(())
}

pub(crate) fn unlink() -> Result<()> {
    Saved::default().store()?;
    eprintln!("back to the local server");
    Ok(())
}
