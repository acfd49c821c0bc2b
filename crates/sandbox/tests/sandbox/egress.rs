//! The connection out of a sandbox: what passes, what does not, and which side learns of a break.

use std::fs;

use ash_model::ModelApiDialect;
use ash_sandbox::{EgressPolicy, Error, ShimLimits};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
    time::timeout,
};

use crate::{
    rig::{DEADLINE, Rig, command, script},
    upstream::{Call, Upstream, allow_unlimited, connected, policy},
};

pub(crate) const CURL: &str = "curl -sS --max-time 20 --unix-socket /run/ash/model.sock";

fn threads(rig: &Rig) -> usize {
    fs::read_dir(format!("/proc/{}/task", rig.shim_pid())).expect("it runs").count()
}

#[tokio::test]
async fn a_call_goes_out_with_our_key_and_nothing_that_is_not_the_agents_to_say() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    live.start(script(
        1,
        &format!(
            "{CURL} -i 'http://localhost/v1/messages?beta=true' -d '{{\"x\":1}}' -H 'x-api-key: mine' \
             -H 'Authorization: Bearer mine' -H 'Cookie: a=b' -H 'Host: evil.example' \
             -H 'X-Forwarded-Host: evil.example' -H 'Forwarded: for=1.2.3.4' -H 'Proxy-Authorization: Basic x' \
             -H 'Connection: close, X-Hop' -H 'X-Hop: 1' -H 'Upgrade: websocket' -H 'anthropic-version: 2023-06-01'"
        ),
    ))
    .await;
    let mut call = upstream.next().await;
    assert_eq!((call.line(), &call.body[..]), ("POST /v1/messages?beta=true HTTP/1.1", &b"{\"x\":1}"[..]));
    let mut names: Vec<_> = call.head.lines().skip(1).filter_map(|line| line.split_once(':')).collect();
    names.sort();
    let host = upstream.url().replace("http://", "");
    let expected = [
        ("accept", " */*"),
        ("anthropic-version", " 2023-06-01"),
        ("content-length", " 7"),
        ("content-type", " application/x-www-form-urlencoded"),
        ("host", &format!(" {host}")),
        ("user-agent", &format!(" {}", call.header("user-agent").expect("curl's"))),
        ("x-api-key", " sesame"),
    ];
    assert_eq!(names, expected);
    call.say(
        "HTTP/1.1 429 Too Many\r\nset-cookie: a=b\r\nserver: s\r\nanthropic-organization-id: o\r\nkeep-alive: timeout=5\r\nconnection: x-hop, close\r\n\
         x-hop: 1\r\nrequest-id: req_1\r\ncontent-length: 4\r\n\r\nslow",
    )
    .await;
    let (lines, _) = live.finish().await;
    let mut lines: Vec<_> = lines.iter().map(|line| line.trim_end()).collect();
    lines.retain(|line| !line.starts_with("date:"));
    assert_eq!(
        lines,
        [
            "HTTP/1.1 429 Too Many Requests",
            "request-id: req_1",
            "content-length: 4",
            "connection: close",
            "",
            "slow"
        ]
    );
}

#[tokio::test]
async fn what_leads_elsewhere_is_refused_and_never_reaches_the_service() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    let status = format!("{CURL} --path-as-is -o /dev/null -w '%{{http_code}}\\n'");
    let (lines, _) = live
        .run(&format!(
            "{status} http://localhost/v1/../../secret; {status} http://localhost//evil.example/v1; \
             {status} http://localhost/v1/%2e%2e/a; {status} --request-target http://evil.example/v1 http://localhost/; \
             {status} -X DELETE http://localhost/v1/files/1; {status} -X PUT -d x http://localhost/v1/models; \
             {status} -X CONNECT --request-target evil.example:443 http://localhost/; \
             {status} -0 http://localhost/v1/models"
        ))
        .await;
    assert_eq!(lines, ["400", "400", "400", "400", "403", "403", "400", "505"]);
    let raw = r#"
import socket
for text in ("GET /v1\rHost: evil HTTP/1.1\r\nHost: x\r\n\r\n", "GET /v1\nX: y HTTP/1.1\r\n\r\n",
             "POST /v1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
             "GET /v1 HTTP/1.1\r\nA: b\r\n c: d\r\n\r\n", "nonsense\r\n\r\n"):
    s = socket.socket(socket.AF_UNIX); s.connect("/run/ash/model.sock"); s.settimeout(60)
    s.sendall(text.encode()); print(s.recv(100).decode().split(" ")[1])
"#;
    live.start(command(1, &["/usr/bin/python3", "-c", raw])).await;
    assert_eq!(live.finish().await.0, ["400"; 5]);
    assert!(upstream.is_quiet().await);
}

#[tokio::test]
async fn what_is_not_for_talking_with_a_model_is_refused_by_name_and_never_reaches_the_service() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = rig.launch().await;
    let refused = |requests: &[(&str, &str)]| {
        let ask = |(method, path): &(&str, &str)| {
            format!("{CURL} -w ' %{{http_code}}\\n' -X {method} 'http://localhost{path}'; ")
        };
        requests.iter().map(ask).collect::<String>()
    };
    let base = upstream.url();
    let openai = EgressPolicy {
        dialect: Some(ModelApiDialect::Openai),
        ..policy(format!("{base}/v1"), "k").expect("one")
    };
    let deployment = format!("{base}/openai/deployments/d");
    let azure =
        EgressPolicy { dialect: Some(ModelApiDialect::Azure), ..policy(deployment, "k").expect("one") };
    for (way, listed, requests) in [
        (
            policy(base, "k"),
            "POST /v1/messages,",
            &[
                ("GET", "/v1/files"),
                ("POST", "/v1/messages/batches"),
                ("GET", "/v1/organizations/me?x=/v1/models"),
            ][..],
        ),
        (
            Some(openai),
            "POST /chat/completions,",
            &[("GET", "/files"), ("POST", "/batches"), ("POST", "/v1/messages")],
        ),
        (Some(azure), "POST /chat/completions,", &[("GET", "/files"), ("POST", "/images/generations")]),
    ] {
        live.remote.set_egress(way).await.expect("sent");
        let (lines, _) = live.run(&refused(requests)).await;
        assert_eq!(lines.len(), requests.len());
        for line in lines {
            assert!(
                line.contains("permission_error") && line.contains(listed) && line.ends_with(" 403"),
                "{line}"
            );
        }
    }
    assert!(upstream.is_quiet().await);
}

/// Its answer comes at once without the usage of the work, so no budget would stop it.
#[tokio::test]
async fn a_service_never_gets_all_of_a_question_that_asks_for_work_in_the_background() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = rig.launch().await;
    let way = policy(format!("{}/v1", upstream.url()), "k").expect("one");
    live.remote
        .set_egress(Some(EgressPolicy { dialect: Some(ModelApiDialect::Openai), ..way }))
        .await
        .expect("sent");
    allow_unlimited(&live).await;
    let ask = |body: &str, path: &str| {
        format!("printf %s '{body}' | {CURL} -w ' %{{http_code}}' http://localhost{path} -d @-")
    };
    let refused = |lines: &[String]| {
        let [line] = lines else { panic!("{lines:?}") };
        assert!(line.contains("permission_error") && line.contains("`background`"), "{line}");
        assert!(line.ends_with(" 403"), "{line}");
    };
    let long = "x".repeat(100_000);
    for body in
        [r#"{"background":true}"#, &format!(r#"{{"input":"{long}","b\u0061ckground":true,"model":"m"}}"#)]
    {
        live.start(script(1, &ask(body, "/responses"))).await;
        let heard = upstream.broken().await;
        assert!(!heard.ends_with('}'), "{heard}");
        refused(&live.finish().await.0);
    }
    // The proxy cannot read what a compressed body asks for.
    let compressed = ask("{}", "/responses -H content-encoding:gzip");
    refused(&live.run(&compressed).await.0);
    assert!(upstream.is_quiet().await);
    for (body, path) in [
        (r#"{"background":false,"input":"background: true"}"#, "/responses"),
        // This endpoint has no background work.
        (r#"{"background":true}"#, "/chat/completions"),
    ] {
        live.start(script(1, &ask(body, path))).await;
        let call = upstream.next().await;
        assert_eq!(String::from_utf8_lossy(&call.body), body);
        call.answer("fine").await;
        assert_eq!(live.finish().await.0, ["fine 200"]);
    }
}

/// A service counts the tokens of a streamed chat completion only on request.
#[tokio::test]
async fn a_service_never_gets_all_of_a_chat_completion_that_streams_without_its_usage() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = rig.launch().await;
    let way = policy(format!("{}/v1", upstream.url()), "k").expect("one");
    let way = EgressPolicy { dialect: Some(ModelApiDialect::Openai), ..way };
    live.remote.set_egress(Some(way)).await.expect("sent");
    allow_unlimited(&live).await;
    let ask = |body: &str, more: &str| {
        format!(
            "printf %s '{body}' | {CURL} -w ' %{{http_code}}' http://localhost/chat/completions -d @- {more}"
        )
    };
    let long = "x".repeat(100_000);
    for (body, more) in [
        (r#"{"stream":true}"#, ""),
        (r#"{"stream":true}"#, "-H transfer-encoding:chunked"),
        (r#"{"Stream":true,"stream_options":{"include_usage":false}}"#, ""),
        (r#"{"stream":true,"stream_options":{"include_usage":true},"stream_options":null}"#, ""),
        (&format!(r#"{{"x":"{long}","str\u0065am":true,"stream_options":{{}}}}"#), ""),
    ] {
        live.start(script(1, &ask(body, more))).await;
        let heard = upstream.broken().await;
        assert!(!heard.ends_with(if more.is_empty() { "}" } else { "0\r\n\r\n" }), "{heard}");
        let (lines, _) = live.finish().await;
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert!(line.contains("permission_error") && line.contains("`stream_options"), "{line}");
        assert!(line.ends_with(" 403"), "{line}");
    }
    for body in [
        r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
        r#"{"stream":false,"x":{"stream":true}}"#,
        r#"{"messages":[]}"#,
    ] {
        live.start(script(1, &ask(body, ""))).await;
        let call = upstream.next().await;
        assert_eq!(String::from_utf8_lossy(&call.body), body);
        call.answer("fine").await;
        assert_eq!(live.finish().await.0, ["fine 200"]);
    }
}

/// Services guess the encoding of a body, and could read something that the proxy has not seen.
#[tokio::test]
async fn a_question_that_is_not_in_utf_8_is_refused() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    let ask = |body: &str, more: &str| {
        let url = "http://localhost/v1/messages";
        format!("printf '{body}' | {CURL} -w ' %{{http_code}}' {url} --data-binary @- {more}")
    };
    let refused = |lines: &[String]| {
        let [line] = lines else { panic!("{lines:?}") };
        assert!(line.contains("invalid_request_error") && line.contains("UTF-8"), "{line}");
        assert!(line.ends_with(" 400"), "{line}");
    };
    for body in [
        // UTF-16, with and without a byte order mark.
        "\\377\\376{\\0}\\0",
        "{\\0}\\0",
        "{\"a\": \"\\377\"}",
        // The body ends within a character.
        "{\"a\": \"\\303",
    ] {
        live.start(script(1, &ask(body, ""))).await;
        upstream.broken().await;
        refused(&live.finish().await.0);
    }
    for more in ["-H content-encoding:gzip", "-H \"content-type: application/json; charset=utf-7\""] {
        refused(&live.run(&ask("{}", more)).await.0);
    }
    assert!(upstream.is_quiet().await);
    live.start(script(1, &ask("{\"a\": \"\\303\\274\"}", "-H \"content-type: text/json;charset=UTF-8\"")))
        .await;
    let call = upstream.next().await;
    assert_eq!(String::from_utf8_lossy(&call.body), "{\"a\": \"ü\"}");
    call.answer("fine").await;
    assert_eq!(live.finish().await.0, ["fine 200"]);
}

#[tokio::test]
async fn a_deployment_of_azure_is_called_beneath_its_path_with_its_query() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = rig.launch().await;
    let deployment = format!("{}/gate/openai/deployments/d", upstream.url());
    let azure =
        EgressPolicy { dialect: Some(ModelApiDialect::Azure), ..policy(deployment, "k").expect("one") };
    live.remote.set_egress(Some(azure)).await.expect("sent");
    allow_unlimited(&live).await;
    for (path, line) in [
        (
            "/chat/completions?api-version=v -d x",
            "POST /gate/openai/deployments/d/chat/completions?api-version=v HTTP/1.1",
        ),
        ("/responses -d x", "POST /gate/openai/deployments/d/responses HTTP/1.1"),
        ("/models", "GET /gate/openai/deployments/d/models HTTP/1.1"),
    ] {
        live.start(script(1, &format!("{CURL} http://localhost{path}"))).await;
        let call = upstream.next().await;
        assert_eq!(call.line(), line);
        call.answer("fine").await;
        assert_eq!(live.finish().await.0, ["fine"]);
    }
}

#[tokio::test]
async fn a_sandbox_makes_a_thousand_requests_a_minute_and_is_told_when_to_come_back() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    let pester = r#"
import http.client, socket
class Model(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX); self.sock.connect("/run/ash/model.sock")
seen = {}
model = Model("localhost")
for n in range(1003):
    model.request("GET", "/v1/models"); answer = model.getresponse(); text = answer.read().decode()
    seen[answer.status] = seen.get(answer.status, 0) + 1
print(seen, "rate_limit_error" in text, 0 < int(answer.headers["retry-after"]) <= 60)
"#;
    live.start(command(1, &["/usr/bin/python3", "-c", pester])).await;
    let serve = async {
        let (mut stream, _) = upstream.0.accept().await.expect("accepted");
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 4096]);
        loop {
            let read = stream.read(&mut buffer).await.unwrap_or(0);
            bytes.extend_from_slice(&buffer[..read]);
            if bytes.ends_with(b"\r\n\r\n") {
                bytes.clear();
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            }
        }
    };
    let lines = tokio::select! {
        (lines, _) = live.finish() => lines,
        () = serve => Vec::new(),
    };
    assert_eq!(lines, ["{200: 1000, 429: 3} True True"]);
}

#[tokio::test]
async fn a_redirect_is_passed_back_and_the_key_goes_nowhere_else() {
    let (rig, upstream, elsewhere) = (Rig::new().await, Upstream::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    live.start(script(
        1,
        &format!("{CURL} -o /dev/null -w '%{{http_code}} %header{{location}}' http://localhost/v1/models"),
    ))
    .await;
    let mut call = upstream.next().await;
    let to = elsewhere.url();
    call.say(&format!("HTTP/1.1 307 Go\r\nlocation: {to}/v1\r\ncontent-length: 0\r\n\r\n")).await;
    assert_eq!(live.finish().await.0, ["307 "]);
    assert!(elsewhere.is_quiet().await);
}

#[tokio::test]
async fn answers_without_a_body_need_no_end() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    let status = "-o /dev/null -w '%{http_code} %header{content-length}'";
    for (how, answer, expected) in
        [("", "HTTP/1.1 304 Not Modified\r\n\r\n", "304 "), ("", "HTTP/1.1 204 No Content\r\n\r\n", "204 ")]
    {
        live.start(script(1, &format!("{CURL} {status} {how} http://localhost/v1/models"))).await;
        upstream.next().await.say(answer).await;
        let (lines, exit) = live.finish().await;
        assert_eq!((lines, exit.code), (vec![expected.to_owned()], Some(0)));
    }
}

#[tokio::test]
async fn chunks_arrive_one_at_a_time() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    live.start(script(1, &format!("{CURL} -N http://localhost/v1/messages -d '{{}}'"))).await;
    let mut call = upstream.next().await;
    call.begin_stream().await;
    for n in 0..5 {
        // The test sends the next chunk when this one has arrived, so the proxy cannot have collected them.
        call.chunk(&format!("data: {n}\n\n")).await;
        assert_eq!((live.line().await, live.line().await), (format!("data: {n}"), String::new()));
    }
    call.say("0\r\n\r\n").await;
    assert_eq!(live.finish().await.1.code, Some(0));
}

#[tokio::test]
async fn a_stream_waits_for_a_sandbox_that_is_held_still() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    live.start(script(1, &format!("{CURL} -N http://localhost/v1/messages -d '{{}}'"))).await;
    let mut call = upstream.next().await;
    call.begin_stream().await;
    live.remote.freeze().await.expect("frozen");
    call.chunk("data: late\n").await;
    call.say("0\r\n\r\n").await;
    live.remote.thaw().await.expect("thawed");
    assert_eq!(live.line().await, "data: late");
    assert_eq!(live.finish().await.1.code, Some(0));
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_a_call_that_costs_nothing_at_once() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    let call_and_be_killed = format!("{CURL} -N http://localhost/v1/models");
    // Before the answer has begun and in its middle, when no data comes whose delivery could fail.
    for begun in [false, true] {
        live.start(script(1, &call_and_be_killed)).await;
        let mut call = upstream.next().await;
        if begun {
            call.begin_stream().await;
            call.chunk("data: 1\n").await;
            assert_eq!(live.line().await, "data: 1");
        }
        live.remote.signal(1, rustix::process::Signal::KILL.as_raw()).await.expect("sent");
        call.hung_up().await;
        live.finish().await;
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_never_looks_whole() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    let call_model = format!("{CURL} -N http://localhost/v1/messages -d '{{}}' && echo whole");
    for head in ["transfer-encoding: chunked\r\n\r\n7\r\ndata: 1", "content-length: 100\r\n\r\ndata: 1"] {
        live.start(script(1, &call_model)).await;
        let mut call = upstream.next().await;
        call.say(&format!("HTTP/1.1 200 OK\r\n{head}")).await;
        drop(call);
        let (lines, exit) = live.finish().await;
        assert!(exit.code == Some(18) && !lines.join(" ").contains("whole"), "{lines:?} {exit}");
    }
    // Only the end of the connection ends this answer, so a cut would be invisible.
    live.start(script(1, &call_model)).await;
    upstream.next().await.say("HTTP/1.1 200 OK\r\n\r\ndata: 1").await;
    assert!(live.finish().await.0.join("").contains("neither a length nor chunks"));
}

#[tokio::test]
async fn without_a_policy_or_a_service_the_answer_says_what_to_do() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    let large = format!(
        "head -c 3000000 /dev/zero | {CURL} -w '\\n%{{http_code}}' http://localhost/v1/messages --data-binary @-"
    );
    let (lines, exit) = live.run(&large).await;
    let told: serde_json::Value = serde_json::from_str(&lines[0]).expect("json");
    assert_eq!((&told["type"], &told["error"]["type"]), (&"error".into(), &"api_error".into()));
    assert!(told["error"]["message"].as_str().is_some_and(|text| text.contains("provider key")), "{told}");
    assert_eq!((lines[1].as_str(), exit.code), ("503", Some(0)));

    let upstream = Upstream::new().await;
    live.remote.set_egress(policy(upstream.url(), "sesame")).await.expect("sent");
    allow_unlimited(&live).await;
    drop(upstream);
    let (lines, exit) = live.run(&large).await;
    let told: serde_json::Value = serde_json::from_str(&lines[0]).expect("json");
    let message = "The model service cannot be reached: Connection refused (os error 111).";
    let expected = serde_json::json!({"type": "error", "error": {"type": "api_error", "message": message}});
    assert_eq!((told, lines[1].as_str(), exit.code), (expected, "502", Some(0)));
}

#[tokio::test]
async fn a_service_that_cannot_prove_who_it_is_hears_nothing_of_the_key() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = rig.launch().await;
    live.remote.set_egress(policy(upstream.url().replace("http:", "https:"), "sesame")).await.expect("sent");
    allow_unlimited(&live).await;
    live.start(script(1, &format!("{CURL} -w '%{{http_code}}' http://localhost/v1/messages -d secret")))
        .await;
    let (mut stream, _) = timeout(DEADLINE, upstream.0.accept()).await.expect("in time").expect("accepted");
    let mut heard = vec![0; 5];
    timeout(DEADLINE, stream.read_exact(&mut heard)).await.expect("in time").expect("readable");
    // The first bytes of a TLS connection.
    assert_eq!(heard[..2], [22, 3]);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.expect("written");
    let _ = timeout(DEADLINE, stream.read_to_end(&mut heard)).await.expect("hung up in time");
    let heard = String::from_utf8_lossy(&heard).into_owned();
    assert!(!heard.contains("sesame") && !heard.contains("secret"), "{heard}");
    let (lines, _) = live.finish().await;
    assert!(lines[0].contains("cannot be reached") && lines[0].ends_with("502"), "{lines:?}");
}

#[tokio::test]
async fn the_next_request_has_the_new_key_and_none_after_it_was_taken_back() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "first").await;
    // One connection for both calls.
    live.start(script(1, &format!("{CURL} -N http://localhost/v1/models/a http://localhost/v1/models/b")))
        .await;
    let call = upstream.next().await;
    live.remote.set_egress(policy(upstream.url(), "second")).await.expect("sent");
    // Answers come in order, so the shim has handled the policy before this one.
    live.remote.thaw().await.expect("thawed");
    assert_eq!(call.header("x-api-key"), Some("first"));
    call.answer("one\n").await;
    assert_eq!(live.line().await, "one");
    let mut call = upstream.next().await;
    assert_eq!(call.header("x-api-key"), Some("second"));
    call.begin_stream().await;
    call.chunk("two\n").await;
    assert_eq!(live.line().await, "two");
    live.remote.set_egress(None).await.expect("sent");
    call.hung_up().await;
    assert_ne!(live.finish().await.1.code, Some(0));
    let (lines, _) =
        live.run(&format!("{CURL} -o /dev/null -w '%{{http_code}}' http://localhost/v1/models")).await;
    assert_eq!(lines, ["503"]);
}

#[tokio::test]
async fn a_policy_outlives_the_servers_connection_and_is_written_nowhere() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let key = format!("sesame-{}", uuid::Uuid::new_v4());
    let mut live = connected(&rig, &upstream, &key).await;
    live.remote.thaw().await.expect("answered");
    drop(live);
    live = rig.reattach(2, 0).await;
    live.start(script(
        1,
        &format!("env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; {CURL} http://localhost/v1/models"),
    ))
    .await;
    let call = upstream.next().await;
    assert_eq!(call.header("x-api-key"), Some(key.as_str()));
    call.answer("fine").await;
    let (lines, exit) = live.finish().await;
    assert!(exit.code == Some(0) && !lines.join("\n").contains(&key), "{lines:?}");
    let found =
        std::process::Command::new("grep").args(["-rla", &key]).arg(rig.base.path()).output().expect("ran");
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[tokio::test]
async fn a_policy_that_cannot_be_meant_is_refused_before_it_is_sent() {
    let rig = Rig::new().await;
    let live = rig.launch().await;
    let refused = live.remote.set_egress(policy("http://api.anthropic.com".to_owned(), "sesame")).await;
    assert!(matches!(&refused, Err(Error::InvalidEgress { why }) if why.contains("https")), "{refused:?}");
    let refused = live.remote.set_egress(policy("https://api.anthropic.com".to_owned(), "ses\name")).await;
    assert!(matches!(&refused, Err(Error::InvalidEgress { why }) if !why.contains("ses")), "{refused:?}");
}

#[tokio::test]
async fn large_bodies_pass_and_those_that_are_too_large_do_not() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    live.start(script(
        1,
        &format!(
            "head -c 5000000 /dev/zero | tr '\\0' x | {CURL} http://localhost/v1/messages --data-binary @-"
        ),
    ))
    .await;
    let call = upstream.next().await;
    assert_eq!(call.body, vec![b'x'; 5_000_000]);
    call.answer("taken").await;
    assert_eq!(live.finish().await.0, ["taken"]);
    let too_large = format!(
        "head -c 68000000 /dev/zero | tr '\\0' x | {CURL} -w '%{{http_code}}' -o /dev/null http://localhost/v1/messages"
    );
    let (lines, _) = live.run(&format!("{too_large} --data-binary @-")).await;
    assert_eq!(lines.last().map(String::as_str), Some("413"));
    // Without a Content-Length: part of the body is sent before the proxy sees that it is too large.
    live.start(script(1, &format!("{too_large} -X POST -T -"))).await;
    upstream.next().await.hung_up().await;
    let (lines, _) = live.finish().await;
    assert!(lines.iter().any(|line| line.ends_with("413")), "{lines:?}");
}

#[tokio::test]
async fn the_directory_cannot_be_changed_from_inside_and_nothing_else_leads_out() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    let port = upstream.0.local_addr().expect("an address").port();
    let (lines, _) = live
        .run(&format!(
            "try() {{ \"$@\" >/dev/null 2>&1 && echo \"could: $*\"; }}; cd /run/ash; ls -a; \
             try touch x; try rm -f model.sock; try mv model.sock y; try ln model.sock /tmp/z; \
             try chmod 777 model.sock; try chmod 777 .; try mkdir d; try mount -o remount,rw /run/ash; \
             try curl -s --max-time 5 http://127.0.0.1:{port}/; try curl -s --max-time 5 http://localhost:{port}/; \
             try curl -s --max-time 5 http://1.1.1.1/; stat -c '%a %F' model.sock ."
        ))
        .await;
    assert_eq!(lines, [".", "..", "model.sock", "600 socket", "755 directory"]);
    assert!(upstream.is_quiet().await);
}

#[tokio::test]
async fn each_sandbox_has_its_own_key_and_no_way_to_anothers() {
    let (one, other, upstream) = (Rig::new().await, Rig::new().await, Upstream::new().await);
    let mut live = connected(&one, &upstream, "of-one").await;
    let mut theirs = connected(&other, &upstream, "of-other").await;
    for (live, key) in [(&mut live, "of-one"), (&mut theirs, "of-other")] {
        live.start(script(1, &format!("{CURL} http://localhost/v1/models"))).await;
        let call = upstream.next().await;
        assert_eq!(call.header("x-api-key"), Some(key));
        call.answer("fine").await;
        live.finish().await;
    }
    let path = other.spec.run_dir.join("egress/model.sock");
    assert!(path.exists());
    let (_, exit) =
        live.run(&format!("curl -sS --unix-socket {} http://localhost/v1/models", path.display())).await;
    assert_eq!(exit.code, Some(7));
    assert!(upstream.is_quiet().await);
}

#[tokio::test]
async fn a_data_directory_may_lie_deeper_than_a_sockets_address_is_long() {
    let (rig, upstream) =
        (Rig::with(ShimLimits::default(), &"long/".repeat(40)).await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    live.start(script(1, &format!("{CURL} http://localhost/v1/models"))).await;
    upstream.next().await.answer("far").await;
    assert_eq!(live.finish().await.0, ["far"]);
}

#[tokio::test]
async fn without_walls_the_socket_is_where_it_is() {
    let (rig, upstream) = (Rig::bare(), Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    let inside = rig.backend.layout(&rig.spec);
    let call = format!("curl -sS --unix-socket {} http://localhost/v1/models", inside.model_socket.display());
    let mut start = script(1, &call);
    start.cwd = inside.workspace;
    live.start(start).await;
    let call = upstream.next().await;
    assert_eq!(call.header("x-api-key"), Some("sesame"));
    call.answer("bare").await;
    assert_eq!(live.finish().await.0, ["bare"]);
}

#[tokio::test]
async fn a_service_may_be_a_socket_of_this_machine() {
    let rig = Rig::new().await;
    let path = rig.base.path().join("m.sock");
    let service = UnixListener::bind(&path).expect("bound");
    let mut live = rig.launch().await;
    live.remote.set_egress(policy(format!("unix:{}", path.display()), "sesame")).await.expect("sent");
    live.start(script(1, &format!("{CURL} http://localhost/v1/models"))).await;
    let (stream, _) = timeout(DEADLINE, service.accept()).await.expect("in time").expect("accepted");
    let call = Call::read(stream).await;
    assert_eq!((call.line(), call.header("x-api-key")), ("GET /v1/models HTTP/1.1", Some("sesame")));
    call.answer("near").await;
    assert_eq!(live.finish().await.0, ["near"]);
}

#[tokio::test]
async fn nothing_is_built_before_the_first_call_and_the_end_of_the_sandbox_ends_every_call() {
    let (rig, upstream) = (Rig::new().await, Upstream::new().await);
    let mut live = connected(&rig, &upstream, "sesame").await;
    live.run("ls /run/ash").await;
    assert_eq!(threads(&rig), 1);
    live.start(script(1, &format!("{CURL} -N http://localhost/v1/messages -d '{{}}'"))).await;
    let mut call = upstream.next().await;
    assert!(threads(&rig) > 1);
    call.begin_stream().await;
    call.chunk("data: 1\n").await;
    assert_eq!(live.line().await, "data: 1");
    live.remote.end().await.expect("sent");
    call.hung_up().await;
}

#[tokio::test]
async fn more_callers_than_are_served_at_once_wait_for_their_turn() {
    let rig = Rig::new().await;
    let mut live = rig.launch().await;
    let hold = r#"
import socket
def connect():
    s = socket.socket(socket.AF_UNIX); s.connect("/run/ash/model.sock"); return s
held = [connect() for _ in range(64)]
late = connect()
late.sendall(b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n")
late.settimeout(0.3)
try:
    late.recv(10); print("served")
except TimeoutError: print("waits")
held.pop().close()
late.settimeout(60)
print(late.recv(12).decode())
"#;
    live.start(command(1, &["/usr/bin/python3", "-c", hold])).await;
    assert_eq!(live.finish().await.0, ["waits", "HTTP/1.1 503"]);
}
