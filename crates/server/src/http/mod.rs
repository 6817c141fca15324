//! The HTTP side: connections, framing, and what every request passes before and after its handler.

mod body;
mod connections;
pub(crate) mod late;
pub(crate) mod path;
pub(crate) mod pipeline;
mod request_id;

pub use connections::serve;
pub(crate) use pipeline::Pipeline;
