//! Previews: ports of a sandbox under web addresses of their own.
//!
//! [`manage`] is the API; [`visit`] serves the addresses, which [`address`] recognises before a request is looked at as one
//! of the API. Private ones are opened by a [`token`]. A change is in force when it is answered: what was open under the
//! state of before is cut by then ([`Visits`]). Other routes of the API know nothing of previews, and a preview's address leads
//! to nothing but its port: what a page does there, it does to its own sandbox.

mod address;
mod forward;
mod manage;
mod pages;
mod token;
mod visit;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use runtime_model::SandboxId;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use address::asked;
pub(crate) use visit::{nowhere, visit};

use crate::AppState;

pub(crate) fn router() -> OpenApiRouter<AppState> {
    manage::router()
}

type Open = Mutex<HashMap<(SandboxId, u16), Weak<Inside>>>;

/// What is open at each preview; one that nobody visits has no entry.
#[derive(Default)]
pub(crate) struct Visits {
    open: Arc<Open>,
    /// One change at a time: the key of a preview is read and written back.
    changing: tokio::sync::Mutex<()>,
}

/// Held by each visitor of one preview under one state of it.
struct Inside {
    at: (SandboxId, u16),
    /// That state has ended.
    changed: CancellationToken,
    open: Arc<Open>,
}

fn lock(open: &Open) -> MutexGuard<'_, HashMap<(SandboxId, u16), Weak<Inside>>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Visits {
    /// Taken before the row is read: a change that comes in between is met by it.
    fn enter(&self, sandbox: SandboxId, port: u16) -> Arc<Inside> {
        let at = (sandbox, port);
        let mut open = lock(&self.open);
        if let Some(inside) = open.get(&at).and_then(Weak::upgrade) {
            return inside;
        }
        let inside = Arc::new(Inside { at, changed: CancellationToken::new(), open: self.open.clone() });
        open.insert(at, Arc::downgrade(&inside));
        inside
    }

    fn cut(&self, sandbox: SandboxId, port: u16) {
        let inside = lock(&self.open).remove(&(sandbox, port));
        // Not under the lock: the last holder takes it.
        if let Some(inside) = inside.and_then(|inside| inside.upgrade()) {
            inside.changed.cancel();
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        // Another may have taken its place since.
        if open.get(&self.at).is_some_and(|inside| std::ptr::eq(inside.as_ptr(), self)) {
            open.remove(&self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_inside_is_cut_and_nothing_is_kept_of_who_left() {
        let visits = Visits::default();
        let id = SandboxId::new_v4();
        let (first, second) = (visits.enter(id, 80), visits.enter(id, 80));
        let aside = visits.enter(id, 81);
        drop(first);
        visits.cut(id, 80);
        assert!(second.changed.is_cancelled() && !aside.changed.is_cancelled());
        let after = visits.enter(id, 80);
        assert!(!after.changed.is_cancelled(), "a new state, a new holder");
        drop(second);
        visits.cut(id, 80);
        assert!(after.changed.is_cancelled(), "who leaves late takes nobody along");
        drop((after, aside));
        visits.cut(id, 82);
        assert!(lock(&visits.open).is_empty());
    }
}
