//! Sends the decided response over HTTP.

use crate::{
    api_errors,
    decide::{ResponseFormat, ScriptedResponse, ScriptedResponseBody, StreamEnding},
    openai,
    reply::ScriptedReply,
    sse_events::{PacedSseEvent, events, overloaded},
};
use axum::{
    body::{Body, Bytes},
    http::{
        HeaderName, HeaderValue, StatusCode, header::CACHE_CONTROL, header::CONTENT_TYPE, header::RETRY_AFTER,
    },
    response::{IntoResponse, Response},
};
use futures::{StreamExt, stream};
use std::{io, time::Duration};

const JSON: &str = "application/json";

pub(crate) async fn respond(answer: ScriptedResponse, request_id: &str) -> Response {
    if !answer.stall.is_zero() {
        tokio::time::sleep(answer.stall).await;
    }
    let api = answer.api;
    let mut response = match answer.body {
        ScriptedResponseBody::Whole(reply) => whole(text_of(&reply, api)),
        ScriptedResponseBody::Json(value) => whole(value.to_string()),
        ScriptedResponseBody::Stream(reply, ending) => stream_of(&reply, ending, api),
        ScriptedResponseBody::Truncated(reply) => truncated_response(&text_of(&reply, api)),
        ScriptedResponseBody::Fail { status, message, retry_after } => {
            let body = match api {
                ResponseFormat::Messages => api_errors::body(status, &message, request_id),
                ResponseFormat::Completions { .. } => openai::problem(status, &message),
            };
            fail(status, body.to_string(), retry_after)
        }
        // Ends when the client disconnects.
        ScriptedResponseBody::Hang => std::future::pending().await,
    };
    if let Ok(value) = HeaderValue::from_str(request_id) {
        response.headers_mut().insert(HeaderName::from_static("request-id"), value);
    }
    response
}

fn whole(text: String) -> Response {
    ([(CONTENT_TYPE, JSON)], text).into_response()
}

fn text_of(reply: &ScriptedReply, api: ResponseFormat) -> String {
    match api {
        ResponseFormat::Messages => reply.whole().to_string(),
        ResponseFormat::Completions { .. } => openai::whole(reply).to_string(),
    }
}

fn fail(status: u16, body: String, retry_after: u64) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, [(CONTENT_TYPE, JSON)], body).into_response();
    if api_errors::is_passing(status.as_u16()) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after));
    }
    response
}

fn stream_of(reply: &ScriptedReply, ending: StreamEnding, api: ResponseFormat) -> Response {
    let (mut events, overloaded, done) = match api {
        ResponseFormat::Messages => (events(reply), overloaded(), None),
        ResponseFormat::Completions { counted } => {
            (openai::chunks(reply, counted), openai::overloaded(), Some("data: [DONE]\n\n"))
        }
    };
    if ending == StreamEnding::Overloaded {
        events.truncate(events.len() / 2);
        events.push(overloaded);
    }
    let mut frames: Vec<(String, Duration)> = events.iter().map(frame).collect();
    frames.extend(
        done.filter(|_| ending != StreamEnding::Overloaded).map(|done| (done.to_owned(), Duration::ZERO)),
    );
    let cut = match ending {
        StreamEnding::Properly | StreamEnding::Overloaded => None,
        StreamEnding::Cut(after) => {
            frames.truncate(after);
            Some(dropped())
        }
    };
    let frames = stream::iter(frames).then(paced);
    let body = Body::from_stream(frames.chain(stream::iter(cut).then(after_a_flush)));
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    (headers, body).into_response()
}

fn frame(event: &PacedSseEvent) -> (String, Duration) {
    (event.text(), event.pause)
}

async fn paced((text, pause): (String, Duration)) -> io::Result<Bytes> {
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    Ok(Bytes::from(text))
}

/// Half of a response without streaming.
fn truncated_response(text: &str) -> Response {
    let half = Bytes::copy_from_slice(&text.as_bytes()[..text.len() / 2]);
    let body = Body::from_stream(stream::iter([Ok(half), Err(dropped())]).then(after_a_flush_if_last));
    ([(CONTENT_TYPE, JSON)], body).into_response()
}

async fn after_a_flush_if_last(frame: io::Result<Bytes>) -> io::Result<Bytes> {
    match frame {
        Ok(bytes) => Ok(bytes),
        Err(error) => after_a_flush(error).await,
    }
}

/// Waits once, so that earlier data is sent before the connection drops.
async fn after_a_flush(error: io::Error) -> io::Result<Bytes> {
    tokio::task::yield_now().await;
    Err(error)
}

fn dropped() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "dropped on purpose")
}
