//! What a call can fail with: the contract's error, or the client's own with status 0.

use std::fmt;
use std::ops::Deref;

use serde_json::Value;

/// Codes that say a feature is switched off on purpose: asking again changes nothing.
const OFF_CODES: [&str; 17] = [
    "unavailable",
    "unsupported",
    "fork_unavailable",
    "previews_unavailable",
    "file_links_unavailable",
    "network_unavailable",
    "network_rules_unavailable",
    "secrets_unavailable",
    "identity_unavailable",
    "env_unavailable",
    "resize_unavailable",
    "feature_unavailable",
    "delete_unavailable",
    "switch_image_unavailable",
    "switching_paused",
    "schema_migration_required",
    "storage_unavailable",
];

/// How much of a body that is not JSON becomes the message.
const MESSAGE_BYTES: usize = 500;

/// A refusal or failure. Small to carry: its parts are behind one pointer.
#[derive(Debug)]
pub struct ClientError(Box<ErrorParts>);

/// The fields of an error, readable through [`ClientError`].
#[derive(Debug, Default)]
pub struct ErrorParts {
    /// The HTTP status; 0 when no answer was read.
    pub status: u16,
    pub code: String,
    pub message: String,
    pub hint: Option<String>,
    pub request_id: Option<String>,
    pub details: Option<Value>,
    /// The server's word on whether the same call may succeed later.
    pub server_retryable: Option<bool>,
    pub retry_after_ms: Option<u64>,
    pub idempotency_key: Option<String>,
    /// The failure came in the body of an answer that had begun as a success.
    pub late: bool,
    /// The connection was never made: nothing can have run.
    pub never_opened: bool,
    source: Option<reqwest::Error>,
}

impl Deref for ClientError {
    type Target = ErrorParts;
    fn deref(&self) -> &ErrorParts {
        &self.0
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

impl ClientError {
    /// The client's own refusal: nothing was sent, or what came back made no sense.
    #[must_use]
    pub fn local(code: &str, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorParts { code: code.into(), message: message.into(), ..ErrorParts::default() }))
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// The connection failed before an answer was read.
    pub(crate) fn transport(origin: &str, source: reqwest::Error) -> Self {
        let never_opened = source.is_connect();
        let message = if never_opened {
            format!("cannot connect to {origin}")
        } else {
            format!("the connection to {origin} was cut before the answer was complete")
        };
        let mut error = Self::local("connection_error", message);
        error.0.never_opened = never_opened;
        // The URL in its text holds nothing the message lacks.
        error.0.source = Some(source.without_url());
        error
    }

    pub(crate) fn silent(origin: &str, seconds: u64) -> Self {
        Self::local("connection_error", format!("{origin} did not begin to answer within {seconds} s"))
    }

    /// An answer that is not a success.
    pub(crate) fn answered(status: u16, retry_after_ms: Option<u64>, body: &[u8]) -> Self {
        let mut error = match serde_json::from_slice::<Value>(body) {
            Ok(Value::Object(mut object)) if object.get("error").is_some_and(Value::is_object) => {
                Self::from_body(status, &object.remove("error").unwrap_or_default())
            }
            _ => {
                let text = String::from_utf8_lossy(&body[..body.len().min(MESSAGE_BYTES)]);
                let mut error = Self::local("request_failed", text.trim().to_owned());
                error.0.status = status;
                error
            }
        };
        if error.message.is_empty() {
            error.0.message = format!("the request failed with status {status}");
        }
        error.0.retry_after_ms = error.retry_after_ms.or(retry_after_ms);
        error
    }

    /// A refusal that is a message of another protocol, for whoever speaks it.
    pub(crate) fn protocol_answer(message: Value) -> Self {
        let mut error = Self::local(super::mcp::PROTOCOL_ANSWER, "an answer of another protocol");
        error.0.details = Some(message);
        error
    }

    pub(crate) fn take_details(&mut self) -> Value {
        self.0.details.take().unwrap_or_default()
    }

    /// The object under `error` in an answer, a late answer or a stream.
    pub(crate) fn from_body(status: u16, error: &Value) -> Self {
        let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
        Self(Box::new(ErrorParts {
            status,
            code: text("code").unwrap_or_else(|| "request_failed".into()),
            message: text("message").unwrap_or_default(),
            hint: text("hint"),
            request_id: text("requestId"),
            details: error.get("details").filter(|details| details.is_object()).cloned(),
            server_retryable: error.get("retryable").and_then(Value::as_bool),
            retry_after_ms: error.get("retryAfterMs").and_then(Value::as_u64),
            ..ErrorParts::default()
        }))
    }

    pub(crate) fn mark_late(mut self) -> Self {
        self.0.late = true;
        self
    }

    pub(crate) fn with_key(mut self, key: Option<&str>) -> Self {
        self.0.idempotency_key = key.map(str::to_owned);
        self
    }

    /// Whether the same call may succeed later: the server's word first, then what code and status usually mean.
    #[must_use]
    pub fn retryable(&self) -> bool {
        let for_room =
            matches!(self.code.as_str(), "no_capacity" | "no_credit_running_limit" | "no_credit_total_limit");
        match self.server_retryable {
            None if for_room => !self.about_count(),
            _ => self.passes(),
        }
    }

    /// Whether to ask again without being told to wait: as [`Self::retryable`], but a lack of room does not pass by
    /// itself within seconds.
    pub(crate) fn passes(&self) -> bool {
        if let Some(word) = self.server_retryable {
            return word;
        }
        if OFF_CODES.contains(&self.code.as_str()) || matches!(self.code.as_str(), "quota_exceeded" | "out_of_memory") {
            return false;
        }
        match self.status {
            0 => self.code == "connection_error",
            status => matches!(status, 429 | 502 | 503 | 504),
        }
    }

    /// The refusal is about how many were asked for, which no waiting changes.
    pub(crate) fn about_count(&self) -> bool {
        self.details.as_ref().and_then(|details| details.get("field")).and_then(Value::as_str) == Some("count")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_not_ours_still_has_a_message() {
        let error = ClientError::answered(502, Some(2000), b"<html>Bad gateway</html>");
        assert_eq!((error.status, error.code.as_str()), (502, "request_failed"));
        assert_eq!(error.message, "<html>Bad gateway</html>");
        assert_eq!(error.retry_after_ms, Some(2000));
        assert_eq!(ClientError::answered(500, None, b"").message, "the request failed with status 500");
        assert_eq!(ClientError::answered(500, None, &[0xff; 2000]).message.chars().count(), MESSAGE_BYTES);
    }

    #[test]
    fn odd_field_types_are_ignored() {
        let body = br#"{"error":{"code":7,"message":"no","details":[1],"retryable":"yes","retryAfterMs":true}}"#;
        let error = ClientError::answered(503, None, body);
        assert_eq!(error.code, "request_failed");
        assert!(error.details.is_none() && error.server_retryable.is_none() && error.retry_after_ms.is_none());
    }

    #[test]
    fn the_servers_word_beats_the_table() {
        let parse = |text: &str| ClientError::from_body(503, &serde_json::from_str(text).expect("JSON"));
        assert!(parse(r#"{"code":"unavailable","retryable":true}"#).retryable());
        assert!(!parse(r#"{"code":"unavailable"}"#).retryable());
        assert!(!parse(r#"{"code":"busy","retryable":false}"#).retryable());
        assert!(parse(r#"{"code":"host_unavailable"}"#).retryable());
        assert!(!parse(r#"{"code":"no_capacity","details":{"field":"count"}}"#).retryable());
    }
}
