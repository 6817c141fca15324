//! A thin client of the contract.
//!
//! It knows how to reach a server ([`Origin`]), how to ask so that an answer lost on the way costs nothing ([`Call`]:
//! one idempotency key for all attempts of a call, and the retry rules of [`retry`]), how to follow a command's output
//! across cut connections ([`ExecStream`]) and how to move file bytes whole or not at all. What the server answers is
//! handed on as it came ([`Record`]): a field this client has never heard of is not lost.

mod call;
mod error;
mod exec;
mod files;
mod lines;
mod mcp;
mod origin;
mod previews;
mod record;
mod retry;
mod sandboxes;
mod sessions;
mod snapshots;
mod socket;
mod uploads;
mod watches;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use call::Call;
pub use error::{ClientError, ErrorParts};
pub use exec::{ExecEvent, ExecStream, Exit, OutputStream};
pub use files::{Download, MAX_WHOLE_FILE};
pub use mcp::McpMessage;
pub use origin::{BadOrigin, Origin};
pub use record::Record;
pub use retry::ROOM_CODES;
pub use sandboxes::{ListFilter, looks_like_id};
pub use socket::{Frame, SocketSink, SocketStream, refusal};
pub use uploads::{ArchiveDownload, ArchiveUpload, CHUNKS_AT_ONCE};
pub use watches::WatchStream;

/// How long a call may take, waiting and retries included, unless it says otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(300);

pub type Result<T> = std::result::Result<T, ClientError>;

/// Called before each wait for room, with the refusal and the time until the next try.
pub type OnRoomWait = Arc<dyn Fn(&ClientError, Duration) + Send + Sync>;

/// Everything a client needs; it reads no environment of its own.
pub struct ClientOptions {
    pub origin: Origin,
    /// Sent as the bearer; `None` for the few routes that need no key.
    pub key: Option<String>,
    /// Who is calling, `name/version`.
    pub caller: String,
    pub on_room_wait: Option<OnRoomWait>,
}

/// A handle on one server; clones share its connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: reqwest::Client,
    origin: Origin,
    key: Option<String>,
    caller: String,
    on_room_wait: Option<OnRoomWait>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("origin", &self.inner.origin.as_str()).finish_non_exhaustive()
    }
}

impl Client {
    /// Opens nothing: the first call connects. `tls` is the program's own rustls client configuration, handed through
    /// as it is: this crate decides nothing about TLS, and refuses a value of another type.
    pub fn new(options: ClientOptions, tls: impl std::any::Any) -> Result<Self> {
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(8)
            .connect_timeout(Duration::from_secs(30));
        if options.origin.is_loopback() {
            // A proxy could only send the call back here, or to another machine's loopback.
            builder = builder.no_proxy();
        }
        let http = builder
            .build()
            .map_err(|source| ClientError::local("client_setup", format!("cannot set up HTTP: {source}")))?;
        Ok(Self {
            inner: Arc::new(Inner {
                http,
                origin: options.origin,
                key: options.key,
                caller: options.caller,
                on_room_wait: options.on_room_wait,
            }),
        })
    }

    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.inner.origin
    }

    #[must_use]
    pub fn has_key(&self) -> bool {
        self.inner.key.is_some()
    }

    /// A read. `path` is already encoded: see [`path`].
    pub fn get(&self, path: impl Into<String>) -> Call<'_> {
        Call::new(self, reqwest::Method::GET, path.into())
    }

    /// A change with a JSON body.
    pub fn post(&self, path: impl Into<String>, body: &serde_json::Value) -> Call<'_> {
        Call::new(self, reqwest::Method::POST, path.into()).json(body)
    }

    /// A replacement by a JSON body.
    pub fn put(&self, path: impl Into<String>, body: &serde_json::Value) -> Call<'_> {
        Call::new(self, reqwest::Method::PUT, path.into()).json(body)
    }

    pub fn delete(&self, path: impl Into<String>) -> Call<'_> {
        Call::new(self, reqwest::Method::DELETE, path.into())
    }

    /// Raw bytes to a place.
    pub fn put_bytes(&self, path: impl Into<String>, bytes: bytes::Bytes) -> Call<'_> {
        Call::new(self, reqwest::Method::PUT, path.into()).bytes(bytes)
    }
}

/// Joins path segments, each percent-encoded so that nothing in it can be read as another path.
#[must_use]
pub fn path(segments: &[&str]) -> String {
    segments.iter().map(|segment| format!("/{}", encode(segment))).collect()
}

/// Percent-encodes everything but letters, digits and `-._~`.
pub(crate) fn encode(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_segment_can_name_another_path() {
        assert_eq!(path(&["v1", "sandboxes", "a/../b?c#d e:ü"]), "/v1/sandboxes/a%2F..%2Fb%3Fc%23d%20e%3A%C3%BC");
    }
}
