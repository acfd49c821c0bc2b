//! The only way to the network: every request of every store, and every request for credentials, goes through here. It
//! reads nothing from the process's environment, follows no redirects, and requests credentials from metadata services
//! only if no other source is configured.

use crate::bucket_error::TransportFailure;
use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::{
    ClientConfigKey, ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
        HttpService,
    },
};
use reqwest::{Client, NoProxy, Proxy, redirect::Policy};
use std::{
    error::Error,
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A metadata service is on the same machine, or does not exist.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether metadata services, which hand out credentials, may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetadataAccess {
    Ask,
    Never,
}

#[derive(Debug)]
pub(crate) struct BucketHttpConnector {
    pub(crate) metadata: MetadataAccess,
    /// A host that hands out credentials, in addition to the well-known ones.
    pub(crate) metadata_host: Option<String>,
    pub(crate) proxy: Option<String>,
    pub(crate) no_proxy: Option<String>,
}

impl HttpConnector for BucketHttpConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let plain = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        let client = self
            .client(plain)
            .map_err(|e| object_store::Error::Generic { store: "HTTP", source: Box::new(e) })?;
        Ok(HttpClient::new(BucketHttpService {
            client,
            metadata: self.metadata,
            metadata_host: self.metadata_host.clone(),
            has_answered: AtomicBool::new(false),
        }))
    }
}

impl BucketHttpConnector {
    fn client(&self, plain: bool) -> reqwest::Result<Client> {
        let builder = Client::builder()
            .no_proxy()
            // A signature is valid for one host. A redirect means that the bucket is in another region.
            .redirect(Policy::none())
            .referer(false)
            .https_only(!plain)
            .user_agent("ash")
            .connect_timeout(CONNECT_TIMEOUT);
        let builder = match &self.proxy {
            Some(url) => {
                let excluded = self.no_proxy.as_deref().and_then(NoProxy::from_string);
                builder.proxy(Proxy::https(url)?.no_proxy(excluded))
            }
            None => builder,
        };
        builder.build()
    }
}

#[derive(Debug)]
struct BucketHttpService {
    client: Client,
    metadata: MetadataAccess,
    metadata_host: Option<String>,
    has_answered: AtomicBool,
}

#[async_trait]
impl HttpService for BucketHttpService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let host = request.uri().host().unwrap_or_default().to_owned();
        if !is_metadata(&host) && self.metadata_host.as_deref() != Some(&host) {
            return self.send(request).await;
        }
        match self.metadata {
            MetadataAccess::Never => Err(HttpError::new(HttpErrorKind::Unknown, TransportFailure::Forbidden)),
            MetadataAccess::Ask => self.ask(request).await,
        }
    }
}

impl BucketHttpService {
    async fn ask(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Ok(Ok(response)) = tokio::time::timeout(METADATA_TIMEOUT, self.send(request)).await
            && response.status().is_success()
        {
            self.has_answered.store(true, Ordering::Relaxed);
            return Ok(response);
        }
        // A service that has answered before exists, so its failure is temporary.
        let mishap = if self.has_answered.load(Ordering::Relaxed) {
            TransportFailure::Broken
        } else {
            TransportFailure::NoCredentials
        };
        Err(HttpError::new(HttpErrorKind::Unknown, mishap))
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let url = head.uri.to_string().parse().map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
        let mut outgoing = reqwest::Request::new(head.method, url);
        *outgoing.headers_mut() = head.headers;
        *outgoing.body_mut() = Some(reqwest::Body::wrap(body));
        let response = self.client.execute(outgoing).await.map_err(failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = reqwest::Body::from(response).map_err(failed);
        let mut answer = HttpResponse::new(HttpResponseBody::new(body));
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        Ok(answer)
    }
}

/// Removes the address from the error: it may contain a token.
fn failed(error: reqwest::Error) -> HttpError {
    let error = error.without_url();
    let causes = || std::iter::successors(error.source(), |e| (*e).source());
    if error.is_builder() {
        HttpError::new(HttpErrorKind::Unknown, TransportFailure::Forbidden)
    } else if causes().any(|cause| cause.to_string().contains("certificate")) {
        HttpError::new(HttpErrorKind::Connect, TransportFailure::Untrusted)
    } else if error.is_timeout() {
        HttpError::new(HttpErrorKind::Timeout, error)
    } else if error.is_connect() {
        HttpError::new(HttpErrorKind::Connect, error)
    } else {
        HttpError::new(HttpErrorKind::Interrupted, error)
    }
}

/// Clouds put their metadata services at link-local addresses.
fn is_metadata(host: &str) -> bool {
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.is_link_local(),
        Ok(IpAddr::V6(address)) => {
            address.is_unicast_link_local() || address.segments()[..2] == [0xfd00, 0xec2]
        }
        Err(_) => host == "metadata.google.internal" || host == "metadata",
    }
}

#[cfg(test)]
mod tests {
    use super::is_metadata;

    #[test]
    fn addresses_that_give_out_credentials_are_known() {
        let known =
            ["169.254.169.254", "169.254.170.2", "[fd00:ec2::254]", "[fe80::1]", "metadata.google.internal"];
        assert!(known.into_iter().all(is_metadata));
        let others = ["127.0.0.1", "s3.eu-west-1.amazonaws.com", "169.253.169.254", "[fd00::1]", ""];
        assert!(!others.into_iter().any(is_metadata));
    }
}
