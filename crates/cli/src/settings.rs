//! Selects the server, in this order: flags, environment, saved configuration, local server.

use crate::api::{CliError, Result};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ClientSettings {
    /// URL of the server [default: the linked or the local one]
    #[arg(long, global = true, env = "ASH_SERVER_URL", value_name = "URL", help_heading = "Client")]
    pub(crate) server: Option<String>,
    /// Hidden: refuses keys as flags and names the variable
    #[arg(
        id = "refused_client_key",
        long = "api-key",
        global = true,
        hide = true,
        value_name = "KEY",
        value_parser = crate::args::NoKey
    )]
    pub(crate) refused_key: Option<Infallible>,
    /// The key for it
    #[arg(skip = std::env::var("ASH_API_KEY").ok())]
    pub(crate) key: Option<String>,
    /// Token of your lock, as `ash session lock` prints it
    #[arg(
        long,
        global = true,
        env = "ASH_LOCK",
        hide_env_values = true,
        value_name = "TOKEN",
        help_heading = "Client"
    )]
    pub(crate) lock: Option<String>,
    /// Print JSON
    #[arg(long, global = true, help_heading = "Client")]
    pub(crate) json: bool,
}

/// `~/.ash/config.json`, which `ash link` writes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SavedClientConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) api_key: Option<String>,
}

pub(crate) fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from)
}

/// The data directory of a local server.
pub(crate) fn data_dir() -> Option<PathBuf> {
    // Compose files leave variables empty; the server also treats that as unset.
    let named = std::env::var_os("ASH_DATA_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    named.or_else(|| home().map(|home| home.join(".ash")))
}

fn config_path() -> Option<PathBuf> {
    home().map(|home| home.join(".ash/config.json"))
}

impl SavedClientConfig {
    pub(crate) fn load() -> SavedClientConfig {
        let text = config_path().and_then(|path| fs::read(path).ok());
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    pub(crate) fn store(&self) -> Result<PathBuf> {
        let path = config_path().ok_or_else(|| {
            CliError::invalid("HOME is not set, so there is no place for the configuration")
        })?;
        let dir = path.parent().unwrap_or(&path);
        let failed = || CliError::from_io("cannot save the configuration");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed())?;
        let fresh = path.with_extension("new");
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        let mut file = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&fresh)
            .map_err(failed())?;
        file.write_all(&text).and_then(|()| fs::rename(&fresh, &path)).map_err(failed())?;
        Ok(path)
    }
}

/// The note that a running local server writes about itself.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RunningServer {
    pub(crate) pid: u32,
    pub(crate) url: String,
    pub(crate) version: String,
    /// Values by flag. Empty: the server is older than this field.
    #[serde(default)]
    pub(crate) settings: BTreeMap<String, String>,
    /// The model service, if the server has a key for it.
    #[serde(default)]
    pub(crate) models: Option<String>,
    /// Path of Claude Code's program.
    #[serde(default)]
    pub(crate) claude: Option<PathBuf>,
}

pub(crate) fn running_server() -> Option<RunningServer> {
    let info = fs::read(data_dir()?.join("server.json")).ok()?;
    let running: RunningServer = serde_json::from_slice(&info).ok()?;
    // A killed server leaves its note behind, but not its lock.
    is_locked(&data_dir()?).then_some(running)
}

/// Whether a server holds the data directory.
pub(crate) fn is_locked(data: &Path) -> bool {
    let lock = fs::File::open(data.join("ash.lock")).map(|file| file.try_lock_shared());
    matches!(lock, Ok(Err(fs::TryLockError::WouldBlock)))
}

impl ClientSettings {
    /// For the server at this address, without a key: the listener may belong to another user.
    pub(crate) fn without_key(url: String) -> ClientSettings {
        ClientSettings { server: Some(url), refused_key: None, key: None, lock: None, json: false }
    }

    /// `None`: no server is configured, and none runs here. A listener on the default port may belong to another user.
    pub(crate) fn server_url(&self) -> Option<String> {
        let url = self
            .server
            .clone()
            .or_else(|| SavedClientConfig::load().server_url)
            .or_else(|| running_server().map(|running| running.url));
        url.map(|url| url.trim_end_matches('/').to_owned())
    }

    /// The key file of the local server is sent only to the local server.
    pub(crate) fn api_key(&self) -> Option<String> {
        let saved = SavedClientConfig::load();
        let local = || {
            let url = self.server_url()?.replace("//localhost:", "//127.0.0.1:");
            let is_local = running_server().is_some_and(|running| running.url == url);
            let file = data_dir().filter(|_| is_local)?.join("initial-api-key");
            fs::read_to_string(file).ok().map(|key| key.trim().to_owned())
        };
        let linked = if self.server.is_none() { saved.api_key } else { None };
        self.key.clone().or(linked).or_else(local)
    }
}
