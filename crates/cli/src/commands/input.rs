//! What is piped in becomes the command's input.

use std::io::{IsTerminal, Read};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::failure::Failure;
use crate::scan::UsageError;

/// The contract takes no more in one request, counted as the bytes that the command reads.
const LIMIT: usize = 1024 * 1024;
/// A pipe that says nothing for this long is one that was merely inherited.
const SILENCE: Duration = Duration::from_millis(100);

/// Adds the input to an exec body, if any is piped in.
pub(super) fn attach(body: &mut Value) -> Result<(), Failure> {
    if std::io::stdin().is_terminal() {
        return Ok(());
    }
    if let Some(bytes) = read(std::io::stdin())? {
        put(body, bytes);
    }
    Ok(())
}

/// All of a pipe, or nothing for a silent one. The reading thread is left behind when the pipe stays silent: it holds
/// nothing that the end of the program does not free.
fn read(mut pipe: impl Read + Send + 'static) -> Result<Option<Vec<u8>>, Failure> {
    let (send, pieces) = mpsc::sync_channel(4);
    std::thread::Builder::new()
        .name("stdin".into())
        .spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                let piece = match pipe.read(&mut buffer) {
                    Ok(length) => Ok(buffer[..length].to_vec()),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(error) => Err(error),
                };
                let last = !matches!(&piece, Ok(bytes) if !bytes.is_empty());
                if send.send(piece).is_err() || last {
                    return;
                }
            }
        })
        .context("cannot start reading the input")?;
    let Ok(first) = pieces.recv_timeout(SILENCE) else { return Ok(None) };
    let mut all = first.context("cannot read the input")?;
    if all.is_empty() {
        return Ok(None);
    }
    while let Ok(piece) = pieces.recv() {
        let piece = piece.context("cannot read the input")?;
        if piece.is_empty() {
            break;
        }
        all.extend_from_slice(&piece);
        if all.len() > LIMIT {
            return Err(too_large().into());
        }
    }
    Ok(Some(all))
}

/// As text where that is not the longer form: a control character takes six bytes of JSON, so that much less than the
/// limit could already be more than a request may hold.
fn put(body: &mut Value, bytes: Vec<u8>) {
    match String::from_utf8(bytes) {
        Ok(text) if json_length(&text) <= base64_length(text.len()) => body["stdin"] = text.into(),
        Ok(text) => body["stdinBase64"] = STANDARD.encode(text).into(),
        Err(error) => body["stdinBase64"] = STANDARD.encode(error.as_bytes()).into(),
    }
}

/// Between the quotes.
fn json_length(text: &str) -> usize {
    let escaped = |byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..=0x1f => 6,
        _ => 1,
    };
    text.bytes().map(escaped).sum()
}

fn base64_length(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

fn too_large() -> UsageError {
    UsageError::new("the input is larger than 1 MiB")
        .hint("Put it into the sandbox as a file instead: runtime sandboxes cp FILE SANDBOX:/workspace/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_goes_as_text_and_bytes_as_base64() {
        let sent = |bytes: &[u8]| {
            let mut body = json!({});
            put(&mut body, bytes.to_vec());
            body
        };
        assert_eq!(sent(b"a\n"), json!({"stdin": "a\n"}));
        assert_eq!(sent(&[0xff]), json!({"stdinBase64": "/w=="}));
        assert_eq!(sent(b"\0\0\0"), json!({"stdinBase64": "AAAA"}));
        assert_eq!(sent("größe \"x\"\n".as_bytes()), json!({"stdin": "größe \"x\"\n"}));
    }

    #[test]
    fn no_input_of_the_limit_takes_more_than_base64() {
        for byte in [0, b'\n', 0x1b, b'"', b'a', 0x7f, 0x80, 0xff] {
            let mut body = json!({});
            put(&mut body, vec![byte; LIMIT]);
            let length = body.to_string().len();
            assert!(length <= base64_length(LIMIT) + r#"{"stdinBase64":""}"#.len(), "{byte}: {length}");
        }
    }

    #[test]
    fn the_length_of_text_is_what_is_sent() {
        let text: String = (0..0x300).filter_map(char::from_u32).chain(['€', '🚀', '\u{2028}']).collect();
        assert_eq!(json_length(&text) + 2, Value::from(text).to_string().len());
    }

    #[test]
    fn all_of_a_pipe_and_no_more_than_fits() {
        let exactly = std::io::Cursor::new(vec![b'x'; LIMIT]);
        assert_eq!(read(exactly).expect("fits").map(|bytes| bytes.len()), Some(LIMIT));
        assert!(read(std::io::Cursor::new(vec![b'x'; LIMIT + 1])).is_err());
        assert!(read(std::io::empty()).expect("nothing").is_none());
    }

    #[test]
    fn a_silent_pipe_is_no_input() {
        let (silent, _held_open) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert!(read(silent).expect("nothing").is_none());
    }
}
