//! Standard input of a process, counted: a write that is sent again is accepted once.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

/// What a terminal takes for the end of input at the start of a line.
const END: u8 = 4;
/// Bytes accepted that the process has not read yet.
const BUFFER: usize = 1024 * 1024;

/// Who waits for what: the writer task on `more`, feeders on `room`; both register before they look.
#[derive(Default)]
pub(crate) struct Stdin {
    inner: Mutex<Inner>,
    more: Notify,
    room: Notify,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<u8>,
    accepted: u64,
    open: bool,
    eof: bool,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StdinError {
    #[error("standard input has taken {accepted} bytes, the write starts at {offset}")]
    Ahead { accepted: u64, offset: u64 },
    #[error("standard input is closed after {accepted} bytes")]
    Closed { accepted: u64 },
}

impl Stdin {
    pub(crate) fn new(open: bool) -> Self {
        let stdin = Self::default();
        stdin.lock().open = open;
        stdin
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Still open, and bytes accepted.
    pub(crate) fn state(&self) -> (bool, u64) {
        let inner = self.lock();
        (inner.open && !inner.eof, inner.accepted)
    }

    /// Accepts what is new in `data`, which starts at `offset`, as far as there is room; answers the new total. `eof`
    /// counts only when all of it was accepted.
    pub(crate) fn write(&self, offset: u64, data: &[u8], eof: bool) -> Result<u64, StdinError> {
        let mut inner = self.lock();
        let accepted = inner.accepted;
        if offset > accepted {
            return Err(StdinError::Ahead { accepted, offset });
        }
        let known = (accepted - offset).min(data.len() as u64) as usize;
        let fresh = &data[known..];
        if !inner.open || inner.eof {
            return if fresh.is_empty() { Ok(accepted) } else { Err(StdinError::Closed { accepted }) };
        }
        let taken = fresh.len().min(BUFFER - inner.waiting.len());
        inner.waiting.extend(&fresh[..taken]);
        inner.accepted += taken as u64;
        inner.eof = eof && taken == fresh.len();
        self.more.notify_waiters();
        Ok(inner.accepted)
    }

    /// Accepts all of `data` after whatever was accepted before, waiting for room, and answers the new total.
    pub(crate) async fn append(&self, mut data: &[u8]) -> Result<u64, StdinError> {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let mut inner = self.lock();
                let accepted = inner.accepted;
                if !inner.open || inner.eof {
                    return Err(StdinError::Closed { accepted });
                }
                let taken = data.len().min(BUFFER - inner.waiting.len());
                inner.waiting.extend(&data[..taken]);
                inner.accepted += taken as u64;
                data = &data[taken..];
                self.more.notify_waiters();
                if data.is_empty() {
                    return Ok(inner.accepted);
                }
            }
            room.await;
        }
    }

    /// Accepts all of `data`, waiting for room. False once the process takes no more.
    pub(crate) async fn write_all(&self, mut offset: u64, mut data: &[u8]) -> bool {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            match self.write(offset, data, false) {
                Err(_) => return false,
                // Not below the offset: what was accepted before a resend counts too.
                Ok(total) => {
                    let taken = total.saturating_sub(offset).min(data.len() as u64);
                    offset += taken;
                    data = &data[taken as usize..];
                }
            }
            if data.is_empty() {
                return true;
            }
            room.await;
        }
    }

    /// The process ended or closed its end.
    pub(crate) fn shut(&self) {
        let mut inner = self.lock();
        inner.open = false;
        inner.waiting = VecDeque::new();
        drop(inner);
        self.more.notify_waiters();
        self.room.notify_waiters();
    }

    /// Carries accepted bytes into the pipe until end of input, or until nobody reads it.
    pub(crate) async fn carry(&self, mut pipe: pipe::Sender, terminal: bool) {
        let mut last = b'\n';
        loop {
            let more = self.more.notified();
            tokio::pin!(more);
            more.as_mut().enable();
            let (piece, eof, open) = {
                let mut inner = self.lock();
                let take = inner.waiting.len().min(64 * 1024);
                let piece: Vec<u8> = inner.waiting.drain(..take).collect();
                (piece, inner.eof, inner.open)
            };
            if !open {
                return;
            }
            if let Some(end) = piece.last() {
                last = *end;
                self.room.notify_waiters();
                if pipe.write_all(&piece).await.is_err() {
                    return self.shut();
                }
            } else if eof {
                if terminal {
                    // A terminal is not closed but told: once for what stands on the line, once for the end.
                    let end: &[u8] = if last == b'\n' { &[END] } else { &[END, END] };
                    let _ = pipe.write_all(end).await;
                }
                return;
            } else {
                more.await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resend_is_accepted_once_and_a_gap_never() {
        let stdin = Stdin::new(true);
        assert_eq!(stdin.write(0, b"abc", false), Ok(3));
        assert_eq!(stdin.write(0, b"abcde", false), Ok(5));
        assert_eq!(stdin.write(9, b"x", false), Err(StdinError::Ahead { accepted: 5, offset: 9 }));
        assert_eq!(stdin.write(5, b"f", true), Ok(6));
        assert_eq!(stdin.write(5, b"f", true), Ok(6));
        assert_eq!(stdin.write(6, b"", true), Ok(6));
        assert_eq!(stdin.write(6, b"g", false), Err(StdinError::Closed { accepted: 6 }));
        assert_eq!(stdin.lock().waiting, b"abcdef");
    }

    #[tokio::test]
    async fn an_appended_write_waits_for_room_and_stands_after_all_others() {
        let stdin = Stdin::new(true);
        stdin.write(0, b"first ", false).unwrap();
        assert_eq!(stdin.append(b"second").await, Ok(12));
        let more = vec![7; BUFFER];
        let long = stdin.append(&more);
        tokio::pin!(long);
        assert!(tokio::time::timeout(std::time::Duration::ZERO, &mut long).await.is_err());
        stdin.lock().waiting.clear();
        stdin.room.notify_waiters();
        assert_eq!(long.await, Ok(12 + BUFFER as u64));
        stdin.shut();
        assert!(stdin.append(b"x").await.is_err());
    }

    #[test]
    fn the_end_waits_until_the_whole_write_was_accepted() {
        let stdin = Stdin::new(true);
        let data = vec![0; BUFFER + 10];
        assert_eq!(stdin.write(0, &data, true), Ok(BUFFER as u64));
        assert_eq!(stdin.state(), (true, BUFFER as u64));
        stdin.lock().waiting.clear();
        assert_eq!(stdin.write(BUFFER as u64, &data[BUFFER..], true), Ok(BUFFER as u64 + 10));
        assert!(!stdin.state().0);
    }
}
