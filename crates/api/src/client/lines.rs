//! JSON lines out of a body that arrives in pieces.

use bytes::{Bytes, BytesMut};
use serde_json::Value;

use super::{ClientError, Result};

/// One event; the server's largest is a 64 KiB piece of output, twice encoded.
const MAX_LINE: usize = 4 * 1024 * 1024;

/// Splits pieces into lines; blank ones are heartbeats and are dropped.
#[derive(Debug, Default)]
pub(super) struct Lines {
    held: BytesMut,
    /// How much of `held` is known to have no line end.
    seen: usize,
}

impl Lines {
    pub(super) fn push(&mut self, piece: &Bytes) {
        self.held.extend_from_slice(piece);
    }

    /// The next whole line as JSON.
    pub(super) fn next(&mut self) -> Result<Option<Value>> {
        loop {
            let Some(end) = self.held[self.seen..].iter().position(|byte| *byte == b'\n') else {
                self.seen = self.held.len();
                if self.seen > MAX_LINE {
                    return Err(bad("a line of the stream is too long"));
                }
                return Ok(None);
            };
            let line = self.held.split_to(self.seen + end + 1);
            self.seen = 0;
            if line.trim_ascii().is_empty() {
                continue;
            }
            return serde_json::from_slice(&line)
                .map(Some)
                .map_err(|error| bad(format!("a line of the stream is not JSON: {error}")));
        }
    }
}

pub(super) fn bad(message: impl Into<String>) -> ClientError {
    ClientError::local("stream_failed", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_come_out_whole_however_they_came_in() {
        let text = "{\"a\":1}\n\n \r\n{\"b\":\"ü\"}\n{\"c\":";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut out = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                lines.push(&Bytes::copy_from_slice(piece));
                while let Some(value) = lines.next().expect("JSON") {
                    out.push(value);
                }
            }
            assert_eq!(out, [json!({"a": 1}), json!({"b": "ü"})], "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut lines = Lines::default();
        let piece = Bytes::from(vec![b'x'; 1024 * 1024]);
        let error = (0..6).find_map(|_| {
            lines.push(&piece);
            lines.next().err()
        });
        assert_eq!(error.expect("five mebibytes are too many").code, "stream_failed");
    }
}
