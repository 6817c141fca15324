//! The one error of the API. A handler answers [`ApiError`]; the outermost layer renders it, once, with the request id.
//!
//! [`Kind`] is the table of codes and their statuses. What a stranger may read is in `message`, `hint` and `details`;
//! the cause of a fault of ours goes to the log only.

use std::error::Error as StdError;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use runtime_proto::node::NodeError;
use serde_json::{Value, json};

macro_rules! kinds {
    ($($name:ident $status:literal $code:literal;)*) => {
        /// Every refusal the server gives: a stable code and its status.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind { $($name),* }

        impl Kind {
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$name => $status),* }
            }

            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Self::$name => $code),* }
            }
        }
    };
}

kinds! {
    InvalidRequest 400 "invalid_request";
    InvalidRegion 400 "invalid_region";
    InvalidEnv 400 "invalid_env";
    EnvTooLarge 400 "env_too_large";
    DiskTooSmall 400 "disk_too_small";
    InvalidArchive 400 "invalid_archive";
    CwdNotFound 400 "cwd_not_found";
    Unauthorized 401 "unauthorized";
    Forbidden 403 "forbidden";
    PermissionDenied 403 "permission_denied";
    NotFound 404 "not_found";
    RouteNotFound 404 "route_not_found";
    FileNotFound 404 "file_not_found";
    ImageNotFound 404 "image_not_found";
    SnapshotNotFound 404 "snapshot_not_found";
    MethodNotAllowed 405 "method_not_allowed";
    BodyTimeout 408 "request_timeout";
    NoCapacity 409 "no_capacity";
    NameTaken 409 "name_taken";
    SandboxPaused 409 "sandbox_paused";
    SandboxStopped 409 "sandbox_stopped";
    SandboxNotReady 409 "sandbox_not_ready";
    NotRunning 409 "not_running";
    NotPaused 409 "not_paused";
    SnapshotFailed 409 "snapshot_failed";
    SnapshotNotReady 409 "snapshot_not_ready";
    SnapshotMetadataChanged 409 "snapshot_metadata_changed";
    ForkFailed 409 "fork_failed";
    DiskGone 409 "disk_gone";
    ResizeNeedsRestart 409 "resize_needs_restart";
    EngineMismatch 409 "engine_mismatch";
    TimeLimitTooShort 409 "time_limit_too_short";
    ProcessLimit 409 "process_limit";
    ProcessRunning 409 "process_running";
    IsADirectory 409 "is_a_directory";
    NotADirectory 409 "not_a_directory";
    DirectoryNotEmpty 409 "directory_not_empty";
    AlreadyExists 409 "already_exists";
    DiskFull 409 "disk_full";
    UploadIncomplete 409 "upload_incomplete";
    DigestMismatch 409 "digest_mismatch";
    TransferLimit 409 "transfer_limit";
    WatchLimit 409 "watch_limit";
    RootUnavailable 409 "root_unavailable";
    GuestUpgradeRequired 409 "guest_upgrade_required";
    UpgradeRequired 410 "upgrade_required";
    Gone 410 "gone";
    TooLarge 413 "request_too_large";
    FileTooLarge 413 "file_too_large";
    UriTooLong 414 "uri_too_long";
    IdempotencyKeyReused 422 "idempotency_key_reused";
    QuotaExceeded 429 "quota_exceeded";
    RateLimited 429 "rate_limited";
    HeadersTooLarge 431 "headers_too_large";
    Internal 500 "internal_error";
    Unavailable 501 "unavailable";
    Unsupported 501 "unsupported";
    ForkUnavailable 501 "fork_unavailable";
    PreviewsUnavailable 501 "previews_unavailable";
    FileLinksUnavailable 501 "file_links_unavailable";
    NetworkUnavailable 501 "network_unavailable";
    NetworkRulesUnavailable 501 "network_rules_unavailable";
    SecretsUnavailable 501 "secrets_unavailable";
    IdentityUnavailable 501 "identity_unavailable";
    SwitchImageUnavailable 501 "switch_image_unavailable";
    GuestFailed 502 "guest_failed";
    Busy 503 "busy";
    GuestBusy 503 "guest_busy";
    HostUnavailable 503 "host_unavailable";
    ApiUnavailable 503 "api_unavailable";
}

impl Kind {
    /// A refusal for want of room: the client asks again with the same key, so it must not be remembered.
    #[must_use]
    pub fn is_about_room(self) -> bool {
        matches!(self, Self::NoCapacity | Self::QuotaExceeded)
    }
}

/// One wrong field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    pub path: String,
    pub message: String,
}

impl Issue {
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// A refusal or a fault. Boxed inside, so that `Result`s stay small.
#[derive(Debug, Clone)]
pub struct ApiError(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    kind: Kind,
    message: String,
    hint: Option<String>,
    details: Option<Value>,
    retry_after: Option<Duration>,
    retryable: Option<bool>,
    /// For the log: step, object and the chain of causes.
    cause: Option<String>,
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.0.kind.code(), self.0.message)
    }
}

impl StdError for ApiError {}

impl ApiError {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            hint: None,
            details: None,
            retry_after: None,
            retryable: None,
            cause: None,
        }))
    }

    /// Wrong fields, all of them.
    #[must_use]
    pub fn invalid(issues: Vec<Issue>) -> Self {
        let message = match issues.as_slice() {
            [] => "The request is not valid.".to_owned(),
            issues => {
                let named: Vec<String> = issues.iter().take(8).map(|i| format!("{} {}", i.path, i.message)).collect();
                let more = if issues.len() > 8 { format!(" ({} more)", issues.len() - 8) } else { String::new() };
                format!("The request is not valid: {}{more}.", named.join("; "))
            }
        };
        let list: Vec<Value> =
            issues.iter().map(|issue| json!({ "path": issue.path, "message": issue.message })).collect();
        Self::new(Kind::InvalidRequest, message).details(json!({ "issues": list }))
    }

    pub fn wrong(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(vec![Issue::new(path, message)])
    }

    /// A fault of ours: `step` says what failed on which object, `cause` why. Both go to the log only.
    pub fn internal(step: impl std::fmt::Display, cause: impl StdError) -> Self {
        Self::fault(Kind::Internal, step, &cause)
    }

    pub fn fault(kind: Kind, step: impl std::fmt::Display, cause: &dyn StdError) -> Self {
        let mut text = format!("{step}: {cause}");
        let mut next = cause.source();
        while let Some(source) = next {
            text.push_str(": ");
            text.push_str(&source.to_string());
            next = source.source();
        }
        let mut error = Self::new(kind, public_fault(kind));
        error.0.cause = Some(text);
        error
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.0.details = Some(details);
        self
    }

    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    #[must_use]
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.0.retryable = Some(retryable);
        self
    }

    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.kind.status()
    }

    /// For the caller to read.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What to do about it.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// What the log gets.
    #[must_use]
    pub fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The inner `error` object, as in the envelope and in the `error` event of a stream.
    #[must_use]
    pub fn to_json(&self, request_id: &str) -> Value {
        let inner = &self.0;
        let mut error = json!({
            "code": inner.kind.code(),
            "status": inner.kind.status(),
            "message": inner.message,
            "requestId": request_id,
        });
        if let Some(hint) = &inner.hint {
            error["hint"] = json!(hint);
        }
        if let Some(details) = &inner.details {
            error["details"] = details.clone();
        }
        if let Some(retryable) = inner.retryable {
            error["retryable"] = json!(retryable);
        }
        if let Some(after) = inner.retry_after {
            error["retryAfterMs"] = json!(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        }
        error
    }

    /// The whole body.
    #[must_use]
    pub fn envelope(&self, request_id: &str) -> Value {
        json!({ "error": self.to_json(request_id) })
    }
}

/// Fixed text for faults: nothing of the inside leaves.
fn public_fault(kind: Kind) -> &'static str {
    match kind {
        Kind::GuestFailed => "The sandbox did not answer as it should.",
        Kind::Busy | Kind::GuestBusy => "The sandbox is busy; nothing ran. Ask again.",
        Kind::HostUnavailable => "The host of this sandbox cannot be reached now.",
        Kind::ApiUnavailable => "The server cannot answer now.",
        _ => "The server failed at this request. Its log has the cause under this request id.",
    }
}

/// Rendered by the outermost layer, which knows the request id.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<NodeError> for ApiError {
    fn from(error: NodeError) -> Self {
        match &error {
            NodeError::NotRunning => Self::new(Kind::SandboxStopped, "The sandbox is not running."),
            NodeError::DiskGone => {
                Self::new(Kind::DiskGone, "The disk of this sandbox is gone; it cannot start again.")
            }
            NodeError::MemoryGone(_) => Self::fault(Kind::Internal, "waking the sandbox", &error),
            NodeError::SnapshotGone => Self::new(Kind::SnapshotNotFound, "The snapshot is gone."),
            NodeError::Unsupported(_) => Self::new(Kind::Unavailable, "This host cannot pause sandboxes.")
                .hint("`runtime doctor` says what the host has; stop the sandbox to keep its disk."),
            NodeError::NoRoom(what) => Self::new(Kind::NoCapacity, format!("The host has no room now: {what}."))
                .hint("Stop or delete sandboxes that are not needed, or ask again later.")
                .retry_after(Duration::from_secs(2)),
            NodeError::Busy(_) => {
                Self::fault(Kind::GuestBusy, "asking the sandbox", &error).retry_after(Duration::from_millis(250))
            }
            NodeError::Failed(_) => Self::fault(Kind::Internal, "asking the node", &error),
            NodeError::Channel(_) => Self::fault(Kind::HostUnavailable, "asking the sandbox", &error),
        }
    }
}
