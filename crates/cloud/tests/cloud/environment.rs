//! How the server interprets environment variables.

use crate::{
    scripted::{Scripted, answer, error},
    servers::environment,
};
use ash_cloud::Bucket;
use std::collections::BTreeMap;

/// The first request of a bucket check.
async fn first_request(url: &str, env: impl FnOnce(&Scripted) -> BTreeMap<String, String>) -> String {
    let server = Scripted::start(|_, _| error(403, "AccessDenied", "No.")).await;
    let bucket = Bucket::open(url, &env(&server)).expect("a bucket");
    bucket.check().await.expect_err("refused");
    server.asked().remove(0)
}

#[tokio::test]
async fn an_endpoint_is_asked_by_path_and_signed_for_its_region() {
    let cases: [(&[(&str, &str)], &str); 4] = [
        (&[], "us-east-1"),
        (&[("AWS_DEFAULT_REGION", "eu-west-1")], "eu-west-1"),
        (&[("AWS_DEFAULT_REGION", "eu-west-1"), ("AWS_REGION", "eu-west-2")], "eu-west-2"),
        (&[("AWS_REGION", "eu-west-2"), ("ASH_S3_REGION", "eu-west-3")], "eu-west-3"),
    ];
    for (given, region) in cases {
        let asked = first_request("s3://shelf/some/where", |server| {
            let mut env = server.as_s3();
            env.extend(environment(given));
            env
        });
        let asked = asked.await;
        assert!(asked.starts_with("GET /shelf?list-type=2&prefix=some%2Fwhere%2F"), "{asked}");
        assert!(asked.contains(&format!("/{region}/s3/aws4_request")), "{asked}");
        assert!(asked.contains("x-amz-security-token: the-session-token"), "{asked}");
    }
}

#[tokio::test]
async fn keys_are_found_in_the_file_of_the_aws_tools() {
    let home = tempfile::Builder::new().prefix("ash-test-").tempdir().expect("a directory");
    std::fs::create_dir(home.path().join(".aws")).expect("a directory");
    let file = "[default]\naws_access_key_id = AKDEFAULT\naws_secret_access_key = s\n\
                [work]\naws_access_key_id = AKWORK\naws_secret_access_key = s\n";
    std::fs::write(home.path().join(".aws/credentials"), file).expect("a file");
    let base = |server: &Scripted| {
        environment(&[
            ("AWS_ENDPOINT_URL", &server.url),
            ("HOME", home.path().to_str().expect("a name")),
            // A variable that is set to nothing is not set.
            ("AWS_ACCESS_KEY_ID", ""),
            ("AWS_SECRET_ACCESS_KEY", ""),
        ])
    };
    let asked = first_request("s3://shelf", base).await;
    assert!(asked.contains("Credential=AKDEFAULT/"), "{asked}");
    let asked = first_request("s3://shelf", |server| {
        let mut env = base(server);
        env.insert("AWS_PROFILE".into(), "work".into());
        env
    });
    assert!(asked.await.contains("Credential=AKWORK/"));
    let asked = first_request("s3://shelf", |server| {
        let mut env = base(server);
        env.extend(server.as_s3());
        env
    });
    assert!(asked.await.contains("Credential=AKIDEXAMPLE/"));
}

#[tokio::test]
async fn an_instance_gives_out_keys() {
    let server = Scripted::start(|head, _| match head.split(' ').nth(1).unwrap_or_default() {
        "/latest/api/token" => answer(200, "", "token"),
        "/latest/meta-data/iam/security-credentials/" => answer(200, "", "role"),
        "/latest/meta-data/iam/security-credentials/role" => answer(
            200,
            "",
            r#"{"AccessKeyId":"AKINSTANCE","SecretAccessKey":"s","Token":"t","Expiration":"2099-01-01T00:00:00Z"}"#,
        ),
        _ => error(403, "AccessDenied", "No."),
    })
    .await;
    // Under another host name: only one of the two gives out keys.
    let store = server.url.replace("127.0.0.1", "localhost");
    let env = environment(&[("AWS_METADATA_ENDPOINT", &server.url), ("AWS_ENDPOINT_URL", &store)]);
    Bucket::open("s3://shelf", &env).expect("a bucket").check().await.expect_err("refused");
    let asked = server.asked().pop().expect("a request");
    assert!(asked.contains("Credential=AKINSTANCE/"), "{asked}");
}

#[tokio::test]
async fn a_proxy_of_the_process_is_not_used() {
    // No server listens there, so a client that uses it fails.
    // SAFETY: this process runs this test alone.
    unsafe { std::env::set_var("http_proxy", "http://127.0.0.1:1") };
    first_request("s3://shelf", Scripted::as_s3).await;
}
