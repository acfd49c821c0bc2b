//! A model service for tests: it accepts calls, and answers byte by byte what the test says.

use crate::rig::{DEADLINE, Live, Rig};
use ash_model::ModelApiDialect;
use ash_sandbox::{EgressPolicy, UsageAllowance};
use std::{collections::BTreeMap, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    time::timeout,
};

/// A model service that answers what the test says, byte by byte.
pub(crate) struct Upstream(pub(crate) TcpListener);

impl Upstream {
    pub(crate) async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.expect("bound"))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().expect("an address"))
    }

    pub(crate) async fn next(&self) -> Call {
        let (stream, _) =
            timeout(DEADLINE, self.0.accept()).await.expect("a call in time").expect("accepted");
        Call::read(stream).await
    }

    /// The text that arrives of a call that breaks off.
    pub(crate) async fn broken(&self) -> String {
        let (mut stream, _) =
            timeout(DEADLINE, self.0.accept()).await.expect("a call in time").expect("accepted");
        let mut heard = Vec::new();
        // Reset or closed: both are fine.
        let _ = timeout(DEADLINE, stream.read_to_end(&mut heard)).await.expect("hung up in time");
        String::from_utf8_lossy(&heard).into_owned()
    }

    /// No call is waiting. The test asks only after every sent call has been answered.
    pub(crate) async fn is_quiet(&self) -> bool {
        timeout(Duration::from_millis(50), self.0.accept()).await.is_err()
    }
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

pub(crate) struct Call {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Call {
    pub(crate) async fn read(stream: impl Stream + 'static) -> Self {
        let mut call = Self { stream: Box::new(stream), head: String::new(), body: Vec::new() };
        let mut bytes = Vec::new();
        let end = loop {
            match bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(end) => break end,
                None => call.more(&mut bytes).await,
            }
        };
        call.body = bytes.split_off(end + 4);
        call.head = String::from_utf8(bytes).expect("text");
        let length = call.header("content-length").map_or(0, |text| text.parse().expect("a number"));
        let mut body = std::mem::take(&mut call.body);
        while body.len() < length {
            call.more(&mut body).await;
        }
        Self { body, ..call }
    }

    pub(crate) async fn more(&mut self, bytes: &mut Vec<u8>) {
        let read = timeout(DEADLINE, self.stream.read_buf(bytes)).await.expect("in time").expect("readable");
        assert_ne!(read, 0, "the caller hung up");
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    pub(crate) async fn say(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.expect("written");
        self.stream.flush().await.expect("flushed");
    }

    pub(crate) async fn begin_stream(&mut self) {
        self.say("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
            .await;
    }

    pub(crate) async fn chunk(&mut self, text: &str) {
        self.say(&format!("{:x}\r\n{text}\r\n", text.len())).await;
    }

    pub(crate) async fn answer(mut self, body: &str) {
        let length = body.len();
        self.say(&format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"))
            .await;
    }

    /// Waits until the proxy has closed the connection.
    pub(crate) async fn hung_up(mut self) {
        let mut rest = Vec::new();
        // Reset or closed: both are fine.
        let _ = timeout(DEADLINE, self.stream.read_to_end(&mut rest)).await.expect("hung up in time");
    }
}

pub(crate) fn policy(upstream: String, key: &str) -> Option<EgressPolicy> {
    let headers = BTreeMap::from([("x-api-key".to_owned(), key.into())]);
    Some(EgressPolicy { upstream, headers, public: false, dialect: Some(ModelApiDialect::Anthropic) })
}

pub(crate) async fn connected(rig: &Rig, upstream: &Upstream, key: &str) -> Live {
    let live = connected_without_allowance(rig, upstream, key).await;
    allow_unlimited(&live).await;
    live
}

pub(crate) async fn connected_without_allowance(rig: &Rig, upstream: &Upstream, key: &str) -> Live {
    let live = rig.launch().await;
    live.remote.set_egress(policy(upstream.url(), key)).await.expect("sent");
    live
}

pub(crate) async fn allow_unlimited(live: &Live) {
    let unlimited = UsageAllowance { position: 0, tokens: None, nano_usd: None, prices: None };
    live.remote.set_allowance(1, Some(unlimited)).await.expect("sent");
}
