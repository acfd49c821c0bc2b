//! Headers by which a proxy names the original client or target. A client that sends them itself could impersonate
//! another one.

const EXACT: [&str; 14] = [
    "cdn-loop",
    "client-ip",
    "cluster-client-ip",
    "forwarded",
    "true-client-ip",
    "via",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-forwarded",
    "x-host",
    "x-originating-ip",
    "x-remote-addr",
    "x-remote-ip",
    "x-remote-user",
];
/// Prefixes of header names.
const PREFIXES: [&str; 10] = [
    "cf-connecting-",
    "fastly-client-",
    "fly-client-",
    "wl-proxy-",
    "x-appengine-",
    "x-azure-",
    "x-envoy-",
    "x-forwarded-",
    "x-original-",
    "x-real-",
];

/// The name in lower case and with `-` for `_`, as servers see it that turn headers into variables.
pub fn normalized_header_name(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// Whether a header of this name carries the original client or target of a proxy.
pub fn is_forwarding_header(name: &str) -> bool {
    let name = normalized_header_name(name);
    EXACT.contains(&name.as_str()) || PREFIXES.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarding_headers_are_recognized_in_every_spelling() {
        for name in [
            "Forwarded",
            "Via",
            "X-Forwarded-For",
            "x_forwarded_for",
            "X_Forwarded-Host",
            "x-forwarded",
            "x-real-ip",
            "X_REAL_IP",
            "x-client-ip",
            "true-client-ip",
            "cf-connecting-ip",
            "x-original-host",
            "x-original-forwarded-for",
            "x-host",
        ] {
            assert!(is_forwarding_header(name), "{name}");
        }
        for name in ["host", "content-type", "x-api-key", "anthropic-beta", "user-agent", "x-stainless-os"] {
            assert!(!is_forwarding_header(name), "{name}");
        }
    }
}
