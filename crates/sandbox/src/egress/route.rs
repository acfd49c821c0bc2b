//! A parsed policy: the service to call, the headers to add, and the paths that lie beneath it. Pure.

use std::{path::PathBuf, sync::OnceLock};

use ash_model::ModelApiDialect;
use hyper::{
    Method, Uri,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use reqwest::{Client, Url};
use secrecy::ExposeSecret;

use super::{EgressPolicy, endpoint::ModelEndpoint, header_filter, refusal::EgressRefusal};

#[derive(Debug)]
pub(super) struct EgressRoute {
    base: Url,
    /// A Unix socket to use instead of the network.
    pub(super) socket: Option<PathBuf>,
    pub(super) public: bool,
    dialect: Option<ModelApiDialect>,
    /// Marked as sensitive, so that they are never printed.
    pub(super) headers: HeaderMap,
    /// Made by the first request. A new policy gets new connections.
    pub(super) client: OnceLock<Result<Client, EgressRefusal>>,
}

impl EgressRoute {
    /// The error is for the operator, and contains no value of a header.
    pub(super) fn new(policy: &EgressPolicy) -> Result<Self, String> {
        let (base, socket) = match policy.upstream.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => ("http://localhost", Some(PathBuf::from(path))),
            Some(_) => return Err("a unix: upstream needs an absolute path".to_owned()),
            None => (policy.upstream.as_str(), None),
        };
        let base = Url::parse(base).map_err(|e| format!("upstream is no URL: {e}"))?;
        match base.scheme() {
            "https" => {}
            "http" if is_loopback(&base) => {}
            "http" => return Err("an http: upstream must be on this machine; use https:".to_owned()),
            _ => return Err("an upstream is https:, http: on this machine, or unix:".to_owned()),
        }
        let plain = base.username().is_empty() && base.password().is_none();
        if !plain || base.query().is_some() || base.fragment().is_some() {
            return Err("an upstream has no user, query or fragment; keys belong into headers".to_owned());
        }
        let public = policy.public;
        if public && (socket.is_some() || base.scheme() != "https" || base.domain().is_none()) {
            return Err("an upstream that a client brings is https: with the name of a host".to_owned());
        }
        if base.path() != "/" {
            let plain =
                check_path(base.path()).map_err(|_| "the upstream's path is not a plain one".to_owned());
            plain?;
        }
        let (headers, dialect) = (headers(policy)?, policy.dialect);
        Ok(Self { base, socket, public, dialect, headers, client: OnceLock::new() })
    }

    /// The URL and the endpoint of a request from inside. The operator's key opens the whole service, but an agent may
    /// only call models.
    pub(super) fn admit(&self, method: &Method, target: &Uri) -> Result<(Url, ModelEndpoint), EgressRefusal> {
        let url = self.url(target)?;
        match ModelEndpoint::of(self.dialect, method, target.path()) {
            Some(endpoint) => Ok((url, endpoint)),
            None => Err(EgressRefusal::Endpoint(self.dialect)),
        }
    }

    fn url(&self, target: &Uri) -> Result<Url, EgressRefusal> {
        if target.scheme().is_some() || target.authority().is_some() {
            return Err(EgressRefusal::Target("it names a server"));
        }
        check_path(target.path())?;
        let base = self.base.path().trim_end_matches('/');
        let mut url = self.base.clone();
        url.set_path(&format!("{base}{}", target.path()));
        url.set_query(target.query());
        // The path was checked above; this checks the result of the URL's own normalization.
        let stays = url.origin() == self.base.origin() && url.path().starts_with(&format!("{base}/"));
        if stays { Ok(url) } else { Err(EgressRefusal::Target("it leads elsewhere")) }
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn headers(policy: &EgressPolicy) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &policy.headers {
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("header name {name:?}"))?;
        if !header_filter::may_be_added(parsed.as_str()) {
            return Err(format!("header {name:?} is not for a policy to set"));
        }
        let mut value = HeaderValue::from_str(value.expose_secret())
            .map_err(|_| format!("the value of header {name:?} has characters that no header can have"))?;
        value.set_sensitive(true);
        headers.insert(parsed, value);
    }
    Ok(headers)
}

/// Refuses paths that servers are known to parse in different ways, even if one result is harmless.
fn check_path(path: &str) -> Result<(), EgressRefusal> {
    let Some(rest) = path.strip_prefix('/') else {
        return Err(EgressRefusal::Target("it does not begin with /"));
    };
    if !path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') {
        return Err(EgressRefusal::Target("it has characters that a path does not have"));
    }
    if path.split('%').skip(1).any(hides) {
        return Err(EgressRefusal::Target("it hides a dot, a slash, a percent or a control character"));
    }
    let segments: Vec<_> = rest.split('/').collect();
    // The last segment may be empty: a path may end with a slash.
    if segments.iter().rev().skip(1).any(|segment| segment.is_empty()) {
        return Err(EgressRefusal::Target("it has //"));
    }
    let dots = |segment: &&str| matches!(segment.split(';').next(), Some("." | ".."));
    if segments.iter().any(dots) {
        return Err(EgressRefusal::Target("it has . or .. in it"));
    }
    Ok(())
}

/// Whether `code`, the text after a percent sign, is the escape of a character that changes the path.
fn hides(code: &str) -> bool {
    let byte = code.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    byte.is_none_or(|byte| byte.is_ascii_control() || matches!(byte, b'.' | b'/' | b'\\' | b'%'))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn policy(upstream: &str) -> EgressPolicy {
        let headers = BTreeMap::from([("x-api-key".to_owned(), "sesame".into())]);
        EgressPolicy { upstream: upstream.to_owned(), headers, public: false, dialect: None }
    }

    fn leads(upstream: &str, target: &str) -> Result<String, EgressRefusal> {
        let route = EgressRoute::new(&policy(upstream)).expect("a policy");
        let target = target.parse::<Uri>().map_err(|_| EgressRefusal::Target("no target"))?;
        route.url(&target).map(|url| url.to_string())
    }

    #[test]
    fn a_client_service_must_name_a_host() {
        for (upstream, fine) in [
            ("https://models.example", true),
            ("https://10.0.0.1", false),
            ("https://[::1]", false),
            ("http://localhost", false),
            ("unix:/run/docker.sock", false),
        ] {
            assert_eq!(
                EgressRoute::new(&EgressPolicy { public: true, ..policy(upstream) }).is_ok(),
                fine,
                "{upstream}"
            );
        }
    }

    #[test]
    fn a_path_is_put_beneath_the_upstreams() {
        let at = |target| leads("https://api.anthropic.com", target);
        assert_eq!(
            at("/v1/messages?beta=true"),
            Ok("https://api.anthropic.com/v1/messages?beta=true".into())
        );
        assert_eq!(at("/"), Ok("https://api.anthropic.com/".into()));
        assert_eq!(at("/v1/?a=//b/.."), Ok("https://api.anthropic.com/v1/?a=//b/..".into()));
        assert_eq!(
            leads("https://gate.example/claude/", "/model/a%3A0/invoke"),
            Ok("https://gate.example/claude/model/a%3A0/invoke".into())
        );
        assert_eq!(leads("unix:/run/model.sock", "/v1"), Ok("http://localhost/v1".into()));
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_refused() {
        for target in [
            "http://evil.example/v1",
            "//evil.example/v1",
            "/v1//evil.example",
            "/..",
            "/v1/../../secret",
            "/v1/./a",
            "/v1/..;/a",
            "/v1/%2e%2E/a",
            "/v1/.%2e/a",
            "/v1%2f..%2fa",
            "/v1/%5c..%5ca",
            "/v1/%252e%252e/a",
            "/v1/%0d%0aHost:evil",
            "/v1/%00",
            "/v1/%",
            "/v1/%zz",
            "/v1\\..\\a",
            "*",
            "evil.example:443",
        ] {
            assert!(leads("https://gate.example/claude", target).is_err(), "{target}");
        }
    }

    #[test]
    fn an_upstream_is_encrypted_or_on_this_machine() {
        let why = |upstream: &str| EgressRoute::new(&policy(upstream)).err().unwrap_or_default();
        for good in [
            "https://api.anthropic.com",
            "http://127.0.0.1:8080",
            "http://[::1]:1/x",
            "http://localhost",
            "unix:/a",
        ] {
            assert_eq!(why(good), "", "{good}");
        }
        for bad in [
            "http://api.anthropic.com",
            "http://127.0.0.1.evil.example",
            "ftp://127.0.0.1",
            "unix:relative",
            "https://user:pass@host",
            "https://host/?key=1",
            "https://host/#x",
            "api.anthropic.com",
            "",
        ] {
            assert_ne!(why(bad), "", "{bad}");
        }
    }

    #[test]
    fn nothing_prints_a_key_and_no_error_holds_it() {
        let route = EgressRoute::new(&policy("https://host")).expect("a policy");
        let text = format!("{route:?} {:?}", policy("https://host"));
        assert!(text.contains("x-api-key") && !text.contains("sesame"), "{text}");
        for (name, value) in
            [("x-api-key", "sesame\r\nx: y"), ("bad name", "sesame"), ("connection", "sesame")]
        {
            let headers = BTreeMap::from([(name.to_owned(), value.into())]);
            let why =
                EgressRoute::new(&EgressPolicy { headers, ..policy("https://host") }).expect_err("refused");
            assert!(why.contains(name) && !why.contains("sesame"), "{why}");
        }
    }
}
