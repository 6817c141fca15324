//! What a shim and its server say to each other: one JSON object a line, over the shim's socket.
//!
//! A connection starts with the shim telling how things stand; from then on it tells every change. A server from
//! another build may be at the other end: words are added, never changed, and an unknown one is passed over.

use serde::{Deserialize, Serialize};

use crate::driver::record::EndRecord;

/// A line longer than this ends the connection.
pub(crate) const LINE: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum Say {
    /// The first process runs.
    Running {
        /// Milliseconds that making and starting took.
        create_ms: u64,
        start_ms: u64,
        /// Everything in it stands still.
        #[serde(default)]
        frozen: bool,
    },
    Frozen,
    Thawed,
    /// What was asked for was not done.
    Failed {
        cause: String,
    },
    /// It is at its memory limit and stands still. Said again to whoever connects, until relieved.
    OutOfMemory,
    /// Nothing of it is left but its disk. The last word.
    Ended(EndRecord),
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Ask {
    End,
    /// The memory shortage is dealt with.
    Relieved,
    /// Answered by `frozen` or `failed`.
    Freeze,
    /// Answered by `thawed` or `failed`.
    Thaw,
    #[serde(other)]
    Unknown,
}

pub(crate) fn line(message: &impl Serialize) -> Vec<u8> {
    // These types always serialize; an empty line is passed over by the reader.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Takes whole lines off the front of `buffer`; those that do not parse are passed over.
pub(crate) fn take_lines<T: for<'a> Deserialize<'a>>(buffer: &mut Vec<u8>) -> Vec<T> {
    let Some(end) = buffer.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
    let whole: Vec<u8> = buffer.drain(..=end).collect();
    whole.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_newer_build_are_passed_over() {
        let mut buffer = line(&Ask::End);
        buffer.extend(b"{\"ask\":\"dance\"}\nnonsense\n{\"ask\":\"rel");
        assert_eq!(take_lines::<Ask>(&mut buffer), [Ask::End, Ask::Unknown]);
        buffer.extend(b"ieved\"}\n");
        assert_eq!(take_lines::<Ask>(&mut buffer), [Ask::Relieved]);
        assert!(buffer.is_empty());
    }
}
