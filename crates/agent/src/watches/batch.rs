//! Changes that are told together: what happens to one path again and again is told once, with a count.

use std::collections::HashMap;

use runtime_proto::guest::{Change, ChangeKind, Overflow, WatchRecord};

/// Changes of one batch; what is more is counted and dropped.
const MOST: usize = 10_000;
/// Bytes of their paths.
const MOST_BYTES: usize = 8 * 1024 * 1024;
/// Bytes of paths in one record, well within a frame.
const RECORD_BYTES: usize = 32 * 1024;

#[derive(Default)]
pub(super) struct Batch {
    changes: Vec<Change>,
    /// The last change of each path.
    last: HashMap<String, usize>,
    bytes: usize,
    dropped: u64,
    /// The kernel dropped some.
    overflown: bool,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.dropped == 0 && !self.overflown
    }

    /// What was met beyond any measure.
    pub(super) fn dropped(&mut self, count: u64) {
        self.dropped += count;
    }

    pub(super) fn overflown(&mut self) {
        self.overflown = true;
    }

    pub(super) fn add(&mut self, kind: ChangeKind, path: String, is_dir: bool, old_path: Option<String>) {
        let last = self.last.get(&path).and_then(|at| self.changes.get_mut(*at));
        if let Some(last) = last.filter(|last| last.kind == kind as i32 && last.is_dir == is_dir && old_path.is_none())
        {
            last.count = last.count.saturating_add(1);
            return;
        }
        if self.changes.len() >= MOST || self.bytes >= MOST_BYTES {
            self.dropped += 1;
            return;
        }
        self.bytes += path.len() + old_path.as_ref().map_or(0, String::len);
        self.last.insert(path.clone(), self.changes.len());
        self.changes.push(Change { kind: kind as i32, path, is_dir, old_path, count: 1 });
    }

    /// As records, in order.
    pub(super) fn take(&mut self) -> Vec<WatchRecord> {
        let Self { changes, dropped, overflown, .. } = std::mem::take(self);
        let mut records = Vec::new();
        let mut part = Vec::new();
        let mut bytes = 0;
        for change in changes {
            let size = change.path.len() + change.old_path.as_ref().map_or(0, String::len) + 32;
            if bytes + size > RECORD_BYTES && !part.is_empty() {
                records.push(WatchRecord { changes: std::mem::take(&mut part), ..WatchRecord::default() });
                bytes = 0;
            }
            bytes += size;
            part.push(change);
        }
        if !part.is_empty() {
            records.push(WatchRecord { changes: part, ..WatchRecord::default() });
        }
        let overflow = |dropped| WatchRecord { overflow: Some(Overflow { dropped }), ..WatchRecord::default() };
        if dropped > 0 {
            records.push(overflow(Some(dropped)));
        }
        if overflown {
            records.push(overflow(None));
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_folded_and_a_flood_is_counted() {
        let mut batch = Batch::default();
        for _ in 0..3 {
            batch.add(ChangeKind::Write, "/a".into(), false, None);
        }
        batch.add(ChangeKind::Chmod, "/a".into(), false, None);
        batch.add(ChangeKind::Write, "/a".into(), false, None);
        let records = batch.take();
        let counts: Vec<u32> = records[0].changes.iter().map(|change| change.count).collect();
        assert_eq!((records.len(), counts), (1, vec![3, 1, 1]));
        assert!(batch.is_empty());
        for number in 0..MOST + 7 {
            batch.add(ChangeKind::Create, format!("/{number}"), false, None);
        }
        batch.overflown();
        let records = batch.take();
        assert_eq!(records.iter().map(|record| record.changes.len()).sum::<usize>(), MOST);
        let overflows: Vec<_> = records.iter().filter_map(|record| record.overflow).collect();
        assert_eq!(overflows, [Overflow { dropped: Some(7) }, Overflow { dropped: None }]);
    }
}
