//! From the bytes an agent sends to pieces a client can count: offsets without holes, no character cut in two.
//!
//! Both outputs of a process share one byte counter. A client checks it: the next offset must be the last one plus the
//! bytes of the piece, where bytes that are not UTF-8 travel as base64 beside the text that stands for them. The end of
//! a chunk may cut a character, so up to three bytes are held back until the rest comes; whatever else comes first (the
//! other output, a loss, the end) sends them out as they are.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use runtime_api::exec::{ExecEvent, OutputPiece};
use runtime_api::process::{OutputChunk, OutputStream};
use runtime_proto::guest::{Chunk, Lost, Output};

/// What to tell a reader next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    Data { stream: OutputStream, data: OutputPiece },
    Gap { dropped: u64, resume_at: u64 },
}

/// The place of one reader in one process's output.
#[derive(Debug)]
pub(crate) struct Reader {
    /// The first byte that was not handed out.
    cursor: u64,
    binary: bool,
    held: BytesMut,
    held_stream: OutputStream,
}

impl Reader {
    pub(crate) fn new(cursor: u64, binary: bool) -> Self {
        Self { cursor, binary, held: BytesMut::new(), held_stream: OutputStream::Stdout }
    }

    /// Where a later reader goes on: everything before it was handed out.
    pub(crate) fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Forgets what is held back, to ask again from the cursor.
    pub(crate) fn rewind(&mut self) {
        self.held.clear();
    }

    /// Takes a chunk. The guest is not trusted to count: bytes that were seen are cut off, a hole is told as a loss.
    pub(crate) fn take(&mut self, chunk: Chunk, out: &mut Vec<Piece>) {
        let stream = match Output::try_from(chunk.stream) {
            Ok(Output::Stderr) => OutputStream::Stderr,
            Ok(Output::Stdout) | Err(_) => OutputStream::Stdout,
        };
        let mut bytes = chunk.data;
        let expected = self.cursor.saturating_add(self.held.len() as u64);
        if chunk.offset > expected {
            self.jump(chunk.offset, out);
        } else {
            let seen = usize::try_from(expected - chunk.offset).unwrap_or(usize::MAX);
            if seen >= bytes.len() {
                return;
            }
            drop(bytes.split_to(seen));
        }
        if !self.held.is_empty() && self.held_stream != stream {
            self.release(out);
        }
        if self.held.is_empty() {
            let keep = if self.binary { 0 } else { unfinished(&bytes) };
            let rest = bytes.split_off(bytes.len() - keep);
            self.emit(stream, bytes, out);
            self.held.extend_from_slice(&rest);
        } else {
            let mut whole = std::mem::take(&mut self.held);
            whole.extend_from_slice(&bytes);
            let rest = whole.split_off(whole.len() - unfinished(&whole));
            self.emit(stream, whole.freeze(), out);
            self.held = rest;
        }
        self.held_stream = stream;
    }

    /// The agent says that output is gone.
    pub(crate) fn lost(&mut self, lost: Lost, out: &mut Vec<Piece>) {
        if lost.resume_at > self.cursor.saturating_add(self.held.len() as u64) {
            self.jump(lost.resume_at, out);
        }
    }

    /// No more comes: hands out what was held back.
    pub(crate) fn release(&mut self, out: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held).freeze();
        self.emit(self.held_stream, held, out);
    }

    fn jump(&mut self, to: u64, out: &mut Vec<Piece>) {
        self.release(out);
        out.push(Piece::Gap { dropped: to.saturating_sub(self.cursor), resume_at: to });
        self.cursor = to;
    }

    fn emit(&mut self, stream: OutputStream, bytes: Bytes, out: &mut Vec<Piece>) {
        if bytes.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(&bytes);
        let exact = matches!(text, std::borrow::Cow::Borrowed(_));
        let base64 = (self.binary || !exact).then(|| STANDARD.encode(&bytes));
        out.push(Piece::Data { stream, data: OutputPiece { data: text.into_owned(), offset: self.cursor, base64 } });
        self.cursor = self.cursor.saturating_add(bytes.len() as u64);
    }
}

/// Bytes at the end that begin a character whose rest may still come: 0 to 3.
fn unfinished(bytes: &[u8]) -> usize {
    (1..=bytes.len().min(3))
        .find(|&length| {
            let tail = &bytes[bytes.len() - length..];
            std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(0)
}

impl From<Piece> for ExecEvent {
    fn from(piece: Piece) -> Self {
        match piece {
            Piece::Data { stream: OutputStream::Stdout, data } => Self::Stdout(data),
            Piece::Data { stream: OutputStream::Stderr, data } => Self::Stderr(data),
            Piece::Gap { dropped, resume_at } => Self::Truncated { dropped_bytes: dropped, resume_at },
        }
    }
}

impl Piece {
    /// As a poll tells it: a gap is not an entry, it shows in the offsets.
    pub(crate) fn into_chunk(self) -> Option<OutputChunk> {
        match self {
            Self::Data { stream, data } => {
                Some(OutputChunk { stream, text: data.data, offset: data.offset, base64: data.base64 })
            }
            Self::Gap { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunk(stream: Output, offset: u64, data: &[u8]) -> Chunk {
        Chunk { stream: stream as i32, offset, data: Bytes::copy_from_slice(data) }
    }

    /// What a client makes of a piece.
    fn bytes_of(piece: &OutputPiece) -> Vec<u8> {
        match &piece.base64 {
            Some(text) => STANDARD.decode(text).unwrap(),
            None => piece.data.clone().into_bytes(),
        }
    }

    fn text(pieces: &[Piece]) -> Vec<(OutputStream, u64, &str, bool)> {
        pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Data { stream, data } => Some((*stream, data.offset, data.data.as_str(), data.base64.is_some())),
                Piece::Gap { .. } => None,
            })
            .collect()
    }

    #[test]
    fn a_character_cut_by_a_chunk_is_handed_out_whole() {
        let mut reader = Reader::new(0, false);
        let mut out = Vec::new();
        reader.take(chunk(Output::Stdout, 0, b"h\xc3"), &mut out);
        assert_eq!(text(&out), [(OutputStream::Stdout, 0, "h", false)]);
        assert_eq!(reader.cursor(), 1);
        reader.take(chunk(Output::Stdout, 2, b"\xa9!"), &mut out);
        assert_eq!(text(&out)[1..], [(OutputStream::Stdout, 1, "é!", false)]);
    }

    #[test]
    fn half_a_character_does_not_open_a_hole_before_the_other_output() {
        let mut reader = Reader::new(0, false);
        let mut out = Vec::new();
        reader.take(chunk(Output::Stdout, 0, b"\xe2\x82"), &mut out);
        assert!(out.is_empty());
        reader.take(chunk(Output::Stderr, 2, b"x"), &mut out);
        assert_eq!(text(&out), [(OutputStream::Stdout, 0, "\u{fffd}", true), (OutputStream::Stderr, 2, "x", false)]);
    }

    #[test]
    fn what_was_seen_is_cut_off_and_a_hole_is_told() {
        let mut reader = Reader::new(5, false);
        let mut out = Vec::new();
        reader.take(chunk(Output::Stdout, 0, b"0123456"), &mut out);
        assert_eq!(text(&out), [(OutputStream::Stdout, 5, "56", false)]);
        reader.take(chunk(Output::Stdout, 3, b"345"), &mut out);
        assert_eq!(out.len(), 1);
        reader.take(chunk(Output::Stdout, 10, b"a"), &mut out);
        assert_eq!(out[1], Piece::Gap { dropped: 3, resume_at: 10 });
        reader.lost(Lost { dropped: 9, resume_at: 20 }, &mut out);
        assert_eq!(out[3], Piece::Gap { dropped: 9, resume_at: 20 });
        assert_eq!(reader.cursor(), 20);
    }

    #[test]
    fn offsets_at_the_end_of_counting_do_not_panic() {
        let mut reader = Reader::new(0, false);
        let mut out = Vec::new();
        reader.take(chunk(Output::Stdout, u64::MAX, b"abc"), &mut out);
        reader.take(chunk(Output::Stderr, u64::MAX, b"abc"), &mut out);
        reader.lost(Lost { dropped: u64::MAX, resume_at: u64::MAX }, &mut out);
        reader.release(&mut out);
    }

    #[test]
    fn every_piece_of_a_binary_process_carries_its_bytes() {
        let mut reader = Reader::new(0, true);
        let mut out = Vec::new();
        reader.take(chunk(Output::Stdout, 0, b"ok\xc3"), &mut out);
        let Piece::Data { data, .. } = &out[0] else { panic!("a gap") };
        assert_eq!(bytes_of(data), b"ok\xc3");
    }

    #[test]
    fn a_rewound_reader_asks_for_what_it_held_again() {
        let mut reader = Reader::new(0, false);
        let mut out = Vec::new();
        reader.take(chunk(Output::Stdout, 0, b"a\xf0\x9f"), &mut out);
        reader.rewind();
        assert_eq!(reader.cursor(), 1);
        reader.take(chunk(Output::Stdout, 1, b"\xf0\x9f\x98\x80"), &mut out);
        assert_eq!(text(&out)[1..], [(OutputStream::Stdout, 1, "😀", false)]);
    }

    fn output() -> impl Strategy<Value = Vec<(bool, Vec<u8>)>> {
        let bytes = prop_oneof![
            "[a-zé€😀\u{0}]{0,12}".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 0..12),
        ];
        proptest::collection::vec((any::<bool>(), bytes), 0..12)
    }

    proptest! {
        /// However the agent cuts its chunks, and wherever a reader loses its connection, the pieces are the bytes.
        #[test]
        fn pieces_are_the_bytes_wherever_they_are_cut(
            runs in output(),
            step in 1_usize..6,
            breaks in proptest::collection::vec(any::<bool>(), 0..64),
            binary in any::<bool>(),
        ) {
            let all: Vec<(Output, u8)> = runs
                .iter()
                .flat_map(|(err, bytes)| {
                    let stream = if *err { Output::Stderr } else { Output::Stdout };
                    bytes.iter().map(move |byte| (stream, *byte))
                })
                .collect();
            let mut reader = Reader::new(0, binary);
            let mut out = Vec::new();
            let mut at = 0;
            let mut breaks = breaks.into_iter();
            while at < all.len() {
                let stream = all[at].0;
                let data: Vec<u8> =
                    all[at..].iter().take(step).take_while(|(s, _)| *s == stream).map(|(_, byte)| *byte).collect();
                reader.take(chunk(stream, at as u64, &data), &mut out);
                at += data.len();
                if breaks.next() == Some(true) {
                    reader.rewind();
                    at = reader.cursor() as usize;
                }
            }
            reader.release(&mut out);

            let mut next = 0;
            for piece in &out {
                let Piece::Data { stream, data } = piece else { panic!("nothing was lost, but {piece:?}") };
                prop_assert_eq!(data.offset, next);
                for byte in bytes_of(data) {
                    let (expected, value) = all[next as usize];
                    prop_assert_eq!(value, byte);
                    prop_assert_eq!(*stream == OutputStream::Stderr, expected == Output::Stderr);
                    next += 1;
                }
                prop_assert_eq!(data.base64.is_some() || !data.data.is_empty(), true);
            }
            prop_assert_eq!(next as usize, all.len());
            prop_assert_eq!(reader.cursor() as usize, all.len());
        }

        /// Text that is valid in each output, and not interleaved inside a character, never needs base64.
        #[test]
        fn valid_text_is_never_sent_as_base64(text in "\\PC{0,40}", step in 1_usize..5) {
            let mut reader = Reader::new(0, false);
            let mut out = Vec::new();
            for (n, piece) in text.as_bytes().chunks(step).enumerate() {
                reader.take(chunk(Output::Stdout, (n * step) as u64, piece), &mut out);
            }
            reader.release(&mut out);
            let mut whole = String::new();
            for piece in out {
                let Piece::Data { data, .. } = piece else { panic!("a gap") };
                prop_assert_eq!(&data.base64, &None);
                whole.push_str(&data.data);
            }
            prop_assert_eq!(whole, text);
        }
    }
}
