//! Routes into a sandbox: commands, processes, files.
//!
//! A handler checks what was sent, takes the [`gateway`] into the sandbox, asks its agent once and converts the answer;
//! nothing of it is kept here. Output that goes on after the answer began is a [`stream`] over pieces that [`output`]
//! counts.
//!
//! A path `…/{id}:verb` is written `…/{id}/~verb` in `#[utoipa::path]`: the router cannot match a literal after a
//! parameter in one segment. The HTTP layer rewrites what comes in, the document what goes out.

mod command;
mod content;
mod convert;
mod exec;
mod files;
mod gateway;
mod output;
mod processes;
mod stream;

#[cfg(test)]
mod broken_tests;
#[cfg(test)]
mod scripted;

use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post, put};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::{ApiError, Kind};
use crate::{AppState, Call};

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(exec::exec))
        .routes(routes!(processes::spawn, processes::list))
        .routes(routes!(processes::get))
        .routes(routes!(processes::output))
        .routes(routes!(processes::write))
        .routes(routes!(processes::signal))
        .routes(routes!(content::read, content::write))
        .routes(routes!(files::list))
        .routes(routes!(files::stat))
        .routes(routes!(files::mkdir))
        .routes(routes!(files::remove))
        .routes(routes!(files::rename))
        .routes(routes!(files::chmod))
        .merge(not_built())
}

/// Routes of the contract that this build answers with 501.
fn not_built() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .route("/v1/sandboxes/{id}/processes/{process}/~resize", post(processes::resize))
        .route("/v1/sandboxes/{id}/processes/{process}/files", get(no_tracing))
        .route("/v1/sandboxes/{id}/terminal", get(no_terminals))
        .route("/v1/sandboxes/{id}/files/~link", post(no_links))
        .route("/v1/sandboxes/{id}/files/~revoke-links", post(no_links))
        .route("/v1/sandboxes/{id}/uploads", post(no_uploads))
        .route("/v1/sandboxes/{id}/uploads/{upload}", put(no_uploads))
        .route("/v1/sandboxes/{id}/uploads/{upload}/{verb}", post(no_uploads))
        .route("/v1/sandboxes/{id}/files/archive", get(no_archives).put(no_archives))
        .route("/v1/sandboxes/{id}/files/archive/{*rest}", any(no_archives))
        .route("/v1/sandboxes/{id}/files/watches", any(no_watches))
        .route("/v1/sandboxes/{id}/files/watches/{*rest}", any(no_watches))
}

/// The call is read whole before it is refused, so that the client sees the refusal and not a reset.
async fn no_links(_call: Call) -> Response {
    ApiError::new(Kind::FileLinksUnavailable, "Links to files are not available on this server.")
        .hint("Read and write files with files/content.")
        .into_response()
}

async fn no_uploads(_call: Call) -> Response {
    unavailable("Uploads in parts are not available on this server.", "Write files of up to 1 MiB with files/content.")
}

async fn no_archives(_call: Call) -> Response {
    unavailable("Archives are not available on this server.", "Read and write single files with files/content.")
}

async fn no_watches(_call: Call) -> Response {
    unavailable("Watching files is not available on this server.", "Read files/list or files/stat again.")
}

async fn no_tracing(_call: Call) -> Response {
    unavailable(
        "Tracing the files of a process is not available on this server.",
        "List the files it should have made.",
    )
}

async fn no_terminals(_call: Call) -> Response {
    terminals_unavailable().into_response()
}

fn terminals_unavailable() -> ApiError {
    ApiError::new(Kind::Unavailable, "Terminals are not available on this server.")
        .hint("Start the process without pty; its input is fed with stdinMode \"pipe\" and :write.")
}

fn unavailable(message: &str, hint: &str) -> Response {
    ApiError::new(Kind::Unavailable, message).hint(hint).into_response()
}
