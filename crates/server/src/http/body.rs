//! A request body that comes back if its handler did not read it.
//!
//! A client that is still sending when an early refusal arrives sees a reset instead of the refusal. So what was not
//! read is drained, up to a bound, before the answer goes out.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// What a client may still send into a refusal.
const DRAIN: usize = 2 * 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Where an unread body waits.
#[derive(Clone, Default)]
pub(crate) struct Unread(Arc<Mutex<Option<Incoming>>>);

pub(crate) struct Returning {
    inner: Option<Incoming>,
    unread: Unread,
}

impl Returning {
    pub(crate) fn new(inner: Incoming, unread: Unread) -> Self {
        Self { inner: Some(inner), unread }
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take().filter(|inner| !inner.is_end_stream()) {
            *self.unread.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(inner);
        }
    }
}

impl Body for Returning {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(inner) = self.inner.as_mut() else { return Poll::Ready(None) };
        let polled = Pin::new(inner).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.inner = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Unread {
    /// Reads what is left, within the bounds; false if more was left than that.
    pub(crate) async fn drain(&self) -> bool {
        let body = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut body) = body else { return true };
        let read = async {
            let mut left = DRAIN;
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else { return false };
                match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                    Some(rest) => left = rest,
                    None => return false,
                }
            }
            true
        };
        tokio::time::timeout(DRAIN_TIME, read).await.unwrap_or(false)
    }
}
