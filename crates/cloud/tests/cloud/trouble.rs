//! The error messages when a bucket does not work, from real answers of servers.

use crate::{
    scripted::{Scripted, answer, error},
    servers::environment,
};
use ash_cloud::{Bucket, BucketError, BucketErrorCode};
use std::collections::BTreeMap;
use tokio::io::AsyncReadExt;

const SECRETS: [&str; 4] =
    ["the-secret-key", "the-session-token", "the-sas-signature", "dGhlLWF6dXJlLWtleQ=="];

async fn check(url: &str, env: &BTreeMap<String, String>) -> BucketError {
    let found = match Bucket::open(url, env) {
        Ok(bucket) => bucket.check().await,
        Err(trouble) => Err(trouble),
    };
    let trouble = found.expect_err("it does not work");
    let shown = format!("{trouble} {trouble:?}");
    assert!(SECRETS.iter().all(|secret| !shown.contains(secret)), "{shown}");
    trouble
}

/// The error when S3 answers every request like this.
async fn trouble_after(reply: Vec<u8>) -> BucketError {
    let server = Scripted::start(move |_, _| reply.clone()).await;
    check("s3://shelf", &server.as_s3()).await
}

#[tokio::test]
async fn a_missing_bucket() {
    let trouble = trouble_after(error(404, "NoSuchBucket", "The specified bucket does not exist")).await;
    assert_eq!(trouble.to_string(), "s3://shelf does not exist: create it, or correct its name.");
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::BucketMissing, false));
}

#[tokio::test]
async fn no_permission() {
    let trouble = trouble_after(error(403, "AccessDenied", "Access Denied")).await;
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::AccessDenied, false));
    assert!(trouble.message.contains("HTTP 403, AccessDenied, Access Denied"), "{trouble}");
}

#[tokio::test]
async fn a_wrong_key() {
    for code in ["InvalidAccessKeyId", "SignatureDoesNotMatch"] {
        // Real S3 repeats the request in its error, including the token.
        let body = format!(
            "<Error><Code>{code}</Code><Message>It does not match.</Message><CanonicalRequest>PUT\n\n\
             x-amz-security-token:the-session-token</CanonicalRequest></Error>"
        );
        let trouble = trouble_after(answer(403, "", &body)).await;
        assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::WrongKey, false), "{trouble}");
    }
}

#[tokio::test]
async fn an_expired_token() {
    let trouble = trouble_after(error(400, "ExpiredToken", "The provided token has expired.")).await;
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::Expired, false), "{trouble}");
}

#[tokio::test]
async fn a_clock_that_is_off() {
    let trouble = trouble_after(error(403, "RequestTimeTooSkewed", "The difference is too large.")).await;
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::ClockSkew, false), "{trouble}");
}

#[tokio::test]
async fn another_region() {
    let malformed = "<Error><Code>AuthorizationHeaderMalformed</Code><Message>The region 'us-east-1' is wrong; \
                     expecting 'eu-west-3'</Message><Region>eu-west-3</Region></Error>";
    let elsewhere = "Location: https://shelf.s3.eu-west-3.amazonaws.com/\r\n";
    for reply in [answer(400, "", malformed), answer(301, "", ""), answer(307, elsewhere, "")] {
        let trouble = trouble_after(reply).await;
        assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::WrongRegion, false), "{trouble}");
        assert!(trouble.message.contains("ASH_S3_REGION"), "{trouble}");
    }
    assert!(trouble_after(answer(400, "", malformed)).await.message.contains("eu-west-3"));
}

#[tokio::test]
async fn no_space() {
    for reply in [error(507, "InsufficientStorage", "Full."), answer(507, "", "")] {
        let trouble = trouble_after(reply).await;
        assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::NoSpace, false), "{trouble}");
    }
}

#[tokio::test]
async fn too_many_requests() {
    for reply in [error(503, "SlowDown", "Please reduce your request rate."), answer(429, "", "")] {
        let trouble = trouble_after(reply).await;
        assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::Throttled, true), "{trouble}");
    }
}

#[tokio::test]
async fn a_server_that_fails() {
    for reply in [error(500, "InternalError", "We failed."), answer(502, "", "<html>"), answer(408, "", "")] {
        let trouble = trouble_after(reply).await;
        assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::Other, true), "{trouble}");
    }
    let trouble = trouble_after(error(400, "SomethingNew", "Who knows.")).await;
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::Other, false), "{trouble}");
}

#[tokio::test]
async fn no_server_listens() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let env = environment(&[
        ("AWS_ENDPOINT_URL_S3", &url),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "the-secret-key"),
    ]);
    let trouble = check("s3://shelf/some/where", &env).await;
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::Unreachable, true));
    assert!(
        trouble.message.starts_with("s3://shelf/some/where cannot be reached (Connection refused"),
        "{trouble}"
    );
}

#[tokio::test]
async fn no_credentials() {
    // In place of the instance metadata service. It gives out no credentials.
    let server = Scripted::start(|_, _| answer(404, "", "")).await;
    let env = environment(&[("AWS_METADATA_ENDPOINT", &server.url)]);
    let trouble = check("s3://shelf", &env).await;
    assert_eq!((trouble.code, trouble.is_transient), (BucketErrorCode::NoCredentials, false), "{trouble}");
    assert!(trouble.message.contains("AWS_ACCESS_KEY_ID"), "{trouble}");
    assert!(server.asked()[0].starts_with("PUT /latest/api/token"), "{:?}", server.asked());

    // A plain `http` address is no cloud, so the check asks no metadata service.
    let env = environment(&[
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
    ]);
    for url in ["s3://shelf", "az://shelf"] {
        let trouble = Bucket::open(url, &env).expect_err("no credentials");
        assert_eq!(
            (trouble.code, trouble.is_transient),
            (BucketErrorCode::NoCredentials, false),
            "{trouble}"
        );
    }

    let trouble = check("az://shelf", &BTreeMap::new()).await;
    assert_eq!(trouble.code, BucketErrorCode::NoCredentials);
    assert!(trouble.message.contains("AZURE_STORAGE_ACCOUNT_NAME"), "{trouble}");

    let env = environment(&[("HOME", "/nonexistent"), ("AWS_PROFILE", "work")]);
    let trouble = check("s3://shelf", &env).await;
    assert_eq!(trouble.code, BucketErrorCode::NoCredentials);
    assert!(trouble.message.contains("/nonexistent/.aws/credentials"), "{trouble}");
}

#[tokio::test]
async fn azure_in_its_own_words() {
    let signed = [("AZURE_STORAGE_SAS_TOKEN", "sv=2020&sig=the-sas-signature")];
    let keyed = [("AZURE_STORAGE_ACCOUNT_KEY", "dGhlLWF6dXJlLWtleQ==")];
    let failed = |detail: &str| {
        let body = format!(
            "<Error><Code>AuthenticationFailed</Code><Message>Server failed to authenticate the request.\nTime:\
             2026</Message><AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail></Error>"
        );
        answer(403, "", &body)
    };
    let cases = [
        (&signed, failed("Signed expiry time has passed: it has expired"), BucketErrorCode::Expired, false),
        (&signed, failed("Signature not valid in the specified time frame"), BucketErrorCode::Expired, false),
        (&keyed, failed("Request date header too old: 'Mon'"), BucketErrorCode::ClockSkew, false),
        (&keyed, failed("The MAC signature found does not match"), BucketErrorCode::WrongKey, false),
        (&keyed, error(404, "ContainerNotFound", "No."), BucketErrorCode::BucketMissing, false),
        (&keyed, error(403, "AuthorizationPermissionMismatch", "No."), BucketErrorCode::AccessDenied, false),
        (&keyed, error(503, "ServerBusy", "No."), BucketErrorCode::Throttled, true),
    ];
    for (credentials, reply, code, passing) in cases {
        let server = Scripted::start(move |_, _| reply.clone()).await;
        let mut env = environment(credentials);
        env.insert("AZURE_STORAGE_ACCOUNT".into(), "account".into());
        env.insert("AZURE_STORAGE_ENDPOINT".into(), server.url.clone());
        let trouble = check("az://shelf", &env).await;
        assert_eq!((trouble.code, trouble.is_transient), (code, passing), "{trouble}");
    }
}

#[tokio::test]
async fn invalid_urls() {
    for url in ["shelf", "http://shelf", "s3://", "s3:///prefix", "file://relative/path", "ftp://x/y"] {
        let trouble = check(url, &BTreeMap::new()).await;
        assert_eq!(trouble.code, BucketErrorCode::Settings, "{trouble}");
    }
    let trouble = check("s3://AKID:the-secret-key@shelf", &BTreeMap::new()).await;
    assert_eq!(trouble.code, BucketErrorCode::Settings);
    let trouble = check("s3://shelf/a//b", &BTreeMap::new()).await;
    assert_eq!(trouble.code, BucketErrorCode::Settings);
    let env = environment(&[("GOOGLE_SERVICE_ACCOUNT_KEY", "\"the-secret-key\"")]);
    assert_eq!(check("gs://shelf", &env).await.code, BucketErrorCode::NoCredentials);
}

#[tokio::test]
async fn nothing_is_sent_in_the_clear_but_where_http_is_written() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("https://{}", listener.local_addr().expect("an address"));
    let env = environment(&[
        ("AWS_ENDPOINT_URL", &endpoint),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "the-secret-key"),
    ]);
    let client = tokio::spawn(async move { check("s3://shelf", &env).await });
    let (mut stream, _) = listener.accept().await.expect("a connection");
    // The first byte of a TLS handshake.
    assert_eq!(stream.read_u8().await.expect("a byte"), 0x16);
    drop((stream, listener));
    assert_eq!(client.await.expect("an answer").code, BucketErrorCode::Unreachable);
}

#[test]
fn nothing_shows_a_secret() {
    let everything = environment(&[
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "the-secret-key"),
        ("AWS_SESSION_TOKEN", "the-session-token"),
        ("GOOGLE_BEARER_TOKEN", "the-session-token"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "dGhlLWF6dXJlLWtleQ=="),
    ]);
    for url in ["s3://shelf/a", "gs://shelf/a", "az://shelf/a"] {
        let bucket = Bucket::open(url, &everything).expect("a bucket");
        assert_eq!(bucket.to_string(), url);
        assert_eq!(format!("{bucket:?}"), format!("Bucket({url})"));
    }
}
