//! Previews: ports of a sandbox under web addresses of their own.
//!
//! [`manage`] is the API; [`visit`] serves the addresses, which [`address`] recognises before a request is looked at as one
//! of the API. Private ones are opened by a [`token`]. A change is in force when it is answered: what was open under the
//! state of before is cut by then ([`Visits`]).

mod address;
mod forward;
mod manage;
mod pages;
mod token;
mod visit;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use runtime_model::SandboxId;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use address::asked;
pub(crate) use visit::visit;

use crate::AppState;

pub(crate) fn router() -> OpenApiRouter<AppState> {
    manage::router()
}

/// What is open at each preview.
#[derive(Default)]
pub(crate) struct Visits {
    open: Mutex<HashMap<(SandboxId, u16), CancellationToken>>,
    /// One change at a time: the key of a preview is read and written back.
    changing: tokio::sync::Mutex<()>,
}

impl Visits {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<(SandboxId, u16), CancellationToken>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Taken before the row is read: a change that comes in between is met by it.
    fn enter(&self, sandbox: SandboxId, port: u16) -> CancellationToken {
        self.table().entry((sandbox, port)).or_default().clone()
    }

    fn cut(&self, sandbox: SandboxId, port: u16) {
        if let Some(open) = self.table().remove(&(sandbox, port)) {
            open.cancel();
        }
    }

    /// Of a sandbox that is gone nothing is kept.
    fn forget(&self, sandbox: SandboxId, port: u16) {
        self.table().remove(&(sandbox, port));
    }
}
