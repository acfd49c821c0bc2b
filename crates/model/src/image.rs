//! Container image names, by the grammar of engines and registries: a deploy refuses names that would only fail when a
//! session starts.

const MAX_LENGTH: usize = 255;
const MAX_TAG: usize = 128;

/// `[registry[:port]/]path[:tag][@algorithm:digest]`.
pub(crate) fn is_reference(text: &str) -> bool {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    // A colon after the last slash starts a tag; a colon before it belongs to the registry's port.
    let name_ends = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match rest[name_ends..].split_once(':') {
        Some((last, tag)) => (&rest[..name_ends + last.len()], Some(tag)),
        None => (rest, None),
    };
    text.len() <= MAX_LENGTH && is_name(name) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest)
}

fn is_name(name: &str) -> bool {
    match name.split_once('/') {
        Some((first, path)) if is_registry(first) => is_host(first) && path.split('/').all(is_component),
        Some(_) | None => name.split('/').all(is_component),
    }
}

/// Only a registry has a dot, a port or capital letters in the first part of a name.
fn is_registry(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':']) || first.bytes().any(|b| b.is_ascii_uppercase())
}

fn is_host(host: &str) -> bool {
    let (host, port) = match host.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (host, None),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.split('.').all(is_label)
        && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

/// Letters and digits, separated by one '.', one or two '_', or any number of '-'.
fn is_component(part: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends_well = |b: Option<u8>| b.is_some_and(is_word);
    ends_well(part.bytes().next())
        && ends_well(part.bytes().last())
        && part
            .split(|c: char| c.is_ascii() && is_word(c as u8))
            .all(|between| matches!(between, "" | "." | "_" | "__") || between.bytes().all(|b| b == b'-'))
}

fn is_tag(tag: &str) -> bool {
    (1..=MAX_TAG).contains(&tag.len())
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        && !tag.starts_with(['.', '-'])
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let is_algorithm = |part: &str| {
        part.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && part.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    algorithm.split(['+', '.', '-', '_']).all(is_algorithm)
        && hex.len() >= 32
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_engines_accept_are_accepted() {
        let digest = format!("python@sha256:{}", "0a".repeat(32));
        for good in [
            "python",
            "python:3.13",
            "ash-agent",
            "a__b/c.d-e--f:V1_x",
            "registry.example:5000/team/tool:latest",
            "localhost/tool",
            "REGISTRY/tool",
            &digest,
        ] {
            assert!(is_reference(good), "{good}");
        }
    }

    #[test]
    fn names_that_engines_refuse_are_refused() {
        let long = "a".repeat(256);
        for bad in [
            "",
            "Python",
            "python:",
            "python:a:b",
            "python:.x",
            "a/B",
            "a//b",
            "a/",
            "/a",
            "../etc",
            "a b",
            "-x",
            "a..b",
            "a___b",
            "a.-b",
            "a@sha256:12",
            "a@",
            "host:port/tool",
            "-a.b/c",
            "a_",
            "\u{e4}",
            &long,
        ] {
            assert!(!is_reference(bad), "{bad:?}");
        }
    }
}
