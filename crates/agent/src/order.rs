//! What the agent tells a runner to start, and the runner's short answers. Both are the same binary: this is no contract.

use std::ffi::CString;
use std::io;

use prost::Message;
use runtime_host::spawn::Step;

/// The longest order, checked before it is read.
pub(crate) const MAX_ORDER: usize = 8 * 1024 * 1024;
pub(crate) const REPLY: usize = 12;

/// Strings are bytes without NUL. The descriptors that go along become the program's 0, 1, 2.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Order {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) paths: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) argv: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub(crate) envp: Vec<Vec<u8>>,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) cwd: Vec<u8>,
    #[prost(uint32, tag = "5")]
    pub(crate) uid: u32,
    #[prost(uint32, tag = "6")]
    pub(crate) gid: u32,
    #[prost(uint32, repeated, tag = "7")]
    pub(crate) groups: Vec<u32>,
    /// RLIMIT_NPROC; 0 = not set.
    #[prost(uint64, tag = "8")]
    pub(crate) max_processes: u64,
    /// Whatever is left below the runner when the program ends is killed.
    #[prost(bool, tag = "9")]
    pub(crate) kill_leftovers: bool,
    /// Standard input is a terminal that becomes the session's.
    #[prost(bool, tag = "10")]
    pub(crate) terminal: bool,
    /// A fourth descriptor comes along: the files that the program opens are noted there.
    #[prost(bool, tag = "11")]
    pub(crate) trace: bool,
}

impl Order {
    /// The length, then the order.
    pub(crate) fn to_wire(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + self.encoded_len());
        out.extend_from_slice(&(self.encoded_len() as u32).to_le_bytes());
        out.extend_from_slice(&self.encode_to_vec());
        out
    }
}

pub(crate) fn strings(list: &[Vec<u8>]) -> io::Result<Vec<CString>> {
    list.iter().map(|item| CString::new(item.clone()).map_err(|_| io::ErrorKind::InvalidInput.into())).collect()
}

/// Runner to agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// From the child itself, just before it becomes the program.
    Starting { pid: i32 },
    /// It is the program now.
    Started,
    /// Nothing runs; the runner takes the next order.
    Failed { step: Step, errno: i32 },
    /// How the leader ended, said before the kernel forgets it: a runner killed now takes no secret along.
    Ending { end: i32 },
    /// The leader ended: exit code, or signal made negative. `empty`: and nothing is left below.
    Ended { end: i32, empty: bool },
    /// What the leader had left is gone as well; the runner takes the next order.
    Empty,
}

impl Reply {
    pub(crate) fn to_wire(self) -> [u8; REPLY] {
        let (kind, a, b) = match self {
            Self::Starting { pid } => (1, pid, 0),
            Self::Started => (5, 0, 0),
            Self::Failed { step, errno } => (2, step as i32, errno),
            Self::Ended { end, empty } => (3, end, i32::from(empty)),
            Self::Empty => (4, 0, 0),
            Self::Ending { end } => (6, end, 0),
        };
        let mut out = [0; REPLY];
        for (slot, value) in out.chunks_exact_mut(4).zip([kind, a, b]) {
            slot.copy_from_slice(&i32::to_le_bytes(value));
        }
        out
    }

    pub(crate) fn from_wire(wire: &[u8; REPLY]) -> Option<Self> {
        let mut values = [0; 3];
        for (value, bytes) in values.iter_mut().zip(wire.chunks_exact(4)) {
            *value = i32::from_le_bytes(bytes.try_into().ok()?);
        }
        let [kind, a, b] = values;
        Some(match kind {
            1 => Self::Starting { pid: a },
            5 => Self::Started,
            2 => Self::Failed { step: Step::from_number(a)?, errno: b },
            3 => Self::Ended { end: a, empty: b != 0 },
            4 => Self::Empty,
            6 => Self::Ending { end: a },
            _ => return None,
        })
    }
}
