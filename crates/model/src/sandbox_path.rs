//! A path as a process in the sandbox sees it. It cannot name anything outside.

use serde::{Deserialize, Serialize};

const WORKSPACE: &str = "/workspace";
const HOME: &str = "/home/agent";
const MAX_PATH_BYTES: usize = 1024;

/// Absolute, within the workspace or the agent's home, and without `..`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxPath(String);

/// The two persistent trees of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxRoot {
    /// `/workspace`.
    Workspace,
    /// `/home/agent`.
    Home,
}

/// The text is not a path in one of these trees; the message names the valid forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be a path beneath {WORKSPACE} or {HOME} (or ~), or one relative to the workspace; without \"..\", at most {MAX_PATH_BYTES} bytes"
)]
pub struct BadSandboxPath;

impl SandboxPath {
    /// Parses a path as a process in the sandbox would write it; a relative path starts at the workspace.
    pub fn parse(text: &str) -> Result<SandboxPath, BadSandboxPath> {
        if text.is_empty() || text.len() > MAX_PATH_BYTES || text.chars().any(char::is_control) {
            return Err(BadSandboxPath);
        }
        let absolute = match text.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{HOME}{rest}"),
            Some(_) => return Err(BadSandboxPath),
            None if text.starts_with('/') => text.to_owned(),
            None => format!("{WORKSPACE}/{text}"),
        };
        let names: Vec<&str> = absolute.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
        let path = SandboxPath(format!("/{}", names.join("/")));
        let plain = names.iter().all(|name| *name != ".." && name.len() <= 255);
        if plain && path.split().is_some() { Ok(path) } else { Err(BadSandboxPath) }
    }

    fn split(&self) -> Option<(SandboxRoot, &str)> {
        [(SandboxRoot::Workspace, WORKSPACE), (SandboxRoot::Home, HOME)].into_iter().find_map(
            |(root, prefix)| {
                let rest = self.0.strip_prefix(prefix)?;
                (rest.is_empty() || rest.starts_with('/')).then(|| (root, rest.trim_start_matches('/')))
            },
        )
    }

    /// The whole path, from `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The root, and the rest of the path, which is empty for the root itself.
    pub fn root(&self) -> (SandboxRoot, &str) {
        self.split().expect("checked when it was made")
    }
}

impl TryFrom<String> for SandboxPath {
    type Error = BadSandboxPath;

    fn try_from(text: String) -> Result<SandboxPath, BadSandboxPath> {
        SandboxPath::parse(&text)
    }
}

impl From<SandboxPath> for String {
    fn from(path: SandboxPath) -> String {
        path.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_beneath_its_root() {
        for (text, path, root, rest) in [
            ("src", "/workspace/src", SandboxRoot::Workspace, "src"),
            ("./src//lib/", "/workspace/src/lib", SandboxRoot::Workspace, "src/lib"),
            (".", "/workspace", SandboxRoot::Workspace, ""),
            ("/workspace", "/workspace", SandboxRoot::Workspace, ""),
            ("~/.config", "/home/agent/.config", SandboxRoot::Home, ".config"),
            ("/home/agent", "/home/agent", SandboxRoot::Home, ""),
        ] {
            let parsed = SandboxPath::parse(text).expect(text);
            assert_eq!((parsed.as_str(), parsed.root()), (path, (root, rest)));
        }
        let long = "x/".repeat(600);
        for bad in
            ["", "..", "a/../b", "/etc", "/workspaces", "/home/agent2", "~root/x", "/", "a\0b", "a\nb", &long]
        {
            assert_eq!(SandboxPath::parse(bad), Err(BadSandboxPath), "{bad:?}");
        }
    }
}
