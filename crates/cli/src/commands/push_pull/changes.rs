//! The changes of a workspace as the server reports them. They are untrusted input: see `apply`.

use super::{CheckpointRange, LARGEST_FILE};
use crate::{
    api::{ApiClient, CliError, Result, percent_encode},
    commands::sessions::path,
};
use ash_model::FailureKind;
use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct WorkspaceDiff {
    pub(super) files: Vec<WorkspaceChange>,
    /// Number of changes whose names cannot be sent.
    #[serde(default)]
    pub(super) unnamed: usize,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct WorkspaceChange {
    pub(super) path: String,
    pub(super) change: WorkspaceChangeKind,
    /// The current entry; for a deletion, the previous one.
    #[serde(flatten)]
    pub(super) entry: WorkspaceEntry,
    /// Only for a modification.
    pub(super) before: Option<WorkspaceEntry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum WorkspaceChangeKind {
    Added,
    Modified,
    Deleted,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum WorkspaceEntry {
    File { size: u64, mode: u32 },
    Link { target: String },
}

impl WorkspaceChangeKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            WorkspaceChangeKind::Added => "added",
            WorkspaceChangeKind::Modified => "modified",
            WorkspaceChangeKind::Deleted => "deleted",
        }
    }
}

impl WorkspaceDiff {
    /// Bytes to fetch.
    pub(super) fn bytes(&self) -> u64 {
        let size = |change: &WorkspaceChange| match change.now() {
            Some(WorkspaceEntry::File { size, .. }) => *size,
            Some(WorkspaceEntry::Link { .. }) | None => 0,
        };
        self.files.iter().map(size).sum()
    }
}

impl WorkspaceChange {
    pub(super) fn before(&self) -> Option<&WorkspaceEntry> {
        match self.change {
            WorkspaceChangeKind::Added => None,
            WorkspaceChangeKind::Modified => self.before.as_ref(),
            WorkspaceChangeKind::Deleted => Some(&self.entry),
        }
    }

    pub(super) fn now(&self) -> Option<&WorkspaceEntry> {
        match self.change {
            WorkspaceChangeKind::Added | WorkspaceChangeKind::Modified => Some(&self.entry),
            WorkspaceChangeKind::Deleted => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiffSide {
    Before,
    Now,
}

/// Source of file contents.
pub(super) trait ContentSource {
    async fn content(&self, path: &str, when: DiffSide) -> Result<Vec<u8>>;
}

/// A session's workspace, and the checkpoint from which its changes are counted.
pub(super) struct ServerWorkspace<'a> {
    api: &'a ApiClient,
    id: &'a str,
    workspace: String,
    from: u64,
    /// `None`: the current files.
    to: Option<u64>,
}

impl<'a> ServerWorkspace<'a> {
    pub(super) async fn of(api: &'a ApiClient, id: &'a str) -> Result<ServerWorkspace<'a>> {
        ServerWorkspace::between(api, id, CheckpointRange { from: None, to: None }).await
    }

    pub(super) async fn between(
        api: &'a ApiClient,
        id: &'a str,
        between: CheckpointRange,
    ) -> Result<ServerWorkspace<'a>> {
        let session = api.get(&path(id, "")).await?["session"].take();
        let from = between.from.or(session["config"]["base"].as_u64()).unwrap_or(0);
        let workspace = session["workspaceId"].as_str().unwrap_or_default().to_owned();
        Ok(ServerWorkspace { api, id, workspace, from, to: between.to })
    }

    pub(super) fn workspace(&self) -> &str {
        &self.workspace
    }

    /// Changes for a caller that has the files of checkpoint `known`; if it is `None`, changes since the last push.
    pub(super) async fn changes_since(
        self,
        known: Option<u64>,
    ) -> Result<(ServerWorkspace<'a>, WorkspaceDiff)> {
        let Some(from) = known.filter(|known| *known != self.from) else {
            let changes = self.changes().await?;
            return Ok((self, changes));
        };
        let there = ServerWorkspace { from, workspace: self.workspace.clone(), ..self };
        match there.changes().await {
            Ok(changes) => Ok((there, changes)),
            Err(failure) if failure.kind == FailureKind::NotFound => {
                let changes = self.changes().await?;
                Ok((self, changes))
            }
            Err(failure) => Err(failure),
        }
    }

    pub(super) async fn fetch_json(&self) -> Result<Value> {
        let to = self.to.map(|to| format!("?to={to}")).unwrap_or_default();
        self.api.get(&path(self.id, &format!("/checkpoints/{}/diff{to}", self.from))).await
    }

    pub(super) async fn changes(&self) -> Result<WorkspaceDiff> {
        serde_json::from_value(self.fetch_json().await?).map_err(|_| {
            let remedy = "it may be newer or older than this program; `ash status` shows its version";
            CliError::new(
                FailureKind::Internal,
                format!("this program does not understand the server's format of changes: {remedy}"),
            )
        })
    }
}

impl ContentSource for ServerWorkspace<'_> {
    async fn content(&self, file: &str, when: DiffSide) -> Result<Vec<u8>> {
        let name: Vec<String> = file.split('/').map(percent_encode).collect();
        let checkpoint = match when {
            DiffSide::Before => Some(self.from),
            DiffSide::Now => self.to,
        };
        let at = checkpoint.map(|number| format!("?checkpoint={number}")).unwrap_or_default();
        let url = path(self.id, &format!("/files/{}{at}", name.join("/")));
        let named =
            |failure: CliError| CliError { message: format!("{file}: {}", failure.message), ..failure };
        let mut response = self.api.send(self.api.request(Method::GET, &url)).await.map_err(named)?;
        let mut content = Vec::new();
        while let Some(bytes) = response.chunk().await.map_err(|error| self.api.unreachable(&error))? {
            content.extend_from_slice(&bytes);
            if content.len() as u64 > LARGEST_FILE {
                return Err(CliError::new(
                    FailureKind::TooLarge,
                    format!("{file}: the server sends more than it announced"),
                ));
            }
        }
        Ok(content)
    }
}
