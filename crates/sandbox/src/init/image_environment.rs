//! The image's environment for processes inside, as the default beneath their own environment, and the loader that
//! starts our program there.

use std::collections::BTreeMap;

use crate::{confine, frame::ProcessSpec};

/// These belong to the container and to its init, not to the image.
const NOT_OURS: [&str; 3] = ["HOME", "HOSTNAME", "TERM"];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ImageEnvironment {
    env: BTreeMap<String, String>,
    prefix: Vec<String>,
}

impl ImageEnvironment {
    /// In a container the init's own environment is that of its image.
    pub(super) fn new(prefix: Vec<String>) -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let env = std::env::vars_os().filter_map(text).filter(|(name, _)| !NOT_OURS.contains(&name.as_str()));
        Self { env: env.collect(), prefix }
    }

    pub(super) fn with_image_environment(&self, mut start: ProcessSpec) -> ProcessSpec {
        for (name, value) in &self.env {
            match start.env.get_mut(name) {
                None => drop(start.env.insert(name.clone(), value.clone())),
                Some(path) if name == "PATH" => *path = joined(value, path),
                Some(_) => {}
            }
        }
        if start.argv.first().is_some_and(|program| program == confine::EXE) {
            start.argv.splice(0..0, self.prefix.iter().cloned());
        }
        start
    }
}

/// The image's own directories come first, in their order.
fn joined(own: &str, more: &str) -> String {
    let new = more.split(':').filter(|dir| !own.split(':').any(|known| known == *dir));
    own.split(':').chain(new).filter(|dir| !dir.is_empty()).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(argv: &[&str]) -> ProcessSpec {
        ProcessSpec {
            process: 1,
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            env: BTreeMap::from([("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8")].map(owned)),
            cwd: "/workspace".into(),
            raw: false,
            stdin: true,
        }
    }

    fn owned((name, value): (&str, &str)) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn an_images_variables_yield_to_the_process_but_its_path_comes_first() {
        let env = [("PATH", "/usr/local/go/bin:/usr/sbin:/usr/bin"), ("LANG", "de_DE"), ("GOPATH", "/go")]
            .map(owned);
        let image = ImageEnvironment { env: env.into(), prefix: vec!["/.ash/lib/ld".to_owned()] };
        let dressed = image.with_image_environment(start(&["go"]));
        let expected =
            [("PATH", "/usr/local/go/bin:/usr/sbin:/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("GOPATH", "/go")]
                .map(owned);
        assert_eq!((dressed.argv, dressed.env), (vec!["go".to_owned()], expected.into()));
        let own = image.with_image_environment(start(&["/.ash/ash", "builtin-agent"]));
        assert_eq!(own.argv, ["/.ash/lib/ld", "/.ash/ash", "builtin-agent"]);
        assert_eq!(
            ImageEnvironment::default().with_image_environment(start(&["/.ash/ash"])),
            start(&["/.ash/ash"])
        );
    }
}
