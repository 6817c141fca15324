//! One request of a visitor, handed to the server in the sandbox, and its answer handed back: HTTP/1.1, and whatever a
//! connection is upgraded to.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{
    CONNECTION, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Inside;
use crate::AppState;
use crate::clock::now_ms;
use crate::error::{ApiError, Kind};
use crate::guest::visit::Visit;
use crate::http::broken::{Cut, break_off};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// What concerns one connection only (RFC 9110, section 7.6.1).
const ONE_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
const OVER: &str = "the preview was changed, or the way into it has ended";

/// What ends a visit before it has ended by itself.
#[derive(Clone)]
pub(super) struct Ends {
    /// The preview was changed.
    pub(super) inside: Arc<Inside>,
    /// The session that its token was read through was revoked, or is over at this second since 1970.
    pub(super) session: Option<(CancellationToken, i64)>,
}

impl Ends {
    fn cut(&self) -> Cut {
        let Self { inside, session } = self.clone();
        Box::pin(async move {
            let Some((revoked, over)) = session else { return inside.changed.cancelled().await };
            let left = over.saturating_mul(1000).saturating_sub(now_ms());
            let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
            tokio::select! {
                () = inside.changed.cancelled() => {}
                () = revoked.cancelled() => {}
                () = tokio::time::sleep(left) => {}
            }
        })
    }
}

fn drop_hop(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let upgrade = headers.get(UPGRADE).cloned();
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&ONE_HOP) {
        headers.remove(name);
    }
    upgrade
}

fn asks_upgrade(headers: &mut HeaderMap, to: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, to);
}

/// A sandbox's cookies are its own: without `Domain` a browser sends them to no other name.
fn keep_cookies_home(headers: &mut HeaderMap) {
    let wide = |cookie: &&str| {
        let name = cookie.split('=').next().unwrap_or_default().trim();
        name.eq_ignore_ascii_case("domain")
    };
    for value in headers.iter_mut().filter(|(name, _)| *name == SET_COOKIE).map(|(_, value)| value) {
        let bytes = value.as_bytes();
        let text = String::from_utf8_lossy(bytes);
        let mut parts = text.split(';');
        let named = parts.next().unwrap_or_default();
        if !parts.clone().any(|part| wide(&part)) {
            continue;
        }
        let kept = std::iter::once(named).chain(parts.filter(|part| !wide(part))).collect::<Vec<_>>().join(";");
        if let Ok(kept) = HeaderValue::from_bytes(kept.as_bytes()) {
            *value = kept;
        }
    }
}

fn no_http(port: u16) -> ApiError {
    ApiError::new(Kind::GuestFailed, format!("What listens on port {port} of the sandbox did not answer in HTTP."))
        .hint("Previews are for web servers; for other protocols forward the port.")
}

pub(super) async fn forward(
    app: &AppState,
    (io, visit): (DuplexStream, Arc<Visit>),
    mut request: Request<Incoming>,
    port: u16,
    ends: Ends,
) -> Result<Response<Body>, ApiError> {
    let theirs = hyper::upgrade::on(&mut request);
    let wanted = drop_hop(request.headers_mut());
    if let Some(to) = wanted.clone() {
        asks_upgrade(request.headers_mut(), to);
    }
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(|_| no_http(port))?;
    let connection = AbortOnDropHandle::new(tokio::spawn(connection.with_upgrades()));
    let mut cut = ends.cut();
    let answered = tokio::select! {
        biased;
        () = &mut cut => return Err(ApiError::new(Kind::Unauthorized, "The way into this preview has ended.")),
        answered = sender.send_request(request.map(Body::new)) => answered,
    };
    let mut response = answered.map_err(|_| no_http(port))?;
    let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let ours = upgraded.then(|| hyper::upgrade::on(&mut response));
    let (mut parts, body) = response.into_parts();
    let to = drop_hop(&mut parts.headers);
    keep_cookies_home(&mut parts.headers);
    let Some(ours) = ours else {
        let body = break_off(Body::new(body), cut, OVER, (visit, connection, sender));
        return Ok(Response::from_parts(parts, body));
    };
    let (Some(to), Some(_)) = (to, wanted) else { return Err(no_http(port)) };
    asks_upgrade(&mut parts.headers, to);
    // It outlives the request. A stop of the server does not wait for it.
    let stopping = app.sandboxes().stopping().clone();
    tokio::spawn(async move {
        let _held = (visit, connection);
        let carried = async {
            let (theirs, ours) = tokio::try_join!(theirs, ours)?;
            let copied = tokio::io::copy_bidirectional(&mut TokioIo::new(theirs), &mut TokioIo::new(ours)).await;
            Ok::<_, hyper::Error>(copied)
        };
        tokio::select! {
            biased;
            () = &mut cut => {}
            () = stopping.cancelled() => {}
            ended = carried => if let Err(error) = ended {
                tracing::debug!(%error, "an upgraded connection into a preview did not come to be");
            }
        }
    });
    Ok(Response::from_parts(parts, Body::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_one_connection_stays_there() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, X-Mine"),
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "Basic x"),
            ("accept", "*/*"),
            ("content-length", "3"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        assert_eq!(drop_hop(&mut headers).unwrap(), "websocket");
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "content-length"]);
    }

    #[test]
    fn cookies_are_for_their_own_name() {
        let mut headers = HeaderMap::new();
        for cookie in
            ["a=1; Path=/; Domain=box.example; Secure", "domain=x; DOMAIN = .example ;HttpOnly", "b=2; Path=/d"]
        {
            headers.append(SET_COOKIE, HeaderValue::from_static(cookie));
        }
        keep_cookies_home(&mut headers);
        let left: Vec<&str> = headers.get_all(SET_COOKIE).iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(left, ["a=1; Path=/; Secure", "domain=x;HttpOnly", "b=2; Path=/d"]);
    }
}
