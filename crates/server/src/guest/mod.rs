//! Routes into a sandbox: commands, processes, terminals, tunnels, files, uploads, archives, watches.
//!
//! A handler checks what was sent, takes the [`gateway`] into the sandbox, asks its agent once and converts the answer;
//! nothing of it is kept here. Output that goes on after the answer began is a [`stream`] over pieces that [`output`]
//! counts.
//!
//! A path `…/{id}:verb` is written `…/{id}/~verb` in `#[utoipa::path]`: the router cannot match a literal after a
//! parameter in one segment. The HTTP layer rewrites what comes in, the document what goes out.

mod archives;
mod command;
mod content;
mod convert;
mod exec;
mod files;
pub(crate) mod gateway;
mod output;
mod processes;
mod refusal;
mod sockets;
mod stream;
mod streamed;
mod terminal;
mod trace;
mod tunnel;
mod uploads;
pub(crate) mod visit;
mod watches;

#[cfg(test)]
mod broken_tests;
#[cfg(test)]
mod scripted;

pub(crate) use sockets::Attachments;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::AppState;

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(exec::exec))
        .routes(routes!(processes::spawn, processes::list))
        .routes(routes!(processes::get))
        .routes(routes!(processes::output))
        .routes(routes!(processes::write))
        .routes(routes!(processes::signal))
        .routes(routes!(processes::resize))
        .routes(routes!(trace::files))
        .routes(routes!(terminal::open))
        .routes(routes!(tunnel::open))
        .routes(routes!(content::read, content::write))
        .routes(routes!(files::list))
        .routes(routes!(files::stat))
        .routes(routes!(files::mkdir))
        .routes(routes!(files::remove))
        .routes(routes!(files::rename))
        .routes(routes!(files::chmod))
        .routes(routes!(archives::read, archives::write))
        .routes(routes!(archives::start))
        .routes(routes!(archives::put))
        .routes(routes!(archives::commit))
        .routes(routes!(archives::abort))
        .routes(routes!(uploads::start))
        .routes(routes!(uploads::put))
        .routes(routes!(uploads::commit))
        .routes(routes!(uploads::abort))
        .routes(routes!(watches::start, watches::list))
        .routes(routes!(watches::events))
        .routes(routes!(watches::stop))
}
