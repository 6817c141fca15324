//! The words of the product: ids, names, limits, sandbox states and their transitions, network rules. Pure: no I/O, no async.

mod ids;
pub mod network;
mod shape;
mod state;

pub use ids::{CredentialId, OrgId, PrincipalId, SandboxId, SessionId, SnapshotId};
pub use shape::{Shape, ShapeField, limits};
pub use state::{Event, Reason, Refusal, State, Step, transition};
