//! A path as somebody inside a sandbox would name it. It can name nothing else.

use serde::{Deserialize, Serialize};

const WORKSPACE: &str = "/workspace";
const HOME: &str = "/home/agent";
const LONGEST: usize = 1024;

/// Absolute, beneath the workspace or the agent's home, and plain: no `..` in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InnerPath(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    Workspace,
    Home,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be a path beneath {WORKSPACE} or {HOME} (or ~), or one relative to the workspace; without \"..\", at most {LONGEST} bytes"
)]
pub struct BadInnerPath;

impl InnerPath {
    pub fn parse(text: &str) -> Result<InnerPath, BadInnerPath> {
        if text.is_empty() || text.len() > LONGEST || text.chars().any(char::is_control) {
            return Err(BadInnerPath);
        }
        let absolute = match text.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{HOME}{rest}"),
            Some(_) => return Err(BadInnerPath),
            None if text.starts_with('/') => text.to_owned(),
            None => format!("{WORKSPACE}/{text}"),
        };
        let names: Vec<&str> = absolute.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
        let path = InnerPath(format!("/{}", names.join("/")));
        let plain = names.iter().all(|name| *name != ".." && name.len() <= 255);
        if plain && path.split().is_some() { Ok(path) } else { Err(BadInnerPath) }
    }

    fn split(&self) -> Option<(Root, &str)> {
        [(Root::Workspace, WORKSPACE), (Root::Home, HOME)].into_iter().find_map(|(root, prefix)| {
            let rest = self.0.strip_prefix(prefix)?;
            (rest.is_empty() || rest.starts_with('/')).then(|| (root, rest.trim_start_matches('/')))
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What it is beneath, and the rest, which is empty for the root itself.
    pub fn root(&self) -> (Root, &str) {
        self.split().expect("checked when it was made")
    }
}

impl TryFrom<String> for InnerPath {
    type Error = BadInnerPath;

    fn try_from(text: String) -> Result<InnerPath, BadInnerPath> {
        InnerPath::parse(&text)
    }
}

impl From<InnerPath> for String {
    fn from(path: InnerPath) -> String {
        path.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_beneath_its_root() {
        for (text, path, root, rest) in [
            ("src", "/workspace/src", Root::Workspace, "src"),
            ("./src//lib/", "/workspace/src/lib", Root::Workspace, "src/lib"),
            (".", "/workspace", Root::Workspace, ""),
            ("/workspace", "/workspace", Root::Workspace, ""),
            ("~/.config", "/home/agent/.config", Root::Home, ".config"),
            ("/home/agent", "/home/agent", Root::Home, ""),
        ] {
            let parsed = InnerPath::parse(text).expect(text);
            assert_eq!((parsed.as_str(), parsed.root()), (path, (root, rest)));
        }
        let long = "x/".repeat(600);
        for bad in
            ["", "..", "a/../b", "/etc", "/workspaces", "/home/agent2", "~root/x", "/", "a\0b", "a\nb", &long]
        {
            assert_eq!(InnerPath::parse(bad), Err(BadInnerPath), "{bad:?}");
        }
    }
}
