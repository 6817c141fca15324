//! What a session opened ends with it: a streamed answer breaks off when the session is revoked or expires.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use futures_util::{StreamExt, stream};
use hyper::body::Body as _;
use runtime_model::SessionId;
use tokio_util::sync::CancellationToken;

use super::Access;
use crate::AppState;
use crate::clock::now_ms;

/// Entries beyond which those whose time is over are dropped.
const TABLE: usize = 1024;

/// What tells streams that their session was revoked.
#[derive(Default)]
pub(crate) struct Cuts(Mutex<HashMap<SessionId, (i64, CancellationToken)>>);

impl Cuts {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, (i64, CancellationToken)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, access: &Access) -> CancellationToken {
        let mut table = self.table();
        if table.len() > TABLE {
            let now = now_ms();
            table.retain(|_, (expires_at, _)| *expires_at > now);
        }
        table.entry(access.session).or_insert_with(|| (access.expires_at, CancellationToken::new())).1.clone()
    }

    /// Ends what the session has open.
    pub(super) fn cut(&self, session: SessionId) {
        if let Some((_, token)) = self.table().remove(&session) {
            token.cancel();
        }
    }
}

/// A body of known length is on its way out whole; any other lasts no longer than its session.
pub(crate) async fn until_cut(app: &AppState, access: &Access, response: Response<Body>) -> Response<Body> {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let token = app.cuts().of(access);
    // Revoked between the look at the row and now.
    let row = app.store().session(access.sandbox, access.session).await;
    if !row.is_ok_and(|row| row.is_some_and(|row| row.revoked_at.is_none())) {
        token.cancel();
    }
    let left = u64::try_from(access.expires_at.saturating_sub(now_ms())).unwrap_or(0);
    let end = Box::pin(async move {
        let _ = tokio::time::timeout(Duration::from_millis(left), token.cancelled()).await;
    });
    response.map(|body| {
        let pieces = stream::unfold(Some((body.into_data_stream(), end)), |open| async move {
            let (mut pieces, mut end) = open?;
            tokio::select! {
                biased;
                // Broken off: an end in good order would be taken for the end of the output.
                () = &mut end => {
                    let cut = std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "the session has ended");
                    Some((Err(axum::Error::new(cut)), None))
                }
                piece = pieces.next() => piece.map(|piece| (piece, Some((pieces, end)))),
            }
        });
        Body::from_stream(pieces)
    })
}
