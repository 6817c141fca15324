//! One frame of the guest channel: a 16-byte header, at most [`MAX_PAYLOAD`] bytes, a 4-byte trailer.
//!
//! ```text
//!   0      4     5      6         8       12        16              16+len
//!   | len  |kind |flags |reserved | epoch | stream  | payload ...   | trailer |
//! ```
//!
//! All integers are little-endian. A header of zeros is padding: it tells the reader that a new host is about to say
//! hello ([`crate::handshake`]). The trailer is never zero, so a frame that a dying writer left unfinished and padding
//! completed is seen and dropped instead of being taken for a message.

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub const HEADER: usize = 16;
pub const TRAILER: usize = 4;
/// A frame with its header and trailer stays within 64 KiB.
pub const MAX_PAYLOAD: usize = 64 * 1024 - HEADER - TRAILER;
/// A shorter payload is copied: it would keep the whole buffer it was read into alive.
const COPIED: usize = 16 * 1024;
const TRAILER_MARK: u32 = 0x9e37_79b9;

/// Set on every frame of a message but the last.
pub const FLAG_MORE: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A new stream; the payload is its first message.
    Open = 1,
    /// A message on an open stream.
    Message = 2,
    /// The sender sends no more on this stream.
    End = 3,
    /// The sender neither sends nor reads any more on this stream.
    Reset = 4,
    /// The receiver consumed bytes: payload is a u32 count that the sender may send again.
    Credit = 5,
    Ping = 6,
    Pong = 7,
    /// Stop writing and acknowledge: the machine is about to be saved.
    Quiesce = 8,
    Quiesced = 9,
}

impl Kind {
    fn parse(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Open,
            2 => Self::Message,
            3 => Self::End,
            4 => Self::Reset,
            5 => Self::Credit,
            6 => Self::Ping,
            7 => Self::Pong,
            8 => Self::Quiesce,
            9 => Self::Quiesced,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub flags: u8,
    pub epoch: u32,
    pub stream: u32,
    pub payload: Bytes,
}

impl Frame {
    /// Appends the frame to `out`. The payload must be within [`MAX_PAYLOAD`]; writers cut longer messages first.
    pub fn encode(&self, out: &mut BytesMut) {
        debug_assert!(self.payload.len() <= MAX_PAYLOAD);
        out.reserve(HEADER + self.payload.len() + TRAILER);
        out.put_u32_le(self.payload.len() as u32);
        out.put_u8(self.kind as u8);
        out.put_u8(self.flags);
        out.put_u16_le(0);
        out.put_u32_le(self.epoch);
        out.put_u32_le(self.stream);
        out.put_slice(&self.payload);
        out.put_u32_le(TRAILER_MARK);
    }
}

/// What the head of a receive buffer holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded {
    /// Not a whole frame yet.
    Partial,
    Frame(Frame),
    /// Padding: from here on only a hello counts. Nothing is consumed.
    Padding,
    /// Not a frame: the stream lost its place (or the peer lies). Only a new hello can mend it.
    Garbled(&'static str),
}

/// Takes one frame off the front of `buf`.
pub fn decode(buf: &mut BytesMut) -> Decoded {
    if buf.len() < HEADER {
        return Decoded::Partial;
    }
    let head: [u8; HEADER] = match buf[..HEADER].try_into() {
        Ok(head) => head,
        Err(_) => return Decoded::Partial,
    };
    if head == [0; HEADER] {
        return Decoded::Padding;
    }
    let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    if len > MAX_PAYLOAD {
        return Decoded::Garbled("a frame is longer than the limit");
    }
    let Some(kind) = Kind::parse(head[4]) else {
        return Decoded::Garbled("a frame of an unknown kind");
    };
    if buf.len() < HEADER + len + TRAILER {
        return Decoded::Partial;
    }
    buf.advance(HEADER);
    let payload = if len < COPIED {
        let copy = Bytes::copy_from_slice(&buf[..len]);
        buf.advance(len);
        copy
    } else {
        buf.split_to(len).freeze()
    };
    if buf.get_u32_le() != TRAILER_MARK {
        return Decoded::Garbled("a frame was left unfinished");
    }
    Decoded::Frame(Frame {
        kind,
        flags: head[5],
        epoch: u32::from_le_bytes([head[8], head[9], head[10], head[11]]),
        stream: u32::from_le_bytes([head[12], head[13], head[14], head[15]]),
        payload,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payload: &'static [u8]) -> Frame {
        Frame { kind: Kind::Message, flags: 0, epoch: 7, stream: 3, payload: Bytes::from_static(payload) }
    }

    #[test]
    fn a_frame_comes_back_whole_however_it_is_cut() {
        let mut wire = BytesMut::new();
        frame(b"hello").encode(&mut wire);
        for cut in 0..wire.len() {
            let mut part = BytesMut::from(&wire[..cut]);
            assert_eq!(decode(&mut part), Decoded::Partial, "cut at {cut}");
        }
        assert_eq!(decode(&mut wire), Decoded::Frame(frame(b"hello")));
        assert!(wire.is_empty());
    }

    #[test]
    fn a_short_message_does_not_keep_the_buffer() {
        let mut wire = BytesMut::with_capacity(64 * 1024);
        let buffer = wire.as_ptr() as usize;
        frame(b"hello").encode(&mut wire);
        let Decoded::Frame(frame) = decode(&mut wire) else { panic!("not a frame") };
        let at = frame.payload.as_ptr() as usize;
        assert!(!(buffer..buffer + 64 * 1024).contains(&at));
    }

    #[test]
    fn a_frame_that_padding_completed_is_not_a_message() {
        let mut wire = BytesMut::new();
        frame(b"write these bytes").encode(&mut wire);
        for cut in 1..wire.len() {
            let mut torn = BytesMut::from(&wire[..cut]);
            torn.resize(cut + HEADER + MAX_PAYLOAD + TRAILER + HEADER, 0);
            assert!(!matches!(decode(&mut torn), Decoded::Frame(_)), "cut at {cut}");
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_it_is_believed() {
        let mut wire = BytesMut::from(&[0xff, 0xff, 0xff, 0x7f, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]);
        assert!(matches!(decode(&mut wire), Decoded::Garbled(_)));
    }
}
