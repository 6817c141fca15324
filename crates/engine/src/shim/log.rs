//! The shim's log: its own words and what the guest's first process says on standard error. It stops growing at a limit,
//! since a guest can make that process talk.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::host_state::chain;

const LIMIT: u64 = 1024 * 1024;
const LAST: usize = 1024;

#[derive(Debug)]
pub(super) struct Log {
    file: Option<File>,
    left: u64,
    /// The end of what was logged.
    last: Vec<u8>,
}

impl Log {
    /// Takes what it is told and keeps nothing.
    pub(super) fn closed() -> Self {
        Self { file: None, left: 0, last: Vec::new() }
    }

    /// A log that cannot be opened must not stop the shim: then nothing is logged.
    pub(super) fn open(path: &Path) -> Self {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path).ok();
        let used = file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len());
        Self { file, left: LIMIT.saturating_sub(used), last: Vec::new() }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.last.extend_from_slice(&bytes[bytes.len().saturating_sub(LAST)..]);
        self.last.drain(..self.last.len().saturating_sub(LAST));
        let take = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        self.left -= take as u64;
        if let Some(file) = &mut self.file {
            let _ = file.write_all(&bytes[..take]);
        }
    }

    /// The last words, in one line.
    pub(super) fn last(&self) -> String {
        String::from_utf8_lossy(&self.last).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    pub(super) fn line(&mut self, text: &str) {
        self.bytes(text.as_bytes());
        self.bytes(b"\n");
    }

    /// Notes a step that failed; true if it did not.
    pub(super) fn note<E: std::error::Error>(&mut self, step: &str, result: Result<(), E>) -> bool {
        if let Err(error) = &result {
            self.line(&format!("cannot {step}: {}", chain(error)));
        }
        result.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_talkative_guest_cannot_fill_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        for _ in 0..2 {
            let mut log = Log::open(&path);
            for _ in 0..40 {
                log.bytes(&[b'x'; 64 * 1024]);
            }
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), LIMIT);
    }
}
