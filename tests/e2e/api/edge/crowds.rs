//! Clients that hold connections without a complete request: silent ones, half requests, and stalled readers and senders.

use crate::support::{Client, KEY, Server, eventually};
use futures::StreamExt;
use reqwest::Method;
use serde_json::json;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const MIB: usize = 1 << 20;

/// Sets the limit of open files of this process, which children inherit.
fn set_open_files(soft: Option<u64>) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills in, and then reads, a structure that is ours.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = soft.unwrap_or(limit.rlim_max).min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

async fn connect(server: &Server) -> TcpStream {
    let address = server.url.strip_prefix("http://").expect("an address");
    TcpStream::connect(address).await.expect("a connection")
}

/// Sends a request without reading the response.
async fn begin(server: &Server, head: &str) -> TcpStream {
    let mut socket = connect(server).await;
    let head = format!("{head}\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n");
    socket.write_all(head.as_bytes()).await.expect("sent");
    socket
}

fn resident_mb(server: &Server) -> u64 {
    memory_mb(server, "VmRSS:")
}

/// The peak memory of the server.
fn most_resident_mb(server: &Server) -> u64 {
    memory_mb(server, "VmHWM:")
}

fn memory_mb(server: &Server, which: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(which)).expect("its size");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") / 1024
}

fn sockets(server: &Server) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("it runs").flatten();
    let links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// Whether the server still holds its end of the connection from this port. A closed socket has no inode.
fn has_client(server: &Server, port: u16) -> bool {
    let own = server.url.rsplit(':').next().and_then(|port| port.parse::<u16>().ok()).expect("a port");
    let (local, remote) = (format!(":{own:04X}"), format!(":{port:04X}"));
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's table");
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() > 9 && fields[1].ends_with(&local) && fields[2].ends_with(&remote) && fields[9] != "0"
    })
}

/// True when the other end has closed, whatever it sent before.
async fn is_closed(mut socket: TcpStream) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(crate::support::DEADLINE, socket.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_silent_connections_leave_the_server_usable() {
    set_open_files(Some(1024));
    let server = Server::with(&[("ASH_MAX_CONNECTIONS", "2000")]).await;
    set_open_files(None);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).expect("its limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    let numbers: Vec<&str> = files.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "the soft limit is raised to the hard one");
    let client = server.client();
    let id = client.create().await;
    let mut silent = Vec::new();
    for number in 0..5000 {
        let mut socket = connect(&server).await;
        if number % 2 == 0 {
            socket.write_all(b"GET /health HTTP/1.1\r\nhost: loc").await.ok();
        }
        silent.push(socket);
    }
    assert_eq!(client.get("/health").await["status"], "ok");
    assert!(client.say(&id, "hello").await["text"].is_string());
    assert!(sockets(&server) < 2200, "{}", sockets(&server));
    let said = server.log().lines().filter(|line| line.contains("ASH_MAX_CONNECTIONS")).count();
    assert_eq!(said, 1, "one line a minute: {}", server.log());
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_connections_are_at_work_health_and_the_operator_are_still_served() {
    let secret = "a-secret-for-internal-use";
    let server = Server::with(&[("ASH_INTERNAL_SECRET", secret), ("ASH_MAX_CONNECTIONS", "6")]).await;
    let client = server.client();
    let id = client.create().await;
    let made =
        server.client_with(secret).post("/api/internal/api-keys", json!({ "tenantId": "other" })).await;
    let other = server.client_with(made["key"].as_str().expect("a key"));
    let mut streams = Vec::new();
    for _ in 0..6 {
        let mut stream = client.follow(&id, "").await;
        stream.next().await.expect("a frame");
        streams.push(stream);
    }
    eventually("others have to wait", async || {
        let (status, body) = other.ask(Method::GET, "/api/agents", None).await;
        (status == 503 && body["code"] == "too_many_connections").then_some(())
    })
    .await;
    // Repeated attempts do not change the connections to the reserve.
    for _ in 0..40 {
        let other = server.client_with(made["key"].as_str().expect("a key"));
        let (status, body) = other.ask(Method::GET, &format!("/api/sessions/{id}/stream"), None).await;
        assert_eq!((status.as_u16(), &body["code"]), (503, &json!("too_many_connections")), "{body}");
    }
    client.get("/api/agents").await;
    let health = other.http.get(format!("{}/health", other.url)).send().await.expect("an answer");
    assert_eq!(health.status(), 200);
    drop(streams);
    eventually("there is room again", async || {
        (other.ask(Method::GET, "/api/agents", None).await.0 == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_streams_of_a_key_are_counted() {
    let server = Server::with(&[("ASH_MAX_STREAMS", "2")]).await;
    let client = server.client();
    let id = client.create().await;
    let mut held = vec![client.follow(&id, "").await, client.follow(&id, "").await];
    let path = format!("/api/sessions/{id}/stream");
    let (status, body) = client.ask(Method::GET, &path, None).await;
    assert_eq!((status.as_u16(), &body["code"]), (429, &json!("too_many_streams")), "{body}");
    let message = Some(json!({ "content": "not accepted" }));
    let (status, _) = client.ask(Method::POST, &format!("/api/sessions/{id}/messages"), message).await;
    assert_eq!(status, 429);
    let said = client.get(&format!("/api/sessions/{id}/messages")).await;
    assert_eq!(said["messages"], json!([]), "a refused message leaves nothing");
    held.pop();
    eventually("a place is free", async || {
        let answer = client.request(Method::GET, &path).send().await.expect("an answer");
        answer.status().is_success().then_some(())
    })
    .await;
}

/// Padding counts as part of the body, but neither as content nor as a waiting message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_with_slow_answers_keep_no_memory_and_delay_no_request() {
    let secret = "a-secret-for-internal-use";
    let server = Server::with(&[("ASH_INTERNAL_SECRET", secret)]).await;
    let made =
        server.client_with(secret).post("/api/internal/api-keys", json!({ "tenantId": "modest" })).await;
    let (greedy, modest) = (server.client(), server.client_with(made["key"].as_str().expect("a key")));
    let (id, other) = (greedy.create().await, modest.create().await);
    let mut running = greedy.send(&id, "hold go: one two").await;
    running.until("text_delta").await;
    let before = resident_mb(&server);
    let padding = vec![b' '; 45 * MIB];
    let waiting: Vec<_> = (0..6)
        .map(|number| {
            let mut body = json!({ "content": format!("say: {number}") }).to_string().into_bytes();
            body.extend_from_slice(&padding);
            let sent = greedy
                .request(Method::POST, &format!("/api/sessions/{id}/messages"))
                .header("accept", "application/json")
                .header("content-type", "application/json")
                .body(body)
                .send();
            tokio::spawn(sent)
        })
        .collect();
    eventually("most of them wait for their turn", async || {
        (greedy.session(&id).await["openTurns"].as_u64() >= Some(6)).then_some(())
    })
    .await;
    let file = json!({ "files": [{ "path": "n", "content": "AAAA".repeat(350_000) }] });
    let path = format!("/api/sessions/{other}/files");
    let written = modest.post(&path, file);
    let written =
        tokio::time::timeout(Duration::from_secs(20), written).await.expect("the request is not delayed");
    assert_eq!(written["files"][0]["written"], true, "{written}");
    eventually("all of them wait", async || (greedy.session(&id).await["openTurns"] == 7).then_some(()))
        .await;
    eventually("their memory is given back", async || (resident_mb(&server) < before + 100).then_some(()))
        .await;
    server.let_go(&id, "go").await;
    for answer in waiting {
        let answer = answer.await.expect("it was sent").expect("an answer");
        assert_eq!(answer.status().as_u16(), 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_stop_in_the_middle_are_given_up() {
    let server = Server::with(&[("ASH_CLIENT_TIMEOUT", "1")]).await;
    let client = server.client();
    let id = client.create().await;
    client.exec(&id, "truncate -s 60M big").await;
    assert!(is_closed(connect(&server).await).await, "no byte");
    assert!(is_closed(begin(&server, "GET /health HTTP/1.1").await).await, "half a header");
    let mut idle = begin(&server, "GET /health HTTP/1.1").await;
    idle.write_all(b"\r\n").await.expect("sent");
    idle.peek(&mut [0; 1]).await.expect("an answer");
    assert!(is_closed(idle).await, "nothing after an answer");
    let mut sending = begin(&server, &format!("POST /api/sessions/{id}/messages HTTP/1.1")).await;
    sending.write_all(b"content-length: 1000000\r\n\r\n{\"content\": \"").await.expect("sent");
    let mut answer = String::new();
    sending.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
    drop(sending);
    // Count only the watched connections: earlier ones may end at any time.
    let mut reading = begin(&server, &format!("GET /api/sessions/{id}/files/big HTTP/1.1")).await;
    reading.write_all(b"\r\n").await.expect("sent");
    reading.peek(&mut [0; 1]).await.expect("it comes");
    let port = reading.local_addr().expect("an address").port();
    eventually("its connection is closed", async || (!has_client(&server, port)).then_some(())).await;
    let mut rest = Vec::new();
    reading.read_to_end(&mut rest).await.ok();
    assert!(rest.len() < 60 * MIB, "it was cut off after {}", rest.len());
    // The server keeps a client that makes progress, however slow it is.
    let mut slow =
        client.request(Method::GET, &format!("/api/sessions/{id}/files/big")).send().await.expect("a file");
    let mut length = 0;
    while let Some(piece) = slow.chunk().await.expect("a piece") {
        length += piece.len();
        if length % (20 * MIB) < piece.len() {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
    assert_eq!(length, 60 * MIB);
}

async fn stalled_reader(server: &Server, path: &str) -> TcpStream {
    let mut reading = begin(server, &format!("GET {path} HTTP/1.1")).await;
    reading.write_all(b"\r\n").await.expect("sent");
    reading.peek(&mut [0; 1]).await.expect("it comes");
    reading
}

/// Readers and senders of a file of 100 MiB, which all stall.
async fn stalled(server: &Server, id: &str, each: usize) -> Vec<TcpStream> {
    let mut sockets = Vec::new();
    for _ in 0..each {
        sockets.push(stalled_reader(server, &format!("/api/sessions/{id}/files/big")).await);
    }
    let piece = vec![b'A'; 12 * MIB];
    for _ in 0..each {
        let mut sending = begin(server, &format!("POST /api/sessions/{id}/files HTTP/1.1")).await;
        sending
            .write_all(b"content-length: 140000000\r\n\r\n{\"files\":[{\"path\":\"x\",\"content\":\"")
            .await
            .expect("sent");
        sending.write_all(&piece).await.expect("sent");
        sockets.push(sending);
    }
    sockets
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_readers_and_senders_cost_little_memory_and_it_is_given_back() {
    let server = Server::start().await;
    let client: Client = server.client();
    let id = client.create().await;
    client.exec(&id, "truncate -s 100M big").await;
    let before = resident_mb(&server);
    let held = stalled(&server, &id, 50).await;
    let with_all = resident_mb(&server);
    assert!(with_all < before + 100, "{before} MB before, {with_all} MB with 100 clients that have stopped");
    drop(held);
    eventually("memory is given back", async || (resident_mb(&server) < before + 15).then_some(())).await;
}

/// A file that only a checkpoint holds is unpacked while it is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_readers_of_a_stopped_session_cost_little_memory() {
    let server = Server::start().await;
    let client: Client = server.client();
    let id = client.create().await;
    client.exec(&id, "head -c 100M /dev/urandom > big").await;
    client.action(&id, "stop").await;
    let before = resident_mb(&server);
    let stored = format!("/api/sessions/{id}/files/big?checkpoint=1");
    let held = futures::future::join_all((0..50).map(|_| stalled_reader(&server, &stored))).await;
    let with_all = most_resident_mb(&server);
    assert!(with_all < before + 100, "{before} MB before, {with_all} MB with 50 clients that have stopped");
    drop(held);
    eventually("memory is given back", async || (resident_mb(&server) < before + 15).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_a_burst_of_sessions_is_given_back() {
    let server = Server::start().await;
    let client = server.client();
    let end = async |id: String| client.delete(&format!("/api/sessions/{id}")).await;
    // Allocates first what a server needs once.
    end(client.create().await).await;
    let before = resident_mb(&server);
    let made = futures::stream::iter(0..200).map(|_| client.create()).buffer_unordered(8);
    let ids: Vec<String> = made.collect().await;
    let most = resident_mb(&server);
    assert!(most > before + 16, "{before} MB before, {most} MB with 200 sessions: nothing to be given back");
    futures::stream::iter(ids).map(end).buffer_unordered(8).collect::<Vec<_>>().await;
    eventually("memory is given back", async || (resident_mb(&server) < before + 12).then_some(())).await;
}
