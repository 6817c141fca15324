//! What a browser is shown in a preview's place. Nothing in these pages runs, and nothing is fetched for them.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Response, StatusCode};

use crate::error::ApiError;

/// Seconds after which a page that waits loads itself again.
const AGAIN: u32 = 2;

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn page(status: StatusCode, head: &str, title: &str, body: &str) -> Response<Body> {
    let text = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">{head}<title>{title}</title><style>\
         body{{font:16px/1.5 system-ui,sans-serif;max-width:34em;margin:15vh auto;padding:0 1em;color:#222}}\
         a.go{{display:inline-block;padding:.5em 1em;border:1px solid #888;border-radius:.4em;color:inherit}}\
         </style></head><body><h1>{title}</h1>{body}</body></html>",
        title = escaped(title),
    );
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"),
    );
    response
}

/// The sandbox is on its way: the page asks again by itself.
pub(super) fn waiting() -> Response<Body> {
    let head = format!("<meta http-equiv=\"refresh\" content=\"{AGAIN}\">");
    let body = "<p>The sandbox behind this page is being woken. The page loads by itself.</p>";
    let mut response = page(StatusCode::SERVICE_UNAVAILABLE, &head, "One moment", body);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(AGAIN));
    response
}

/// Before somebody's public page is shown for the first time. `on` leads to it.
pub(super) fn before(host: &str, on: &str) -> Response<Body> {
    let body = format!(
        "<p>What you will see at <b>{}</b> is served from a sandbox that somebody runs on Runtime. Runtime did not make it \
         and does not vouch for it. Do not enter passwords there that you use elsewhere.</p>\
         <p><a class=\"go\" rel=\"nofollow\" href=\"{}\">Go on</a></p>",
        escaped(host),
        escaped(on),
    );
    page(StatusCode::OK, "<meta name=\"robots\" content=\"noindex\">", "A page from a sandbox", &body)
}

pub(super) fn refusal(error: &ApiError) -> Response<Body> {
    let hint = error.advice().map(|hint| format!("<p>{}</p>", escaped(hint))).unwrap_or_default();
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    page(status, "", error.message(), &hint)
}
