//! Reads event streams across dropped connections and server restarts. A caller that follows a turn receives every
//! frame of it once.

use crate::api::{ApiClient, Result, percent_encode};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// A longer outage ends the stream with an error.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub(crate) struct SessionStreamFrame {
    pub(crate) id: String,
    pub(crate) event: String,
    pub(crate) data: Value,
}

pub(crate) struct SessionStream {
    api: ApiClient,
    session: String,
    response: Option<Response>,
    buffer: Vec<u8>,
    last: String,
    /// Set for the stream of one message: it delivers only frames of that turn, also when it reads them again from the
    /// log.
    one_turn: bool,
    turn: Option<String>,
    /// The last frame gave the reason for the end of the stream.
    failed: bool,
    ended: bool,
}

/// An item for the caller.
pub(crate) enum SessionStreamItem {
    Frame(SessionStreamFrame),
    /// The connection broke; the stream tries to reconnect.
    Reconnecting,
    Ended,
}

impl SessionStream {
    /// Sends a message in the format of the API, and follows its turn.
    pub(crate) async fn send(api: &ApiClient, session: &str, mut body: Value) -> Result<SessionStream> {
        body["includePartialMessages"] = json!(true);
        let request = api
            .request(Method::POST, &format!("/api/sessions/{}/messages", percent_encode(session)))
            .json(&body);
        let response = api.send(request.header("accept", "text/event-stream")).await?;
        Ok(SessionStream { one_turn: true, ..SessionStream::new(api, session, response, String::new()) })
    }

    /// Follows everything after `last`.
    pub(crate) async fn follow(api: &ApiClient, session: &str, last: &str) -> Result<SessionStream> {
        let response = connect(api, session, last).await?;
        Ok(SessionStream::new(api, session, response, last.to_owned()))
    }

    fn new(api: &ApiClient, session: &str, response: Response, last: String) -> SessionStream {
        SessionStream {
            api: api.clone(),
            session: session.to_owned(),
            // The server has nothing more to send.
            ended: response.status() == StatusCode::NO_CONTENT,
            response: Some(response),
            buffer: Vec::new(),
            last,
            one_turn: false,
            turn: None,
            failed: false,
        }
    }

    pub(crate) async fn next(&mut self) -> Result<SessionStreamItem> {
        loop {
            if self.ended {
                return Ok(SessionStreamItem::Ended);
            }
            while let Some(frame) = self.take_frame() {
                if self.is_wanted(&frame) {
                    return Ok(SessionStreamItem::Frame(frame));
                }
            }
            let Some(response) = &mut self.response else {
                self.reconnect().await?;
                continue;
            };
            match response.chunk().await {
                Ok(Some(bytes)) => self.buffer.extend_from_slice(&bytes),
                Ok(None) | Err(_) => return Ok(self.on_disconnect()),
            }
        }
    }

    fn take_frame(&mut self) -> Option<SessionStreamFrame> {
        let end = self.buffer.windows(2).position(|pair| pair == b"\n\n")?;
        let text = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        self.buffer.drain(..end + 2);
        Some(parse(&text))
    }

    fn is_wanted(&mut self, frame: &SessionStreamFrame) -> bool {
        if frame.event.is_empty() {
            return false;
        }
        if !frame.id.is_empty() {
            self.last.clone_from(&frame.id);
        }
        self.failed = frame.event == "error";
        if self.one_turn && self.turn.is_none() && frame.event == "session_start" {
            self.turn = frame.data["turn"].as_str().map(str::to_owned);
        }
        let of_turn =
            frame.data["turn"].as_str().is_none_or(|turn| self.turn.as_deref().is_none_or(|own| own == turn));
        self.ended = self.turn.is_some() && frame.event == "done" && of_turn;
        of_turn
    }

    /// A turn's stream without its final `done` was cut off, unless its last frame gave a reason.
    fn on_disconnect(&mut self) -> SessionStreamItem {
        self.response = None;
        self.buffer.clear();
        self.ended = self.failed && self.turn.is_some();
        if self.ended { SessionStreamItem::Ended } else { SessionStreamItem::Reconnecting }
    }

    async fn reconnect(&mut self) -> Result<()> {
        let until = Instant::now() + RECONNECT_TIMEOUT;
        loop {
            match connect(&self.api, &self.session, &self.last).await {
                Ok(response) => {
                    self.ended = response.status() == StatusCode::NO_CONTENT;
                    self.response = Some(response);
                    return Ok(());
                }
                Err(failure)
                    if failure.kind != ash_model::FailureKind::Unavailable || Instant::now() >= until =>
                {
                    return Err(failure);
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
            // A restarted local server may have another port.
            self.api = self.api.reconnected();
        }
    }
}

async fn connect(api: &ApiClient, session: &str, last: &str) -> Result<Response> {
    let request = api.request(Method::GET, &format!("/api/sessions/{}/stream", percent_encode(session)));
    let request = if last.is_empty() { request } else { request.header("last-event-id", last) };
    api.send(request).await
}

fn parse(text: &str) -> SessionStreamFrame {
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
    let data = serde_json::from_str(&field("data: ")).unwrap_or_default();
    SessionStreamFrame { id: field("id: "), event: field("event: "), data }
}
