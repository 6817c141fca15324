//! The HTTP side: connections, framing, and what every request passes before and after its handler.

mod body;
pub(crate) mod broken;
mod connections;
pub(crate) mod late;
pub(crate) mod path;
pub(crate) mod pipeline;
mod request_id;
mod unparsed;

pub use connections::{Listeners, serve};
pub(crate) use pipeline::Pipeline;
