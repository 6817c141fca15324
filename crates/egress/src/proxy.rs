//! The HTTP proxy that a guest talks to: `CONNECT`, and requests with a whole URL.
//!
//! Each request is judged by itself, also on a connection that is kept: what one was allowed says nothing of the next. The
//! `Host` of a request is the one of its URL, whatever the guest wrote there. A refusal says which rule it was.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use runtime_model::network::Host;
use runtime_proto::guest::Flow;
use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::dial::{self, DialError};
use crate::judge::{self, Destination, Reason, Refusal};
use crate::ledger::{Asked, Open};
use crate::pipe::Counted;
use crate::service::{Pass, Sandbox, Shared};
use crate::tunnel;

/// The header that names the reason of a refusal.
static REASON: HeaderName = HeaderName::from_static("x-runtime-egress");
const MAX_HEAD: usize = 32 * 1024;
const MAX_HEADERS: usize = 128;
/// Between two requests on a connection that is kept, and for the head of one.
const HEAD_TIME: Duration = Duration::from_secs(75);
/// Meant for the next hop, not for the one behind it.
static HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];
const MORE_HOP_BY_HOP: [&str; 2] = ["keep-alive", "proxy-connection"];

type Answer = Response<UnsyncBoxBody<Bytes, hyper::Error>>;

/// One connection of a guest to its proxy.
struct Session {
    shared: Arc<Shared>,
    sandbox: Arc<Sandbox>,
    flow: Flow,
    cut: CancellationToken,
    /// What a `CONNECT` that was allowed goes on with.
    tunnel: Mutex<Option<Tunnel>>,
    /// Connections to places; they end with the session.
    workers: Mutex<JoinSet<()>>,
}

struct Tunnel {
    guest: OnUpgrade,
    reached: Reached,
    to: Destination,
}

/// A place that was let through to.
struct Reached {
    place: Counted<TcpStream>,
    pass: Pass,
    open: Open,
    version: u64,
}

/// Serves a guest's connection until it ends.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    sandbox: Arc<Sandbox>,
    flow: Flow,
    io: DuplexStream,
    cut: CancellationToken,
) {
    let (tunnel, workers) = (Mutex::default(), Mutex::default());
    let session = Arc::new(Session { shared, sandbox, flow, cut, tunnel, workers });
    let service = service_fn(|request| {
        let session = session.clone();
        async move { Ok::<_, Infallible>(session.answer(request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .half_close(true)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades()
        .await;
    let tunnel = session.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let (Ok(()), Some(tunnel)) = (served, tunnel) {
        session.dig(tunnel).await;
    }
}

impl Session {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let method = request.method().clone();
        let to = match destination(&method, request.uri()) {
            Ok(to) => to,
            Err(what) => {
                let (host, version) = (request.uri().to_string(), self.version());
                let asked = Asked { flow: &self.flow, method: method.as_str(), host, port: 0, version };
                let refusal = Refusal { reason: Reason::BadRequest, rule: Some(what.to_owned()), address: None };
                self.sandbox.ledger.refused(&asked, &refusal);
                return refused(&refusal, &format!("Not a request to a proxy: it {what}."));
            }
        };
        match self.reach(method.as_str(), &to).await {
            Err(refusal) => {
                self.refuse(method.as_str(), &to, &refusal);
                refused(&refusal, &told(&to, &refusal))
            }
            Ok(reached) if method == Method::CONNECT => {
                let tunnel = Tunnel { guest: hyper::upgrade::on(request), reached, to };
                *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnel);
                Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync())
            }
            Ok(reached) => match self.forward(request, &to, reached).await {
                Ok(answer) => answer,
                Err(error) => {
                    let rule = Some(error.to_string());
                    let refusal = Refusal { reason: Reason::ConnectFailed, rule, address: None };
                    refused(&refusal, &told(&to, &refusal))
                }
            },
        }
    }

    fn version(&self) -> u64 {
        self.sandbox.rules().map_or(0, |rules| rules.version)
    }

    fn refuse(&self, method: &str, to: &Destination, refusal: &Refusal) {
        self.sandbox.ledger.refused(&Asked::new(&self.flow, method, to, self.version()), refusal);
    }

    /// From a destination to an open connection, if the rules let it.
    async fn reach(&self, method: &str, to: &Destination) -> Result<Reached, Refusal> {
        if !self.sandbox.may_come() {
            return Err(Refusal::new(Reason::TooManyConnections));
        }
        let public = &self.shared.settings.public;
        let rules = self.sandbox.rules_soon().await.ok_or_else(|| Refusal::new(Reason::NotReady))?;
        judge::by_name(&rules.network, to)?;
        let found = match &to.host {
            Host::Address(ip) => vec![*ip],
            Host::Name(name) => {
                let _turn = self.sandbox.lookups.acquire().await;
                self.shared.resolver.resolve(name).await.map_err(|error| {
                    tracing::debug!(error = &error as &dyn std::error::Error, "a name of a guest was not found");
                    Refusal::new(Reason::DnsFailed)
                })?
            }
        };
        let addresses = judge::by_addresses(&rules.network, to, &found, public)?;
        let (stream, address) = dial::dial(&addresses).await.map_err(|error| not_dialled(&error))?;
        // Rules may have changed since; and from here on a change finds this connection.
        let (pass, permit, version) = self.sandbox.enter(to, address.ip(), &self.cut, public)?;
        let asked = Asked::new(&self.flow, method, to, version);
        let open = self.sandbox.ledger.allowed(&asked, &permit, address.ip());
        Ok(Reached { place: Counted::new(stream, open.0.clone()), pass, open, version })
    }

    /// Sends a request on and gives the answer as it comes.
    async fn forward(
        &self,
        mut request: Request<Incoming>,
        to: &Destination,
        reached: Reached,
    ) -> Result<Answer, hyper::Error> {
        let Reached { place, pass, open, .. } = reached;
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
        *request.version_mut() = Version::HTTP_11;
        strip(request.headers_mut());
        request.headers_mut().insert(header::HOST, host_header(to));
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .preserve_header_case(true)
            .handshake(TokioIo::new(place))
            .await?;
        {
            let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
            while workers.try_join_next().is_some() {}
            workers.spawn(async move {
                // Its error comes out at the request and at the body.
                let _ = connection.await;
            });
        }
        let mut answer = sender.send_request(request).await?;
        strip(answer.headers_mut());
        // The sender as well: without it the connection would end before the body has.
        Ok(answer.map(|body| Held { body, _kept: (pass, open, sender) }.boxed_unsync()))
    }

    async fn dig(&self, tunnel: Tunnel) {
        let Tunnel { guest, reached: Reached { place, pass, open, version }, to } = tunnel;
        let Ok(upgraded) = guest.await else { return };
        let Ok(parts) = upgraded.downcast::<TokioIo<DuplexStream>>() else { return };
        let public = &self.shared.settings.public;
        let ended = tunnel::run(parts.io.into_inner(), parts.read_buf, place, &pass, public).await;
        drop(open);
        if let Some(refusal) = ended.err().and_then(tunnel::refusal) {
            self.sandbox.ledger.refused(&Asked::new(&self.flow, "CONNECT", &to, version), &refusal);
        }
    }
}

/// A body that keeps what it needs until it ends.
struct Held<T> {
    body: Incoming,
    _kept: T,
}

impl<T: Unpin> Body for Held<T> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What a request is for; an error says what it does instead.
fn destination(method: &Method, uri: &Uri) -> Result<Destination, &'static str> {
    let authority = uri.authority().ok_or("names no host")?;
    if authority.as_str().contains('@') {
        return Err("has a user before its host");
    }
    let host = authority.host().parse().map_err(|_| "has no host that reads as one")?;
    // A port that is there and does not read must not become another.
    let written = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
    let port = match (written, authority.port_u16()) {
        (_, Some(port)) => Some(port),
        ("", None) => None,
        (_, None) => return Err("has a port that is none"),
    };
    if *method == Method::CONNECT {
        return Ok(Destination { host, port: port.ok_or("has no port")? });
    }
    match uri.scheme_str() {
        Some("http") => Ok(Destination { host, port: port.unwrap_or(80) }),
        _ => Err("is for a scheme that needs CONNECT"),
    }
}

fn host_header(to: &Destination) -> HeaderValue {
    let host = match to.host {
        Host::Address(IpAddr::V6(ip)) => format!("[{ip}]"),
        ref host => host.to_string(),
    };
    let text = if to.port == 80 { host } else { format!("{host}:{}", to.port) };
    // Hosts hold nothing that a header may not.
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Takes off what is meant for this hop, and what a header of it names.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != header::CONTENT_LENGTH && *name != header::HOST)
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    for name in MORE_HOP_BY_HOP {
        headers.remove(name);
    }
}

fn not_dialled(error: &DialError) -> Refusal {
    match error {
        DialError::OwnAddress(address) => {
            let rule = Some("an address of this host".to_owned());
            Refusal { reason: Reason::PrivateAddress, rule, address: Some(address.ip()) }
        }
        DialError::Failed { address, source } => {
            Refusal { reason: Reason::ConnectFailed, rule: Some(source.to_string()), address: Some(address.ip()) }
        }
    }
}

/// One line for the person who reads the answer.
fn told(to: &Destination, refusal: &Refusal) -> String {
    let place = format!("{}:{}", to.host, to.port);
    let rule = refusal.rule.as_deref().unwrap_or_default();
    match refusal.reason {
        Reason::InternetOff => format!("{place} was refused: this sandbox has no internet access."),
        Reason::NotAllowed => format!("{place} was refused: the allow list of this sandbox does not name it."),
        Reason::Denied => format!("{place} was refused: the deny list of this sandbox has {rule}."),
        Reason::PortForbidden => format!("{place} was refused: port {rule} is open to no sandbox."),
        Reason::PrivateAddress => format!("{place} was refused: it is no public address ({rule})."),
        Reason::Blocked => format!("{place} was refused: {rule} is blocked on this server."),
        Reason::NameMismatch => format!("{place} was refused: {rule}."),
        Reason::DnsFailed => format!("{place} was not found."),
        Reason::ConnectFailed => format!("{place} could not be reached: {rule}."),
        Reason::TooManyConnections => format!("{place} was refused: this sandbox opens connections too fast."),
        Reason::NotReady => format!("{place} was refused: the network rules are being put in place. Try again."),
        Reason::BadRequest => format!("{place} was refused: the request does not read."),
    }
}

fn refused(refusal: &Refusal, text: &str) -> Answer {
    let body = Full::new(Bytes::from(format!("{text}\n"))).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(refusal.reason.status()).unwrap_or(StatusCode::FORBIDDEN);
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(&REASON, HeaderValue::from_static(refusal.reason.as_str()));
    if matches!(refusal.reason, Reason::TooManyConnections | Reason::NotReady) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(method: &str, uri: &str) -> Result<String, String> {
        let method: Method = method.parse().unwrap();
        let uri: Uri = uri.parse().map_err(|_| "no URI".to_owned())?;
        destination(&method, &uri).map(|to| format!("{} {}", to.host, to.port)).map_err(str::to_owned)
    }

    #[test]
    fn what_a_request_is_for() {
        for (method, uri, expected) in [
            ("CONNECT", "A.example:443", "a.example 443"),
            ("CONNECT", "[2001:db8::1]:443", "2001:db8::1 443"),
            ("CONNECT", "192.0.2.1:22", "192.0.2.1 22"),
            ("GET", "http://a.example/x?y", "a.example 80"),
            ("GET", "http://a.example:8080/", "a.example 8080"),
            ("POST", "HTTP://a.example.", "a.example 80"),
        ] {
            assert_eq!(read(method, uri).as_deref(), Ok(expected), "{method} {uri}");
        }
        for (method, uri) in [
            ("CONNECT", "a.example"),
            ("CONNECT", "a.example:99999"),
            ("CONNECT", "a.example:"),
            ("CONNECT", "2130706433:80"),
            ("CONNECT", "127.1:80"),
            ("CONNECT", "0x7f.1:80"),
            ("GET", "/path"),
            ("GET", "https://a.example/"),
            ("GET", "ftp://a.example/"),
            ("GET", "http://a.example@b.example/"),
            ("GET", "http://a.example:80@b.example/"),
            ("GET", "http://a.example:/"),
            ("OPTIONS", "*"),
        ] {
            assert!(read(method, uri).is_err(), "{method} {uri}: {:?}", read(method, uri));
        }
    }

    #[test]
    fn headers_of_a_hop_go_no_further() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("proxy-authorization", "Basic eA=="),
            ("proxy-connection", "keep-alive"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("accept", "*/*"),
            ("content-length", "3"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.append(header::CONNECTION, HeaderValue::from_static("content-length"));
        strip(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "content-length"]);
    }

    proptest! {
        /// Whatever is written as a target: what is judged is what the URI says and no other spelling of it.
        #[test]
        fn a_destination_is_read_in_one_way(text in "[a-zA-Z0-9.:@/\\[\\]%_-]{0,40}", connect in any::<bool>()) {
            let (method, uri) = if connect { (Method::CONNECT, text) } else { (Method::GET, format!("http://{text}")) };
            if let Ok(uri) = uri.parse::<Uri>()
                && let Ok(to) = destination(&method, &uri)
            {
                let host = to.host.to_string();
                let written = uri.authority().unwrap().as_str().to_ascii_lowercase();
                prop_assert!(!written.contains('@'));
                prop_assert!(to.port > 0 || written.contains(":0"));
                if let Host::Name(_) = to.host {
                    prop_assert!(written.starts_with(&host), "{} of {}", host, written);
                }
            }
        }
    }
}
