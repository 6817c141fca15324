//! Sandboxes: their rows, the one driver of each, and the routes.
//!
//! The store's row is the truth. A request changes it through [`change`] (a pure step on the newest row, guarded by its
//! generation) and nudges the [`driver`], the only one that asks the node for machines: it looks at the row and does what
//! the row says is under way, until nothing is. A crash at any line leaves a row that the next server's driver goes on
//! with.

mod change;
mod copy;
mod create;
mod driver;
mod env;
pub(crate) mod fields;
mod find;
mod lifecycle;
mod live;
mod network;
mod pause;
mod record;
mod registry;
mod resize;
mod settings;

pub(crate) use change::{Step, apply, name_taken};
pub(crate) use create::other_engine;
pub use env::check_env;
pub(crate) use env::env_map;
pub(crate) use find::json_response;
pub use live::{Live, Ready};
pub(crate) use registry::Sandboxes;

use utoipa_axum::router::OpenApiRouter;

use crate::AppState;

pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(create::router())
        .merge(find::router())
        .merge(lifecycle::router())
        .merge(network::router())
        .merge(pause::router())
        .merge(resize::router())
        .merge(settings::router())
}
