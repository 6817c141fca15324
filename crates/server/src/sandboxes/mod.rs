//! Sandboxes: their rows, the one driver of each, and the routes.

mod live;

pub use live::{Live, Ready};
