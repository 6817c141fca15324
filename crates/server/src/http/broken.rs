//! Bodies that break off: an answer whose right to be read has ended must not look as if it had come to its end.

use std::pin::Pin;

use axum::body::Body;
use futures_util::{StreamExt, stream};

/// When it completes, the body breaks off.
pub(crate) type Cut = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body until `cut` completes; then an error in its place, which the client sees as a broken connection. `held` is
/// dropped when the body is.
pub(crate) fn break_off<T: Send + 'static>(body: Body, cut: Cut, why: &'static str, held: T) -> Body {
    let pieces = stream::unfold(Some((body.into_data_stream(), cut, held)), move |open| async move {
        let (mut pieces, mut cut, held) = open?;
        tokio::select! {
            biased;
            () = &mut cut => {
                let broken = std::io::Error::new(std::io::ErrorKind::ConnectionAborted, why);
                Some((Err(axum::Error::new(broken)), None))
            }
            piece = pieces.next() => piece.map(|piece| (piece, Some((pieces, cut, held)))),
        }
    });
    Body::from_stream(pieces)
}
