//! The host names under which the server answers. A web page can point its own name at 127.0.0.1 and then read what a
//! server there answers (DNS rebinding). A server that only this machine reaches therefore answers only to this
//! machine's names, and to those that the operator lists for a reverse proxy.

use crate::{
    app::AppState,
    problem::{ApiProblem, ApiResult},
};
use ash_model::FailureKind;
use axum::{
    extract::{Request, State},
    http::header::HOST,
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::net::IpAddr;

#[derive(Debug, Clone)]
pub(crate) enum AllowedHosts {
    Any,
    /// Lower-case, without ports. Addresses and `localhost` are always allowed: no page from elsewhere can be served
    /// under them.
    Listed(Vec<String>),
}

impl AllowedHosts {
    pub(crate) fn new(bound: IpAddr, listed: &[String]) -> AllowedHosts {
        let names: Vec<String> =
            listed.iter().map(|name| host_name(name.trim())).filter(|name| !name.is_empty()).collect();
        match names.is_empty() && !bound.is_loopback() {
            true => AllowedHosts::Any,
            false => AllowedHosts::Listed(names),
        }
    }

    fn allows(&self, host: &str) -> bool {
        let AllowedHosts::Listed(names) = self else { return true };
        let name = host_name(host);
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        address.is_ok() || name == "localhost" || names.contains(&name)
    }

    fn check(&self, host: &str) -> ApiResult<()> {
        if self.allows(host) {
            return Ok(());
        }
        let shown: String = host.chars().filter(|c| c.is_ascii_graphic()).take(100).collect();
        let error = format!(
            "This server does not answer under the name \"{shown}\". If a reverse proxy uses it, add it to ASH_ALLOWED_HOSTS"
        );
        Err(ApiProblem::new(FailureKind::Forbidden, "host_not_allowed", error))
    }
}

/// Without port and final dot, in lower case.
fn host_name(host: &str) -> String {
    let name = match host.starts_with('[') {
        true => host.split_inclusive(']').next().unwrap_or(host),
        false => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

pub(crate) async fn check_host(State(app): State<AppState>, request: Request, next: Next) -> Response {
    // Checks every name in the request: in its first line, and in each Host header.
    let line = request.uri().host();
    let headers = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or("?"));
    let checked = line.into_iter().chain(headers).try_for_each(|host| app.hosts.check(host));
    match checked {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_server_on_loopback_answers_under_its_own_and_listed_names() {
        let hosts =
            AllowedHosts::new(LOOPBACK, &[" Ash.Example.com ".to_owned(), "b.example:8443".to_owned()]);
        let own = ["localhost", "localhost:4100", "127.0.0.1:1", "[::1]:80", "[::1]", "10.1.2.3"];
        let listed = ["ash.example.com", "ASH.EXAMPLE.COM.:443", "b.example"];
        for good in own.into_iter().chain(listed) {
            assert!(hosts.allows(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "evil.example:4100",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "2130706433",
        ] {
            assert!(!hosts.allows(bad), "{bad}");
        }
    }

    #[test]
    fn elsewhere_every_name_is_good_unless_some_are_listed() {
        let everywhere = IpAddr::from([0, 0, 0, 0]);
        assert!(AllowedHosts::new(everywhere, &[String::new()]).allows("anything.example"));
        let listed = AllowedHosts::new(everywhere, &["a.example".to_owned()]);
        assert!(listed.allows("a.example") && !listed.allows("anything.example"));
    }
}
