//! What the server says became of a workspace. It is believed only as far as it does no harm: see `apply`.

use super::{Between, LARGEST_FILE};
use crate::{
    api::{Api, Failure, Result, encoded},
    commands::sessions::path,
};
use ash_model::Kind;
use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Changes {
    pub(super) files: Vec<Change>,
    /// How many could not be named.
    #[serde(default)]
    pub(super) unnamed: usize,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Change {
    pub(super) path: String,
    pub(super) change: How,
    /// What is there now; of something deleted, what was.
    #[serde(flatten)]
    pub(super) leaf: Leaf,
    /// Of something modified.
    pub(super) before: Option<Leaf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum How {
    Added,
    Modified,
    Deleted,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum Leaf {
    File { size: u64, mode: u32 },
    Link { target: String },
}

impl How {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            How::Added => "added",
            How::Modified => "modified",
            How::Deleted => "deleted",
        }
    }
}

impl Changes {
    /// What is to be fetched.
    pub(super) fn bytes(&self) -> u64 {
        let size = |change: &Change| match change.now() {
            Some(Leaf::File { size, .. }) => *size,
            Some(Leaf::Link { .. }) | None => 0,
        };
        self.files.iter().map(size).sum()
    }
}

impl Change {
    pub(super) fn before(&self) -> Option<&Leaf> {
        match self.change {
            How::Added => None,
            How::Modified => self.before.as_ref(),
            How::Deleted => Some(&self.leaf),
        }
    }

    pub(super) fn now(&self) -> Option<&Leaf> {
        match self.change {
            How::Added | How::Modified => Some(&self.leaf),
            How::Deleted => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Before,
    Now,
}

/// Where contents come from.
pub(super) trait Contents {
    async fn content(&self, path: &str, when: When) -> Result<Vec<u8>>;
}

/// A session's workspace, and the checkpoint its changes are counted from.
pub(super) struct Server<'a> {
    api: &'a Api,
    id: &'a str,
    workspace: String,
    from: u64,
    /// `None`: up to now.
    to: Option<u64>,
}

impl<'a> Server<'a> {
    pub(super) async fn of(api: &'a Api, id: &'a str) -> Result<Server<'a>> {
        Server::between(api, id, Between { from: None, to: None }).await
    }

    pub(super) async fn between(api: &'a Api, id: &'a str, between: Between) -> Result<Server<'a>> {
        let session = api.get(&path(id, "")).await?["session"].take();
        let from = between.from.or(session["config"]["base"].as_u64()).unwrap_or(0);
        let workspace = session["workspaceId"].as_str().unwrap_or_default().to_owned();
        Ok(Server { api, id, workspace, from, to: between.to })
    }

    pub(super) fn workspace(&self) -> &str {
        &self.workspace
    }

    /// What is new to somebody who has the files of this checkpoint; to whom nothing is known of, since the last push.
    pub(super) async fn changes_for(self, known: Option<u64>) -> Result<(Server<'a>, Changes)> {
        let Some(from) = known.filter(|known| *known != self.from) else {
            let changes = self.changes().await?;
            return Ok((self, changes));
        };
        let there = Server { from, workspace: self.workspace.clone(), ..self };
        match there.changes().await {
            Ok(changes) => Ok((there, changes)),
            Err(failure) if failure.kind == Kind::NotFound => {
                let changes = self.changes().await?;
                Ok((self, changes))
            }
            Err(failure) => Err(failure),
        }
    }

    pub(super) async fn raw(&self) -> Result<Value> {
        let to = self.to.map(|to| format!("?to={to}")).unwrap_or_default();
        self.api.get(&path(self.id, &format!("/checkpoints/{}/diff{to}", self.from))).await
    }

    pub(super) async fn changes(&self) -> Result<Changes> {
        serde_json::from_value(self.raw().await?).map_err(|_| {
            let remedy = "it may be newer or older than this program; `ash status` shows its version";
            Failure::new(
                Kind::Internal,
                format!("the server tells changes in a way that this program does not understand: {remedy}"),
            )
        })
    }
}

impl Contents for Server<'_> {
    async fn content(&self, file: &str, when: When) -> Result<Vec<u8>> {
        let name: Vec<String> = file.split('/').map(encoded).collect();
        let checkpoint = match when {
            When::Before => Some(self.from),
            When::Now => self.to,
        };
        let at = checkpoint.map(|number| format!("?checkpoint={number}")).unwrap_or_default();
        let url = path(self.id, &format!("/files/{}{at}", name.join("/")));
        let named = |failure: Failure| Failure { message: format!("{file}: {}", failure.message), ..failure };
        let mut response = self.api.send(self.api.request(Method::GET, &url)).await.map_err(named)?;
        let mut content = Vec::new();
        while let Some(bytes) = response.chunk().await.map_err(|error| self.api.unreachable(&error))? {
            content.extend_from_slice(&bytes);
            if content.len() as u64 > LARGEST_FILE {
                return Err(Failure::new(
                    Kind::TooLarge,
                    format!("{file}: the server sends more than it said"),
                ));
            }
        }
        Ok(content)
    }
}
