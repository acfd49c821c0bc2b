//! A server on loopback that sends scripted answers byte for byte, and records its requests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

pub struct Scripted {
    pub url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    /// `reply` gets a request's head and the number of requests before it.
    pub async fn start(reply: impl Fn(&str, usize) -> Vec<u8> + Send + Sync + 'static) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (heard, reply) = (asked.clone(), Arc::new(reply));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, heard.clone(), reply.clone()));
            }
        });
        Scripted { url, asked }
    }

    /// The heads of all requests.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// An environment in which this server is S3.
    pub fn as_s3(&self) -> BTreeMap<String, String> {
        crate::servers::environment(&[
            ("AWS_ENDPOINT_URL", &self.url),
            ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
            ("AWS_SECRET_ACCESS_KEY", "the-secret-key"),
            ("AWS_SESSION_TOKEN", "the-session-token"),
        ])
    }
}

/// One request per connection.
async fn serve(
    mut stream: TcpStream,
    heard: Arc<Mutex<Vec<String>>>,
    reply: Arc<impl Fn(&str, usize) -> Vec<u8>>,
) {
    let mut request = Vec::new();
    while !is_whole(&request) {
        if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let text = String::from_utf8_lossy(&request);
    let head = text.split("\r\n\r\n").next().unwrap_or_default();
    let answer = {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.push(head.to_owned());
        reply(head, heard.len() - 1)
    };
    // The client may have disconnected.
    let _ = stream.write_all(&answer).await;
    let _ = stream.shutdown().await;
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    body.len() >= length.unwrap_or(0)
}

/// An answer with these headers and its length, then the end of the connection.
pub fn answer(status: u16, headers: &str, body: &str) -> Vec<u8> {
    cut_answer(status, headers, body, body.len())
}

/// An answer with this declared length, which may be wrong.
pub fn cut_answer(status: u16, headers: &str, body: &str, length: usize) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} Whatever\r\nContent-Length: {length}\r\nETag: \"e\"\r\n\
         Last-Modified: Mon, 16 Nov 2026 10:00:00 GMT\r\nConnection: close\r\n{headers}\r\n{body}"
    )
    .into_bytes()
}

pub fn error(status: u16, code: &str, message: &str) -> Vec<u8> {
    let body =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{message}</Message></Error>");
    answer(status, "", &body)
}
