//! The control plane behind a real socket, on a real store, with a node that lives in memory.

mod framing;
mod idempotency;
mod keys;
mod lifecycle;
mod names;
mod network;
mod node;
mod pause;
mod recovery;
mod sessions;
mod snapshots;
mod stack;
mod validation;
