//! Routes into a sandbox: commands, processes, files.
//!
//! A path `…/{id}:verb` is written `…/{id}/~verb` in `#[utoipa::path]`: the router cannot match a literal after a
//! parameter in one segment. The HTTP layer rewrites what comes in, the document what goes out.

use utoipa_axum::router::OpenApiRouter;

use crate::AppState;

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
}
