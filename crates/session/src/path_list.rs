//! Paths for a receipt: the first few by name, the rest as a number. Bounded, because a sandbox chooses how many paths
//! there are and how long their names are.

use std::fmt;

/// How many paths are named.
const MAX_NAMED: usize = 20;
/// The most characters of each path.
const MAX_PATH_CHARS: usize = 200;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PathList {
    named: Vec<String>,
    count: u64,
}

impl PathList {
    /// Adds a path. One beneath `workspace` is shown as it is, one beneath `home` with `~/` before it.
    pub(crate) fn add(&mut self, root: &str, path: &[u8]) {
        self.count += 1;
        if self.named.len() < MAX_NAMED {
            let path = String::from_utf8_lossy(path);
            let short: String = path.chars().take(MAX_PATH_CHARS).collect();
            let more = if short.len() < path.len() { "…" } else { "" };
            let root = if root == "home" { "~/" } else { "" };
            self.named.push(format!("{root}{short}{more}"));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for PathList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named.join(", "))?;
        match self.count - self.named.len() as u64 {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_there_are_the_list_stays_short() {
        let mut list = PathList::default();
        assert!(list.is_empty());
        list.add("workspace", b"src/main.rs");
        list.add("home", b".bashrc");
        assert_eq!(list.to_string(), "src/main.rs, ~/.bashrc");
        (0..1_000_000).for_each(|_| list.add("workspace", &[b'x'; 4000]));
        let told = list.to_string();
        assert!(told.len() < 5000 && told.ends_with("x… and 999982 more"), "{told}");
    }
}
