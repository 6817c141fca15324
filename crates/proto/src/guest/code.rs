//! From bytes and to bytes.

use bytes::Bytes;
use prost::Message;

use super::{Ask, Call, ErrorCode, Event, GuestError, Input, Request, Tell};

/// Decoding that names what did not decode.
#[derive(Debug, thiserror::Error)]
#[error("a {what} from the peer does not decode")]
pub struct DecodeError {
    what: &'static str,
    source: prost::DecodeError,
}

macro_rules! decode {
    ($name:ident, $type:ty, $what:literal) => {
        pub fn $name(bytes: Bytes) -> Result<$type, DecodeError> {
            <$type>::decode(bytes).map_err(|source| DecodeError { what: $what, source })
        }
    };
}
decode!(decode_request, Request, "request");
decode!(decode_event, Event, "event");
decode!(decode_input, Input, "input");
decode!(decode_call, Call, "call");

pub fn encode(message: &impl Message) -> Bytes {
    Bytes::from(message.encode_to_vec())
}

impl Request {
    #[must_use]
    pub fn new(ask: Ask) -> Self {
        Self { ask: Some(ask) }
    }
}

impl Event {
    #[must_use]
    pub fn new(tell: Tell) -> Self {
        Self { tell: Some(tell) }
    }
}

impl GuestError {
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code: code as i32, message: message.into() }
    }
}
