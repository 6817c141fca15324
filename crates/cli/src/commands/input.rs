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

/// The contract takes no more in one request, as text or as base64.
const LIMIT: usize = 1024 * 1024;
const BINARY_LIMIT: usize = LIMIT / 4 * 3;
/// A pipe that says nothing for this long is one that was merely inherited.
const SILENCE: Duration = Duration::from_millis(100);

/// Adds the input to an exec body, if any is piped in.
pub(super) fn attach(body: &mut Value) -> Result<(), Failure> {
    if std::io::stdin().is_terminal() {
        return Ok(());
    }
    let Some(bytes) = read(std::io::stdin())? else { return Ok(()) };
    put(body, bytes)
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
            return Err(too_large("1 MiB").into());
        }
    }
    Ok(Some(all))
}

fn put(body: &mut Value, bytes: Vec<u8>) -> Result<(), Failure> {
    match String::from_utf8(bytes) {
        Ok(text) => body["stdin"] = text.into(),
        Err(error) if error.as_bytes().len() <= BINARY_LIMIT => {
            body["stdinBase64"] = STANDARD.encode(error.as_bytes()).into();
        }
        Err(_) => return Err(too_large("768 KiB, since it is not text").into()),
    }
    Ok(())
}

fn too_large(limit: &str) -> UsageError {
    UsageError::new(format!("the input is larger than {limit}"))
        .hint("Put it into the sandbox as a file instead; `runtime sandboxes cp`, which will do that, is not in this version.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_goes_as_text_and_bytes_as_base64() {
        let mut body = json!({});
        put(&mut body, b"a\n".to_vec()).expect("fits");
        assert_eq!(body, json!({"stdin": "a\n"}));
        let mut body = json!({});
        put(&mut body, vec![0xff]).expect("fits");
        assert_eq!(body, json!({"stdinBase64": "/w=="}));
        assert!(put(&mut body, vec![0xff; BINARY_LIMIT + 1]).is_err());
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
