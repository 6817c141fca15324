//! The policy protocol: what an engine says to the egress program over a socket, with the frames and streams of
//! [`crate::channel`]. Both are of one build: there is no version to agree on.
//!
//! Each stream that the engine opens is one [`PolicyAsk`]. A flow goes on with the bytes of its connection; the others are
//! answered by [`PolicyTell`]s and ended.

use std::net::IpAddr;

use bytes::Bytes;
use prost::{Message, Oneof};

use crate::egress::{Decision, Verdict};
use crate::guest::Flow;

/// The longest first message: four lists of 256 entries, as JSON.
pub const MAX_ASK: usize = 512 * 1024;

#[derive(Clone, PartialEq, Message)]
pub struct PolicyAsk {
    /// A sandbox's id.
    #[prost(string, tag = "1")]
    pub sandbox: String,
    #[prost(oneof = "Policy", tags = "2, 3, 4, 5, 6")]
    pub policy: Option<Policy>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Policy {
    /// Answered by nothing but the end, once it holds.
    #[prost(message, tag = "2")]
    Arm(Arm),
    #[prost(bool, tag = "3")]
    Disarm(bool),
    #[prost(bool, tag = "4")]
    Forget(bool),
    #[prost(message, tag = "5")]
    Flow(Flow),
    /// Answered by one [`PolicyTell`] for each, and one without a decision at the end.
    #[prost(message, tag = "6")]
    Decisions(Page),
}

#[derive(Clone, PartialEq, Message)]
pub struct Arm {
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// The rules as JSON.
    #[prost(string, tag = "2")]
    pub network: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Page {
    #[prost(uint64, optional, tag = "1")]
    pub before: Option<u64>,
    #[prost(uint32, tag = "2")]
    pub limit: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct PolicyTell {
    #[prost(message, optional, tag = "1")]
    pub decision: Option<Told>,
    #[prost(bool, tag = "2")]
    pub more: bool,
    #[prost(uint64, tag = "3")]
    pub total: u64,
}

/// A [`Decision`] on the wire.
#[derive(Clone, PartialEq, Message)]
pub struct Told {
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(uint64, tag = "2")]
    pub at: u64,
    #[prost(bool, tag = "3")]
    pub allowed: bool,
    #[prost(string, tag = "4")]
    pub reason: String,
    #[prost(string, optional, tag = "5")]
    pub rule: Option<String>,
    #[prost(string, tag = "6")]
    pub method: String,
    #[prost(string, tag = "7")]
    pub host: String,
    #[prost(uint32, tag = "8")]
    pub port: u32,
    #[prost(string, optional, tag = "9")]
    pub address: Option<String>,
    #[prost(uint64, tag = "10")]
    pub version: u64,
    #[prost(uint64, tag = "11")]
    pub sent: u64,
    #[prost(uint64, tag = "12")]
    pub received: u64,
    #[prost(uint64, optional, tag = "13")]
    pub ended: Option<u64>,
    #[prost(int32, tag = "14")]
    pub pid: i32,
    #[prost(string, tag = "15")]
    pub program: String,
    #[prost(string, tag = "16")]
    pub process_id: String,
}

impl From<Decision> for Told {
    fn from(decision: Decision) -> Self {
        Self {
            number: decision.number,
            at: decision.at,
            allowed: decision.verdict == Verdict::Allowed,
            reason: decision.reason,
            rule: decision.rule,
            method: decision.method,
            host: decision.host,
            port: decision.port.into(),
            address: decision.address.map(|ip| ip.to_string()),
            version: decision.version,
            sent: decision.sent,
            received: decision.received,
            ended: decision.ended,
            pid: decision.pid,
            program: decision.program,
            process_id: decision.process_id,
        }
    }
}

impl From<Told> for Decision {
    fn from(told: Told) -> Self {
        Self {
            number: told.number,
            at: told.at,
            verdict: if told.allowed { Verdict::Allowed } else { Verdict::Refused },
            reason: told.reason,
            rule: told.rule,
            method: told.method,
            host: told.host,
            port: u16::try_from(told.port).unwrap_or_default(),
            address: told.address.and_then(|ip| ip.parse::<IpAddr>().ok()),
            version: told.version,
            sent: told.sent,
            received: told.received,
            ended: told.ended,
            pid: told.pid,
            program: told.program,
            process_id: told.process_id,
        }
    }
}

/// Decodes what the other end of the socket said.
pub fn decode<T: Message + Default>(bytes: Bytes) -> Result<T, prost::DecodeError> {
    T::decode(bytes)
}
