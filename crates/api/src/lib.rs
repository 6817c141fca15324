//! The public HTTP contract: request and response types, the error body, a typed client.

#[cfg(feature = "client")]
pub mod client;
