//! The private wire between our own programs: what the engine says to the agent in a sandbox (`guest`, carried by
//! `frame` and `channel`), what the server says to an engine (`node`), and what an engine asks of the way out (`egress`, carried by `policy`).
//!
//! Wire formats grow and never change meaning: messages are protobuf, fields are only ever added, and an agent from an
//! old snapshot must still be served. `tests/wire_surface.rs` compares the surface with a committed file.
//! Everything from a guest is untrusted: every length is checked before memory is set aside.

pub mod channel;
pub mod egress;
pub mod frame;
pub mod guest;
pub mod handshake;
pub mod node;
pub mod policy;

/// The newest guest protocol this build speaks. Raised when a message gains a meaning that an old peer must know of.
pub const PROTOCOL: u32 = 1;
/// The oldest guest protocol this build still serves.
pub const PROTOCOL_MIN: u32 = 1;
