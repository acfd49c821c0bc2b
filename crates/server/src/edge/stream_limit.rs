//! Limits the streams of each key, and ends them when the key is revoked.

use axum::body::Body;
use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

#[derive(Clone)]
pub(crate) struct KeyStreamLimiter {
    keys: Arc<Mutex<HashMap<String, KeyStreamState>>>,
    max: usize,
}

#[derive(Default)]
struct KeyStreamState {
    revoked: CancellationToken,
    open: usize,
}

#[derive(Debug)]
pub(crate) struct TooManyStreams(pub(crate) usize);

/// One stream of a key. Its place becomes free when this is dropped.
pub(crate) struct StreamPermit {
    streams: KeyStreamLimiter,
    key: String,
    revoked: CancellationToken,
}

impl KeyStreamLimiter {
    pub(crate) fn new(max: usize) -> KeyStreamLimiter {
        KeyStreamLimiter { keys: Arc::default(), max }
    }

    pub(crate) fn open(&self, key: &str) -> Result<StreamPermit, TooManyStreams> {
        let mut keys = self.lock();
        let streams = keys.entry(key.to_owned()).or_default();
        if streams.open >= self.max {
            return Err(TooManyStreams(self.max));
        }
        streams.open += 1;
        Ok(StreamPermit { streams: self.clone(), key: key.to_owned(), revoked: streams.revoked.clone() })
    }

    /// Ends every stream of the key.
    pub(crate) fn revoke(&self, key: &str) {
        if let Some(streams) = self.lock().get(key) {
            streams.revoked.cancel();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, KeyStreamState>> {
        self.keys.lock().expect("no code panics while it holds this lock")
    }
}

impl StreamPermit {
    pub(crate) async fn revoked(&self) {
        self.revoked.cancelled().await;
    }

    /// The body, which ends when the key is revoked.
    pub(crate) fn end_on_revoke(self, body: Body) -> Body {
        let revoked = Box::pin(self.revoked.clone().cancelled_owned());
        Body::new(RevocableBody { body, revoked, _lease: self })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut keys = self.streams.lock();
        if let Some(streams) = keys.get_mut(&self.key) {
            streams.open -= 1;
            if streams.open == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

struct RevocableBody {
    body: Body,
    revoked: Pin<Box<WaitForCancellationFutureOwned>>,
    _lease: StreamPermit,
}

impl hyper::body::Body for RevocableBody {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<bytes::Bytes>, axum::Error>>> {
        if self.revoked.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn a_key_has_so_many_streams_at_once_and_none_when_it_is_revoked() {
        let streams = KeyStreamLimiter::new(2);
        let (one, two) = (streams.open("a").expect("a place"), streams.open("a").expect("a place"));
        assert!(streams.open("a").is_err() && streams.open("b").is_ok());
        drop(one);
        let endless = Body::from_stream(futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
        let mut body = streams.open("a").expect("a place again").end_on_revoke(endless);
        assert!(futures::poll!(body.frame()).is_pending());
        streams.revoke("b");
        assert!(futures::poll!(body.frame()).is_pending());
        streams.revoke("a");
        assert!(body.frame().await.is_none(), "it ends");
        two.revoked().await;
        drop((body, two));
        assert!(streams.lock().is_empty());
    }
}
