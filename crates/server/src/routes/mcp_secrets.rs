//! Secrets in `mcpServers`: removed from what a client sends before anything is stored or shown.

use super::session_options::SessionOptionsPatch;
use crate::problem::{ApiProblem, ApiResult};
use ash_model::{
    SessionOptions,
    secrets::{BadSecrets, MASK, extract_secrets},
};
use ash_store::SecretEnv;
use secrecy::ExposeSecret;
use std::collections::BTreeMap;

/// Secrets of the session before a change, by JSON pointer.
#[derive(Default)]
pub(super) struct StoredMcpSecrets {
    values: BTreeMap<String, String>,
    /// An older version of ash stored them in the options. Any change moves them to the secrets.
    were_in_options: bool,
}

impl StoredMcpSecrets {
    /// Removes the secrets that `before` still has in clear text.
    pub(super) fn take_from_options(
        before: &mut SessionOptions,
        stored: SecretEnv,
    ) -> ApiResult<StoredMcpSecrets> {
        let stored = stored.expose();
        let servers = before.mcp_servers.as_mut().and_then(|servers| servers.as_object_mut());
        let mut values = servers.map(extract_secrets).transpose().map_err(refused)?.unwrap_or_default();
        let were_in_options = values.values().any(|value| value != MASK);
        // Keeps only secrets for which the options still have a mask. The others belong to removed servers.
        values.retain(|at, value| value != MASK || stored.contains_key(at));
        for (at, value) in &mut values {
            if let Some(secret) = stored.get(at).filter(|_| value == MASK) {
                value.clone_from(secret);
            }
        }
        Ok(StoredMcpSecrets { values, were_in_options })
    }

    pub(super) fn size(&self) -> usize {
        self.values.iter().map(|(at, value)| at.len() + value.len()).sum()
    }
}

/// The size of these secrets in bytes, as quotas count them.
pub(super) fn size(secrets: &SecretEnv) -> usize {
    secrets.0.iter().map(|(at, value)| at.len() + value.expose_secret().len()).sum()
}

impl SessionOptionsPatch {
    /// The new secrets of the session; `None`: unchanged.
    pub(super) fn secrets(&mut self, known: StoredMcpSecrets) -> ApiResult<Option<SecretEnv>> {
        let Some(servers) = &mut self.mcp_servers else {
            return Ok(known.were_in_options.then(|| SecretEnv::from_plain(known.values)));
        };
        let mut given = extract_secrets(servers).map_err(refused)?;
        for (at, value) in given.iter_mut().filter(|(_, value)| *value == MASK) {
            let kept = known.values.get(at).ok_or_else(|| unknown(at))?;
            value.clone_from(kept);
        }
        // Identical secrets change nothing, so the agent need not restart.
        let same = given == known.values && !known.were_in_options;
        Ok((!same).then(|| SecretEnv::from_plain(given)))
    }
}

fn refused(error: BadSecrets) -> ApiProblem {
    ApiProblem::invalid("invalid_body", error.to_string())
}

fn unknown(at: &str) -> ApiProblem {
    let error = format!(
        "{at} is \"{MASK}\", which leaves a secret as it is, but there is none at this place: send its value"
    );
    ApiProblem::invalid("invalid_body", error)
}
