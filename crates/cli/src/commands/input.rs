//! What is piped in becomes the command's input.

use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::Value;

use crate::failure::Failure;
use crate::scan::UsageError;

/// The contract takes no more in one request, counted as the bytes that the command reads.
const LIMIT: usize = 1024 * 1024;
/// A pipe that says nothing for this long is one that was merely inherited.
const SILENCE: Duration = Duration::from_millis(100);

/// Adds the input to an exec body, if any is piped in.
pub(super) fn attach(body: &mut Value) -> Result<(), Failure> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() || !speaks(&stdin)? {
        return Ok(());
    }
    if let Some(bytes) = read(stdin.lock())? {
        put(body, bytes);
    }
    Ok(())
}

/// Whether a pipe has something to read, or has ended, before it counts as silent. The kernel is asked, which looks once
/// more at the end: a machine that gave us no turn meanwhile makes no pipe silent.
fn speaks(pipe: impl AsFd) -> Result<bool, Failure> {
    let silence = Timespec { tv_sec: 0, tv_nsec: i64::from(SILENCE.subsec_nanos()) };
    loop {
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&silence)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready.context("cannot wait for the input")? > 0),
        }
    }
}

/// All of a pipe; nothing of an empty one.
fn read(pipe: impl Read) -> Result<Option<Vec<u8>>, Failure> {
    let mut all = Vec::new();
    pipe.take(LIMIT as u64 + 1).read_to_end(&mut all).context("cannot read the input")?;
    if all.len() > LIMIT {
        return Err(too_large().into());
    }
    Ok(Some(all).filter(|all| !all.is_empty()))
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
    use std::io::Write;

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
        let (silent, mut other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert!(!speaks(&silent).expect("a look"));
        other.write_all(b"a word").expect("said");
        assert!(speaks(&silent).expect("a look"));
        let (ended, other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        drop(other);
        assert!(speaks(&ended).expect("a look") && read(ended).expect("nothing").is_none());
        let file = std::fs::File::open("/dev/null").expect("a file");
        assert!(speaks(&file).expect("a look") && read(file).expect("nothing").is_none());
    }
}
