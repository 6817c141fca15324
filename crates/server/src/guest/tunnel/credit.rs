//! What the client has sent and the sandbox's side has not taken: counted over all connections of a tunnel.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use runtime_proto::guest::DATA_STEP;
use tokio::sync::Notify;

/// Bytes the sandbox's side took, over all connections of a tunnel.
#[derive(Default)]
pub(super) struct Taken {
    bytes: AtomicU64,
    more: Notify,
}

impl Taken {
    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::AcqRel);
        self.more.notify_one();
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Returns once more was taken since the last time.
    pub(super) async fn more(&self) {
        self.more.notified().await;
    }
}

/// What a client has sent to one connection and nobody took yet: bytes, bounded by the credit, however small the frames
/// were that brought them.
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    more: Notify,
    taken: Arc<Taken>,
}

#[derive(Default)]
struct Waiting {
    bytes: BytesMut,
    /// The client has half-closed.
    ended: bool,
    /// The connection is over: nobody takes any more.
    over: bool,
}

impl Inbox {
    pub(super) fn new(taken: Arc<Taken>) -> Self {
        Self { waiting: Mutex::default(), more: Notify::new(), taken }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, data: &[u8]) {
        let mut waiting = self.waiting();
        if waiting.over || waiting.ended {
            // Nobody takes it, and its credit must not be lost.
            self.taken.add(data.len());
        } else {
            waiting.bytes.extend_from_slice(data);
            self.more.notify_one();
        }
    }

    pub(super) fn end(&self) {
        self.waiting().ended = true;
        self.more.notify_one();
    }

    /// The next bytes; `None` at the client's end. For one taker: what comes between its look and its wait is kept as a
    /// permit of the notifier.
    pub(super) async fn next(&self) -> Option<Bytes> {
        loop {
            {
                let mut waiting = self.waiting();
                if !waiting.bytes.is_empty() {
                    let length = waiting.bytes.len().min(DATA_STEP);
                    return Some(waiting.bytes.split_to(length).freeze());
                }
                if waiting.ended {
                    return None;
                }
            }
            self.more.notified().await;
        }
    }

    pub(super) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.over = true;
        self.taken.add(std::mem::take(&mut waiting.bytes).len());
    }

    /// Data that was handed on is owed until it is on its way.
    pub(super) fn owed(&self, bytes: usize) -> Owed<'_> {
        Owed { taken: &self.taken, left: bytes }
    }
}

/// Data out of the queue and on its way; however that ends, it counts as taken.
pub(super) struct Owed<'a> {
    taken: &'a Taken,
    left: usize,
}

impl Owed<'_> {
    pub(super) fn pay(&mut self, bytes: usize) {
        self.left -= bytes;
        self.taken.add(bytes);
    }
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        self.taken.add(self.left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_connection_leaves_counts_as_taken_and_nothing_comes_after_its_end() {
        let taken = Arc::new(Taken::default());
        let inbox = Inbox::new(taken.clone());
        inbox.push(b"");
        inbox.push(b"one ");
        inbox.push(b"two");
        assert_eq!(inbox.next().await.unwrap(), "one two");
        inbox.push(b"three");
        inbox.end();
        inbox.push(b"late");
        assert_eq!(taken.bytes(), 4);
        assert_eq!(inbox.next().await.unwrap(), "three");
        assert_eq!(inbox.next().await, None);
        let inbox = Inbox::new(taken.clone());
        inbox.push(b"left");
        inbox.close();
        inbox.push(b"more");
        assert_eq!(taken.bytes(), 12);
        let mut owed = Owed { taken: &taken, left: 10 };
        owed.pay(4);
        drop(owed);
        assert_eq!(taken.bytes(), 22);
    }
}
