//! The control plane: HTTP handlers, auth, operations with undo, reconcilers.
//!
//! A request passes [`http`] (framing, request id, the envelope), [`auth`] (who asks) and the router to a handler, which
//! reads its fields with [`fields`], and answers once through [`idempotency`]. Handlers of sandboxes commit what is
//! wanted to the store and nudge [`sandboxes`]' driver, which is the only one that talks to the node about machines;
//! [`reconcile`] nudges it after a start, on a timer and when the node reports an end.

pub mod auth;
pub mod call;
pub mod config;
pub mod error;
pub mod fields;
pub mod guest;
pub mod idempotency;
pub mod sandboxes;
mod state;

pub use auth::Caller;
pub use call::Call;
pub use config::Config;
pub use error::{ApiError, Kind};
pub use state::AppState;
