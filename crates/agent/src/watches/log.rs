//! What a watch has seen, held for readers that come and come back. A cursor counts bytes of records, so that what a
//! reader missed has a size.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use prost::Message;
use runtime_proto::guest::{RETAINED_RECORDS, WatchEnd, WatchRecord};
use tokio::sync::Notify;

/// Bytes of records that one look yields, and one record more: many readers at once hold no more than that each.
const AT_ONCE: u64 = 64 * 1024;

#[derive(Default)]
pub(super) struct Log {
    inner: Mutex<Inner>,
    more: Notify,
}

#[derive(Default)]
struct Inner {
    /// Each with the place of its first byte; its cursor is the place after its last.
    records: VecDeque<(u64, WatchRecord)>,
    first: u64,
    end: u64,
    ended: bool,
}

/// What there is after a cursor.
#[derive(Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) records: Vec<WatchRecord>,
    /// Nothing comes after these, now or later.
    pub(super) ended: bool,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, mut record: WatchRecord) {
        let mut inner = self.lock();
        let start = inner.end;
        inner.end += record.encoded_len().max(1) as u64;
        inner.ended |= record.end.is_some();
        record.cursor = inner.end;
        inner.records.push_back((start, record));
        // The newest is always held: it says at least where to go on.
        while inner.end - inner.first > RETAINED_RECORDS as u64 && inner.records.len() > 1 {
            inner.records.pop_front();
            inner.first = inner.records.front().map_or(inner.end, |(start, _)| *start);
        }
        drop(inner);
        self.more.notify_waiters();
    }

    pub(super) fn end(&self, why: WatchEnd) {
        self.push(WatchRecord { end: Some(why as i32), ..WatchRecord::default() });
    }

    pub(super) fn ended(&self) -> bool {
        self.lock().ended
    }

    /// After the last record.
    pub(super) fn cursor(&self) -> u64 {
        self.lock().end
    }

    /// What is held after the cursor, up to a measure, and first how much is not. One within a record goes on after it: its
    /// reader has the record or lost it.
    pub(super) fn after(&self, cursor: u64) -> Seen {
        let inner = self.lock();
        let mut records = Vec::new();
        if cursor < inner.first {
            let lost = Some(inner.first - cursor);
            records.push(WatchRecord { cursor: inner.first, lost, ..WatchRecord::default() });
        }
        let first = inner.records.partition_point(|(start, _)| *start < cursor);
        let some = inner.records.range(first..).take_while(|(start, _)| *start < cursor.max(inner.first) + AT_ONCE);
        records.extend(some.map(|(_, record)| record.clone()));
        // Whoever has nothing left to read is at the end.
        let at = records.last().map_or(cursor, |last| last.cursor);
        Seen { records, ended: inner.ended && at >= inner.end }
    }

    /// Returns once there is something after the cursor, or nothing will come.
    pub(super) async fn wait(&self, cursor: u64) {
        loop {
            let more = self.more.notified();
            tokio::pin!(more);
            // Before the look: what is pushed between the two is not missed.
            more.as_mut().enable();
            {
                let inner = self.lock();
                if inner.end > cursor || inner.ended {
                    return;
                }
            }
            more.await;
        }
    }

    pub(super) async fn settled(&self) {
        loop {
            let more = self.more.notified();
            tokio::pin!(more);
            more.as_mut().enable();
            if self.ended() {
                return;
            }
            more.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime_proto::guest::Change;

    use super::*;

    fn record(bytes: usize) -> WatchRecord {
        WatchRecord { changes: vec![Change { path: "x".repeat(bytes), ..Change::default() }], ..WatchRecord::default() }
    }

    #[tokio::test]
    async fn readers_go_on_where_they_were_and_are_told_what_they_missed() {
        let log = Log::default();
        log.push(record(10));
        log.push(record(10));
        let seen = log.after(0);
        assert_eq!((seen.records.len(), seen.ended), (2, false));
        let middle = seen.records[0].cursor;
        assert_eq!(log.after(middle).records, seen.records[1..]);
        assert_eq!(log.after(middle - 1).records, seen.records[1..]);
        assert_eq!(log.after(log.cursor()).records, []);
        for _ in 0..20 {
            log.push(record(100_000));
        }
        let seen = log.after(middle);
        let gap = &seen.records[0];
        assert_eq!(gap.lost, Some(gap.cursor - middle));
        log.end(WatchEnd::Stopped);
        log.wait(u64::MAX).await;
        let (mut cursor, mut looks, mut ended) = (gap.cursor, 0, false);
        while !ended {
            let seen = log.after(cursor);
            assert!(seen.records.len() <= 2, "a look is bounded");
            (cursor, looks, ended) = (seen.records.last().unwrap().cursor, looks + 1, seen.ended);
        }
        assert_eq!(cursor, log.cursor());
        let held = cursor - gap.cursor;
        assert!(held <= RETAINED_RECORDS as u64 && held > 900_000 && looks >= 9, "{held} bytes in {looks} looks");
    }
}
