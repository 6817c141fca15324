//! Who may see a preview, and in which state of its sandbox.

use axum::body::Body;
use axum::http::header::{ACCEPT, CONTENT_SECURITY_POLICY, COOKIE, HOST, LOCATION, ORIGIN, REFERER, SET_COOKIE};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use runtime_model::{Reason, State};
use runtime_store::PreviewRow;

use super::address::Address;
use super::forward::{Ends, forward};
use super::pages;
use super::token::{self, Claims};
use crate::AppState;
use crate::call::RequestId;
use crate::clock::now_ms;
use crate::error::{ApiError, Kind};
use crate::guest::gateway::Guest;
use crate::guest::visit::connect;
use crate::http::pipeline::render;
use crate::sessions::Access;

/// What `urlWithToken` carries.
pub(super) const TOKEN_PARAMETER: &str = "runtime_preview_token";
const TOKEN_PARAMETERS: [&str; 2] = [TOKEN_PARAMETER, "bl_preview_token"];
const TOKEN_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("x-runtime-preview-token"), HeaderName::from_static("x-blaxel-preview-token")];
/// Each preview is a site of its own, so one name does for all.
const TOKEN_COOKIE: &str = "runtime_preview";
/// The visitor has read whose page it is.
const SEEN_COOKIE: &str = "runtime_preview_seen";
const SEEN_PARAMETER: &str = "runtime_preview_seen";
/// Seconds for which it is not said again.
const SEEN_FOR: u32 = 30 * 86_400;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REPORT: HeaderName = HeaderName::from_static("x-runtime-report");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Answers a request at a preview's address.
pub(crate) async fn visit(app: &AppState, to: Address, request: Request<Incoming>, id: &RequestId) -> Response<Body> {
    let for_people = accepts_pages(request.headers());
    let report = app.config().public_url.clone().unwrap_or_else(|| {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        format!("http://{}", host.split_once('.').map_or(host, |(_, rest)| rest))
    });
    let mut response = match visited(app, to, request).await {
        Ok(response) => response,
        Err(error) => {
            if let Some(cause) = error.cause() {
                tracing::warn!(request = %id.0, sandbox = %to.sandbox, port = to.port, cause, "a visit failed");
            }
            refused(&error, for_people, id)
        }
    };
    if let Ok(report) = HeaderValue::from_str(&report) {
        response.headers_mut().insert(REPORT, report);
    }
    response
}

/// Answers a request at no preview's address, where there is nothing but previews.
pub(crate) fn nowhere(headers: &HeaderMap, id: &RequestId) -> Response<Body> {
    refused(&no_address(), accepts_pages(headers), id)
}

fn refused(error: &ApiError, for_people: bool, id: &RequestId) -> Response<Body> {
    let mut response = if for_people { pages::refusal(error) } else { render(error, id) };
    if let Ok(id) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

fn no_address() -> ApiError {
    ApiError::new(Kind::NotFound, "There is nothing at this address.")
        .hint("Previews are made with: runtime sandboxes preview SANDBOX PORT")
}

async fn visited(app: &AppState, to: Address, mut request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    // Before the look at the row: see `Visits::enter`.
    let inside = app.visits().enter(to.sandbox, to.port);
    let Some(row) = app.preview_row(to.sandbox, to.port).await? else { return Err(nothing(app, to).await) };
    let asked = Asked::take(&mut request)?;
    asked.may_frame(&row)?;
    let mut session = None;
    if row.public {
        if asked.navigates && !asked.framed && !asked.seen {
            let host = text(request.headers(), &HOST).unwrap_or_default();
            return Ok(if asked.says_seen {
                redirect(request.uri(), Some(&cookie(to, SEEN_COOKIE, "1", SEEN_FOR.into())))
            } else {
                pages::before(host, &on(request.uri()))
            });
        }
    } else {
        let claims = asked.claims(&row)?;
        session = app.still_given(to, claims).await?;
        if asked.navigates
            && let Some(token) = &asked.from_link
        {
            // Only for what holds itself: a bad link takes no visitor's good cookie away.
            let now = now_ms() / 1000;
            let set = token::read(&row, token, now);
            let set = set.map(|claims| cookie(to, TOKEN_COOKIE, token, claims.ends_at - now));
            return Ok(redirect(request.uri(), set.as_deref()));
        }
    }
    let guest = match find(app, to, asked.navigates).await? {
        Found::Guest(guest) => *guest,
        Found::OnItsWay => return Ok(pages::waiting()),
    };
    let port = to.port;
    let io = connect(app, guest, port).await?;
    let mut response = forward(app, io, request, port, Ends { inside, session }).await?;
    if let Some(sites) = &row.embed_origins
        && let Ok(policy) = HeaderValue::from_str(&format!("frame-ancestors 'self' {}", sites.join(" ")))
    {
        // Beside the page's own policy: a browser keeps to both.
        response.headers_mut().append(CONTENT_SECURITY_POLICY, policy);
    }
    Ok(response)
}

/// What a request says of its visitor, taken out of it: the server in the sandbox sees none of it.
struct Asked {
    /// A browser loads this as a page.
    navigates: bool,
    /// Into a frame of another page.
    framed: bool,
    /// The page it comes from.
    referer: Option<String>,
    tokens: Vec<String>,
    from_link: Option<String>,
    seen: bool,
    says_seen: bool,
}

impl Asked {
    fn take(request: &mut Request<Incoming>) -> Result<Self, ApiError> {
        let headers = request.headers();
        let mode = text(headers, &FETCH_MODE);
        let pages = mode.map_or_else(|| accepts_pages(headers), |mode| mode == "navigate");
        let navigates = pages && request.method() == Method::GET;
        let framed =
            text(headers, &FETCH_DEST).is_some_and(|dest| matches!(dest, "iframe" | "frame" | "embed" | "object"));
        let referer = text(headers, &REFERER).map(str::to_owned);
        let mut tokens: Vec<String> =
            TOKEN_HEADERS.iter().filter_map(|name| text(headers, name).map(str::to_owned)).collect();
        let (uri, parameters) = without_ours(request.uri())?;
        let find = |name: &str| parameters.iter().find(|(have, _)| have == name).map(|(_, value)| value.clone());
        let from_link = TOKEN_PARAMETERS.iter().find_map(|name| find(name));
        let says_seen = find(SEEN_PARAMETER).is_some();
        tokens.extend(from_link.clone());
        *request.uri_mut() = uri;
        for name in &TOKEN_HEADERS {
            request.headers_mut().remove(name);
        }
        let own = navigates || from_own_page(request.headers());
        let cookies = take_cookies(request.headers_mut());
        let seen = cookies.iter().any(|(name, _)| name == SEEN_COOKIE);
        let given = cookies.into_iter().filter(|(name, _)| own && name == TOKEN_COOKIE);
        tokens.extend(given.map(|(_, value)| value));
        Ok(Self { navigates, framed, referer, tokens, from_link, seen, says_seen })
    }

    /// Old browsers do not say that they load into a frame; for them there is the policy on the answer.
    fn may_frame(&self, row: &PreviewRow) -> Result<(), ApiError> {
        let Some(sites) = row.embed_origins.as_ref().filter(|_| self.framed) else { return Ok(()) };
        let from = self.referer.as_deref().and_then(|from| from.parse::<Uri>().ok());
        let from = from.as_ref().and_then(|from| Some((from.scheme_str()?, from.authority()?.as_str())));
        if from.is_some_and(|(scheme, authority)| sites.iter().any(|site| covers(site, scheme, authority))) {
            return Ok(());
        }
        Err(ApiError::new(Kind::Forbidden, "This page may not be shown inside that site.")
            .hint("Whoever shares it names the sites in embedOrigins."))
    }

    fn claims(&self, row: &PreviewRow) -> Result<Claims, ApiError> {
        let now = now_ms() / 1000;
        self.tokens.iter().find_map(|said| token::read(row, said, now)).ok_or_else(|| {
            let said = if self.tokens.is_empty() { "This preview is private." } else { "This link has ended." };
            ApiError::new(Kind::Unauthorized, said).hint("Ask whoever shared it for a new link.")
        })
    }
}

/// Does an entry of `embedOrigins` stand for this origin?
fn covers(site: &str, scheme: &str, authority: &str) -> bool {
    let Some((of, place)) = site.split_once("://") else { return false };
    let same = match place.strip_prefix("*.") {
        None => place.eq_ignore_ascii_case(authority),
        Some(below) => {
            let cut = authority.len().checked_sub(below.len() + 1).filter(|cut| *cut > 0);
            cut.is_some_and(|cut| {
                authority.as_bytes()[cut] == b'.'
                    && authority.as_bytes()[cut + 1..].eq_ignore_ascii_case(below.as_bytes())
            })
        }
    };
    of == scheme && same
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A browser sends a cookie whoever's page asks. One that asks without its visitor's doing gets nothing by it: the page of
/// another sandbox must not act here in its visitor's name.
fn from_own_page(headers: &HeaderMap) -> bool {
    match (text(headers, &FETCH_SITE), text(headers, &ORIGIN)) {
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, None) => true,
        (None, Some(origin)) => {
            let page = origin.split_once("://").map(|(_, host)| host);
            page.is_some_and(|page| text(headers, &HOST).is_some_and(|host| page.eq_ignore_ascii_case(host)))
        }
    }
}

fn accepts_pages(headers: &HeaderMap) -> bool {
    text(headers, &ACCEPT).is_some_and(|accept| accept.contains("text/html"))
}

/// The address without what is for us in its query, and that.
fn without_ours(uri: &Uri) -> Result<(Uri, Vec<(String, String)>), ApiError> {
    let mut ours = Vec::new();
    let mut kept = Vec::new();
    for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name == SEEN_PARAMETER || TOKEN_PARAMETERS.contains(&name) {
            ours.push((name.to_owned(), value.to_owned()));
        } else {
            kept.push(pair);
        }
    }
    let path = uri.path();
    let text = if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) };
    let whole: PathAndQuery = text.parse().map_err(|_| ApiError::wrong("path", "is not valid"))?;
    Ok((Uri::from(whole), ours))
}

/// Our cookies, taken out of what the sandbox is sent.
fn take_cookies(headers: &mut HeaderMap) -> Vec<(String, String)> {
    let mut ours = Vec::new();
    let mut kept: Vec<String> = Vec::new();
    for value in headers.get_all(COOKIE) {
        let Ok(value) = value.to_str() else { continue };
        for pair in value.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some((name, value)) if name == TOKEN_COOKIE || name == SEEN_COOKIE => {
                    ours.push((name.to_owned(), value.to_owned()));
                }
                _ => kept.push(pair.to_owned()),
            }
        }
    }
    headers.remove(COOKIE);
    if !kept.is_empty()
        && let Ok(value) = HeaderValue::from_str(&kept.join("; "))
    {
        headers.insert(COOKIE, value);
    }
    ours
}

/// Behind TLS it is also sent in frames of other sites; without, browsers take no such cookie.
fn cookie(to: Address, name: &str, value: &str, seconds: i64) -> String {
    let site = if to.secure { "Secure; SameSite=None; Partitioned" } else { "SameSite=Lax" };
    format!("{name}={value}; Path=/; HttpOnly; Max-Age={seconds}; {site}")
}

/// To the same place, without what was for us.
fn redirect(uri: &Uri, cookie: Option<&str>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let place = relative(uri);
    for (name, value) in [(LOCATION, Some(place.as_str())), (SET_COOKIE, cookie)] {
        if let Some(Ok(value)) = value.map(HeaderValue::from_str) {
            response.headers_mut().insert(name, value);
        }
    }
    response.headers_mut().insert("cache-control", HeaderValue::from_static("no-store"));
    response.headers_mut().insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    response
}

/// Never another host's: a path may begin with two slashes.
fn relative(uri: &Uri) -> String {
    let place = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    format!("/{}", place.trim_start_matches(['/', '\\']))
}

fn on(uri: &Uri) -> String {
    let place = relative(uri);
    let sign = if place.contains('?') { '&' } else { '?' };
    format!("{place}{sign}{SEEN_PARAMETER}=1")
}

enum Found {
    Guest(Box<Guest>),
    /// It is being woken.
    OnItsWay,
}

/// The sandbox, running; a browser is not held up meanwhile.
async fn find(app: &AppState, to: Address, navigates: bool) -> Result<Found, ApiError> {
    let Some(live) = app.live(to.sandbox).await? else { return Err(nothing(app, to).await) };
    let row = live.row()?;
    if row.state == State::Stopped {
        return Err(match row.reason {
            Some(Reason::StartupFailed | Reason::PauseFailed) => {
                ApiError::new(Kind::Gone, "The sandbox behind this page failed.")
            }
            _ => ApiError::new(Kind::NotFound, "The sandbox behind this page is stopped."),
        });
    }
    if navigates && row.state != State::Running && (row.auto_wake || row.state == State::Starting) {
        let (app, live) = (app.clone(), live.clone());
        // Woken for whoever asks next; what comes of it is then told.
        app.clone().tasks().spawn(async move { drop(app.ready_again(live).await) });
        return Ok(Found::OnItsWay);
    }
    match app.ready_again(live).await {
        Ok(ready) => Ok(Found::Guest(Box::new(Guest::of(app, ready)))),
        Err(error) if error.kind() == Kind::SandboxStopped => {
            Err(ApiError::new(Kind::NotFound, "The sandbox behind this page is stopped."))
        }
        Err(error) if error.status() < 500 => {
            Err(ApiError::new(Kind::Busy, error.message().to_owned()).retry_after(std::time::Duration::from_secs(5)))
        }
        Err(error) => Err(error),
    }
}

/// There is no such preview, or no longer its sandbox.
async fn nothing(app: &AppState, to: Address) -> ApiError {
    match app.store().deleted(to.sandbox).await {
        Ok(Some(_)) => ApiError::new(Kind::Gone, "The sandbox behind this page was deleted."),
        Ok(None) => no_address(),
        Err(error) => ApiError::internal(format!("looking for sandbox {}", to.sandbox), error),
    }
}

impl AppState {
    /// A token that was read through a session ends with it; what tells of that end, and the second of its own.
    async fn still_given(
        &self,
        to: Address,
        claims: Claims,
    ) -> Result<Option<(tokio_util::sync::CancellationToken, i64)>, ApiError> {
        let Some(session) = claims.session else { return Ok(None) };
        let ended =
            || ApiError::new(Kind::Unauthorized, "This link has ended.").hint("Load the page again that it is in.");
        let access = Access { session, sandbox: to.sandbox, expires_at: claims.ends_at.saturating_mul(1000) };
        let cut = self.cuts().of(&access);
        let failed = |error| ApiError::internal(format!("reading session {session}"), error);
        let row = self.store().session(to.sandbox, session).await.map_err(failed)?.ok_or_else(ended)?;
        // By its hash it is told whether the key that made it is still there.
        let found = self.store().session_by_hash(row.hash).await.map_err(failed)?.ok_or_else(ended)?;
        let live = found.session.revoked_at.is_none() && found.session.expires_at > now_ms() && !found.orphan;
        if live { Ok(Some((cut, claims.ends_at))) } else { Err(ended()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_not_shown_to_the_sandbox() {
        let uri: Uri = "/a/b?x=1&runtime_preview_token=secret&y=%20&bl_preview_token=other".parse().unwrap();
        let (left, ours) = without_ours(&uri).unwrap();
        assert_eq!(left.to_string(), "/a/b?x=1&y=%20");
        assert_eq!(ours.len(), 2);
        assert_eq!(without_ours(&"/?runtime_preview_token=t".parse().unwrap()).unwrap().0.to_string(), "/");

        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; runtime_preview=secret; b=2"));
        headers.append(COOKIE, HeaderValue::from_static("runtime_preview_seen=1"));
        assert_eq!(take_cookies(&mut headers).len(), 2);
        assert_eq!(headers.get(COOKIE).unwrap(), "a=1; b=2");
    }

    #[test]
    fn a_cookie_does_not_speak_for_other_pages() {
        let own = |pairs: &[(&'static str, &'static str)]| {
            let pairs = [&[("host", "3000-x.box.example")], pairs].concat();
            let pairs =
                pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            from_own_page(&pairs.collect())
        };
        assert!(
            own(&[]) && own(&[("origin", "https://3000-x.box.example")]) && own(&[("sec-fetch-site", "same-origin")])
        );
        for site in ["same-site", "cross-site"] {
            assert!(!own(&[("sec-fetch-site", site)]) && !own(&[("sec-fetch-site", site), ("origin", "null")]));
        }
        for origin in ["https://3000-y.box.example", "null", "https://box.example"] {
            assert!(!own(&[("origin", origin)]), "{origin}");
        }
    }

    #[test]
    fn a_redirect_stays_on_its_host() {
        for (from, to) in
            [("/a?b=c", "/a?b=c"), ("//evil.example/x", "/evil.example/x"), ("/\\evil.example", "/evil.example")]
        {
            let Ok(uri) = from.parse::<PathAndQuery>().map(Uri::from) else { continue };
            assert_eq!(relative(&uri), to);
        }
    }

    #[test]
    fn sites_are_compared_whole() {
        assert!(covers("https://app.example", "https", "app.example"));
        assert!(covers("https://*.example.com", "https", "a.b.example.com"));
        assert!(covers("http://localhost:3000", "http", "localhost:3000"));
        for (site, scheme, authority) in [
            ("https://app.example", "http", "app.example"),
            ("https://app.example", "https", "app.example:8443"),
            ("https://app.example", "https", "app.example.evil"),
            ("https://*.example.com", "https", "example.com"),
            ("https://*.example.com", "https", ".example.com"),
            ("https://*.example.com", "https", "evilexample.com"),
        ] {
            assert!(!covers(site, scheme, authority), "{site} {scheme}://{authority}");
        }
    }
}
