//! The public HTTP contract: request and response types, the error body, a typed client.
//!
//! One file per thing of the product. To add an endpoint: its types here, its handler in the server with
//! `#[utoipa::path]`, a line in that file's router, and the committed document generated again.
//!
//! The types describe the contract and document it. The server reads requests field by field, so that it can name
//! everything that is wrong at once; the typed client and the command line use these types whole.

pub mod account;
#[cfg(feature = "client")]
pub mod client;
pub mod error;
pub mod exec;
pub mod file;
pub mod network;
pub mod preview;
pub mod process;
pub mod sandbox;
pub mod session;
pub mod snapshot;
mod time;
pub mod watch;

pub use time::Time;

/// What `X-Runtime-Client` of a raw client, and `/v1/me`, name as the version of the contract.
pub const API_VERSION: &str = "2026-10-04";
