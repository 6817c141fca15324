//! What a process wrote: one line of offsets over both streams, the last mebibyte kept for readers that come back, and
//! the heads that a plain exec answers with.
//!
//! A live reader sets the pace: while one is attached, or was within the last ten seconds, bytes it has not taken are
//! not dropped and the process waits on its full pipe. With no reader the oldest bytes make room.
//!
//! Wake-ups: `data` wakes readers after an append, `space` wakes writers after a reader moved on. Both sides register
//! with the notifier before they look, so a change between look and wait is not missed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use runtime_proto::guest::{DATA_STEP, Output as Which, RETAINED_OUTPUT};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a reader may be away before its process goes on without it.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// What is kept behind a live reader: what it was sent may not have arrived when its host goes away. More than a stream
/// can have on its way.
const BEHIND: u64 = RETAINED_OUTPUT as u64 / 2;
/// Changes of stream that are remembered: bounds what a process costs that writes to both in turn, byte by byte.
const MAX_RUNS: usize = 64 * 1024;

pub(crate) struct Output {
    inner: Mutex<Inner>,
    data: Notify,
    space: Notify,
    /// Text: never cut a character in two.
    text: bool,
}

#[derive(Default)]
struct Inner {
    bytes: VecDeque<u8>,
    /// Where each stretch of one stream starts.
    runs: VecDeque<(u64, Which)>,
    first: u64,
    end: u64,
    closed: bool,
    readers: HashMap<u64, u64>,
    next_reader: u64,
    /// The cursor of a reader that left, and until when it counts.
    away: Option<(u64, Instant)>,
    heads: [Head; 2],
    head_limit: usize,
}

#[derive(Default)]
struct Head {
    bytes: Vec<u8>,
    total: u64,
}

/// What stands at a cursor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Chunk {
        which: Which,
        offset: u64,
        data: Bytes,
    },
    Lost {
        dropped: u64,
        resume_at: u64,
    },
    /// Nothing yet.
    Wait,
    /// Nothing, and nothing will come.
    End,
}

/// The heads of both streams, and whether more came than was kept.
pub(crate) struct Heads {
    pub(crate) stdout: (Bytes, bool),
    pub(crate) stderr: (Bytes, bool),
}

/// A reader that counts for the pace while it lives, and for [`LEASE`] after.
pub(crate) struct Reader<'a> {
    output: &'a Output,
    id: u64,
    start: u64,
}

fn index(which: Which) -> usize {
    match which {
        Which::Stdout => 0,
        Which::Stderr => 1,
    }
}

impl Output {
    pub(crate) fn new(head_limit: usize, text: bool) -> Self {
        let inner = Inner { head_limit, ..Inner::default() };
        Self { inner: Mutex::new(inner), data: Notify::new(), space: Notify::new(), text }
    }

    /// Counts a reader as away from now on: whoever started the process has not had the time to come.
    pub(crate) fn expect_reader(self) -> Self {
        self.lock().away = Some((0, Instant::now() + LEASE));
        self
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends, waiting for a live reader to make room. Waits no longer once `hurry` is notified: the leader has ended,
    /// and what is left in its pipes is little.
    pub(crate) async fn push(&self, which: Which, data: &[u8], hurry: &tokio::sync::watch::Receiver<bool>) {
        if self.try_push(which, data).is_none() {
            return;
        }
        let mut hurry = hurry.clone();
        loop {
            let space = self.space.notified();
            tokio::pin!(space);
            space.as_mut().enable();
            let Some(until) = self.try_push(which, data) else { return };
            tokio::select! {
                () = &mut space => {}
                _ = hurry.wait_for(|hurry| *hurry) => return self.push_now(which, data),
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Appends if that drops nothing a live reader still wants; else says when to look again at the latest.
    fn try_push(&self, which: Which, data: &[u8]) -> Option<Instant> {
        let mut inner = self.lock();
        let now = Instant::now();
        if inner.away.is_some_and(|(_, until)| until <= now) {
            inner.away = None;
        }
        let live = inner.readers.values().copied().min();
        let away = inner.away.map(|(cursor, _)| cursor);
        if let Some(wanted) = live.into_iter().chain(away).min()
            && inner.end + data.len() as u64 - wanted.min(inner.end) > RETAINED_OUTPUT as u64
        {
            return Some(inner.away.map_or(now + LEASE, |(_, until)| until));
        }
        inner.append(which, data);
        inner.trim(RETAINED_OUTPUT, self.text);
        drop(inner);
        self.data.notify_waiters();
        None
    }

    /// Appends whoever waits for what; the caller bounds how much that can be.
    pub(crate) fn push_now(&self, which: Which, data: &[u8]) {
        let mut inner = self.lock();
        inner.append(which, data);
        let room = if inner.readers.is_empty() && inner.away.is_none() { RETAINED_OUTPUT } else { 2 * RETAINED_OUTPUT };
        inner.trim(room, self.text);
        drop(inner);
        self.data.notify_waiters();
    }

    /// No more will come.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.data.notify_waiters();
        self.space.notify_waiters();
    }

    /// Total bytes so far, and the oldest kept.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.end, inner.first)
    }

    /// Memory held, for the bound over all ended processes.
    pub(crate) fn weight(&self) -> usize {
        let inner = self.lock();
        inner.bytes.len() + inner.heads.iter().map(|head| head.bytes.len()).sum::<usize>() + 512
    }

    /// Lets go of the kept output, not of the heads.
    pub(crate) fn forget(&self) {
        let mut inner = self.lock();
        inner.first = inner.end;
        inner.bytes = VecDeque::new();
        inner.runs = VecDeque::new();
    }

    pub(crate) fn heads(&self) -> Heads {
        let inner = self.lock();
        let take = |head: &Head| (Bytes::copy_from_slice(&head.bytes), head.total > head.bytes.len() as u64);
        Heads { stdout: take(&inner.heads[0]), stderr: take(&inner.heads[1]) }
    }

    pub(crate) fn attach(&self, cursor: u64) -> Reader<'_> {
        let mut inner = self.lock();
        let id = inner.next_reader;
        inner.next_reader += 1;
        inner.readers.insert(id, cursor);
        // The one that was away is back, or another stands in for it.
        inner.away = None;
        Reader { output: self, id, start: cursor }
    }
}

impl Reader<'_> {
    /// What stands at `cursor`; never changes anything.
    pub(crate) fn look(&self, cursor: u64) -> Piece {
        let inner = self.output.lock();
        if cursor < inner.first {
            return Piece::Lost { dropped: inner.first - cursor, resume_at: inner.first };
        }
        if cursor >= inner.end {
            return if inner.closed { Piece::End } else { Piece::Wait };
        }
        let at = inner.runs.partition_point(|(start, _)| *start <= cursor) - 1;
        let which = inner.runs[at].1;
        let run_end = inner.runs.get(at + 1).map_or(inner.end, |(start, _)| *start);
        let skip = (cursor - inner.first) as usize;
        let mut length = ((run_end - cursor) as usize).min(DATA_STEP);
        if self.output.text && length == DATA_STEP {
            // Cut before a character, not within: at most three bytes back.
            while length > DATA_STEP - 3 && inner.bytes.get(skip + length).is_some_and(|byte| byte & 0xc0 == 0x80) {
                length -= 1;
            }
        }
        let data: Vec<u8> = inner.bytes.range(skip..skip + length).copied().collect();
        Piece::Chunk { which, offset: cursor, data: data.into() }
    }

    /// Everything before `cursor` is on its way to the reader.
    pub(crate) fn advance(&self, cursor: u64) {
        let floor = self.start.max(cursor.saturating_sub(BEHIND));
        self.output.lock().readers.insert(self.id, floor);
        self.output.space.notify_waiters();
    }

    /// Waits until something stands at `cursor`, or the output has ended.
    pub(crate) async fn wait(&self, cursor: u64) {
        loop {
            let data = self.output.data.notified();
            tokio::pin!(data);
            data.as_mut().enable();
            if self.look(cursor) != Piece::Wait {
                return;
            }
            data.await;
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut inner = self.output.lock();
        if let Some(cursor) = inner.readers.remove(&self.id)
            && inner.readers.is_empty()
        {
            inner.away = Some((cursor, Instant::now() + LEASE));
        }
        drop(inner);
        self.output.space.notify_waiters();
    }
}

impl Inner {
    fn append(&mut self, which: Which, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let limit = self.head_limit;
        let head = &mut self.heads[index(which)];
        let room = limit.saturating_sub(head.bytes.len()).min(data.len());
        // Only while nothing was left out: the head is a head, not a patchwork.
        if head.total == head.bytes.len() as u64 {
            head.bytes.extend_from_slice(&data[..room]);
        }
        head.total += data.len() as u64;
        if self.runs.back().is_none_or(|(_, last)| *last != which) {
            self.runs.push_back((self.end, which));
        }
        self.bytes.extend(data);
        self.end += data.len() as u64;
    }

    fn trim(&mut self, room: usize, text: bool) {
        let mut drop = self.bytes.len().saturating_sub(room);
        if self.runs.len() > MAX_RUNS {
            let keep_from = self.runs[self.runs.len() - MAX_RUNS].0;
            drop = drop.max((keep_from - self.first) as usize);
        }
        if drop == 0 {
            return;
        }
        if text {
            let rest = self.bytes.range(drop..).take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
            drop += rest;
        }
        self.bytes.drain(..drop);
        self.first += drop as u64;
        while self.runs.get(1).is_some_and(|(start, _)| *start <= self.first) {
            self.runs.pop_front();
        }
        if self.bytes.is_empty() {
            self.runs.clear();
        } else if let Some(front) = self.runs.front_mut() {
            front.0 = front.0.max(self.first);
        }
    }
}

/// How many bytes at the end of `data` begin a character that is not complete.
pub(crate) fn unfinished(data: &[u8]) -> usize {
    for back in 1..=data.len().min(3) {
        let byte = data[data.len() - back];
        let length = match byte {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => return 0,
        };
        return if length > back { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(reader: &Reader<'_>, mut cursor: u64) -> Vec<Piece> {
        let mut out = Vec::new();
        loop {
            let piece = reader.look(cursor);
            match &piece {
                Piece::Chunk { data, .. } => cursor += data.len() as u64,
                Piece::Lost { resume_at, .. } => cursor = *resume_at,
                Piece::Wait | Piece::End => return out,
            }
            out.push(piece);
        }
    }

    fn chunk(which: Which, offset: u64, data: &'static [u8]) -> Piece {
        Piece::Chunk { which, offset, data: Bytes::from_static(data) }
    }

    #[test]
    fn one_line_of_offsets_over_both_streams() {
        let output = Output::new(4, true);
        for (which, data) in [(Which::Stdout, "ab"), (Which::Stderr, "x"), (Which::Stdout, "cde"), (Which::Stdout, "f")]
        {
            output.push_now(which, data.as_bytes());
        }
        let reader = output.attach(0);
        let expected =
            [chunk(Which::Stdout, 0, b"ab"), chunk(Which::Stderr, 2, b"x"), chunk(Which::Stdout, 3, b"cdef")];
        assert_eq!(drain(&reader, 0), expected);
        assert_eq!(drain(&reader, 4), [chunk(Which::Stdout, 4, b"def")]);
        let heads = output.heads();
        assert_eq!((&heads.stdout.0[..], heads.stdout.1), (&b"abcd"[..], true));
        assert_eq!((&heads.stderr.0[..], heads.stderr.1), (&b"x"[..], false));
    }

    #[test]
    fn without_a_reader_the_oldest_goes_and_the_gap_is_named() {
        let output = Output::new(0, false);
        for _ in 0..3 {
            assert_eq!(output.try_push(Which::Stdout, &vec![7; RETAINED_OUTPUT / 2]), None);
        }
        let half = RETAINED_OUTPUT as u64 / 2;
        let reader = output.attach(10);
        assert_eq!(reader.look(10), Piece::Lost { dropped: half - 10, resume_at: half });
        assert_eq!(output.extent(), (3 * half, half));
    }

    #[tokio::test(start_paused = true)]
    async fn a_live_reader_sets_the_pace_and_one_away_counts_for_ten_seconds() {
        let output = Output::new(0, false);
        let (_hurry, hurry) = tokio::sync::watch::channel(false);
        let reader = output.attach(0);
        output.push(Which::Stdout, &vec![1; RETAINED_OUTPUT], &hurry).await;
        assert!(output.try_push(Which::Stdout, b"more").is_some());
        reader.advance(BEHIND + 4);
        assert!(output.try_push(Which::Stdout, b"more").is_none());
        drop(reader);
        let left = Instant::now();
        output.push(Which::Stdout, b"last", &hurry).await;
        assert_eq!(left.elapsed().as_secs(), 10);
        assert_eq!(output.extent().1, 8);
    }

    #[test]
    fn alternating_bytes_stay_bounded_and_in_order() {
        let output = Output::new(0, true);
        for n in 0..200_000_u32 {
            output.push_now(if n % 2 == 0 { Which::Stdout } else { Which::Stderr }, b"z");
        }
        assert!(output.lock().runs.len() <= MAX_RUNS);
        let (end, first) = output.extent();
        let reader = output.attach(first);
        let pieces = drain(&reader, first);
        assert_eq!(pieces.len() as u64, end - first);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = "é".repeat(DATA_STEP);
        let output = Output::new(0, true);
        output.push_now(Which::Stdout, b"a");
        output.push_now(Which::Stdout, text.as_bytes());
        let reader = output.attach(0);
        for piece in drain(&reader, 0) {
            let Piece::Chunk { data, .. } = piece else { panic!("{piece:?}") };
            assert!(std::str::from_utf8(&data).is_ok());
        }
    }

    #[test]
    fn what_is_unfinished_at_the_end() {
        for (data, expected) in [
            (&b"abc"[..], 0),
            ("é".as_bytes(), 0),
            (&"é".as_bytes()[..1], 1),
            (&"€".as_bytes()[..2], 2),
            (&"😀".as_bytes()[..3], 3),
            ("😀".as_bytes(), 0),
            (&[0x80, 0x80, 0x80, 0x80], 0),
            (&[0xff], 0),
            (b"", 0),
        ] {
            assert_eq!(unfinished(data), expected, "{data:?}");
        }
    }
}
