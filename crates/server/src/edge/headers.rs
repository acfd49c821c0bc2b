//! Headers of every answer: cross-origin access, and no caching.

use axum::{
    extract::Request,
    http::{HeaderValue, Method, header},
    middleware::Next,
    response::Response,
};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

/// Web pages may call the API only from origins that the operator lists. Keys come in a header, so no answer depends on
/// credentials that a browser adds by itself.
pub(crate) fn cors(origins: &[String]) -> CorsLayer {
    let listed = origins.iter().map(|origin| origin.trim()).filter(|origin| !origin.is_empty());
    let allowed = match listed.clone().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(listed.filter_map(|origin| origin.parse::<HeaderValue>().ok())),
    };
    let methods = [Method::GET, Method::HEAD, Method::PUT, Method::PATCH, Method::POST, Method::DELETE];
    CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods(AllowMethods::list(methods))
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([header::CONTENT_DISPOSITION, header::HeaderName::from_static("x-ash-source")])
}

/// An answer is for one tenant at one time, so browsers and proxies must not cache it. Streams set `no-cache`
/// themselves.
pub(crate) async fn no_store(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
