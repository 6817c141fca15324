//! The control plane: HTTP handlers, auth, operations with undo, reconcilers.
//!
//! A request passes [`http`] (framing, request id, the envelope), [`auth`] (who asks) and the router to a handler, which
//! reads its fields with [`fields`], and answers once through [`idempotency`]. Handlers of sandboxes commit what is
//! wanted to the store and nudge [`sandboxes`]' driver, which is the only one that talks to the node about machines;
//! [`reconcile`] nudges it after a start, on a timer and when the node reports an end.

mod account;
pub mod auth;
pub mod call;
mod clock;
pub mod config;
pub mod error;
pub mod fields;
mod guards;
pub mod guest;
pub mod http;
pub mod idempotency;
pub mod keys;
mod mcp;
pub mod reconcile;
mod routes;
pub mod sandboxes;
mod seen_keys;
pub mod sessions;
mod snapshots;
mod state;
#[cfg(test)]
mod test_rows;
mod unbuilt;

pub use auth::Caller;
pub use call::Call;
pub use config::{Config, Guards};
pub use error::{ApiError, Kind};
pub use http::serve;
pub use routes::openapi;
pub use state::AppState;
