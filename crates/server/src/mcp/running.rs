//! Calls under way, so that one can be cancelled by a request of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use runtime_model::CredentialId;
use tokio_util::sync::CancellationToken;

/// A request among those of all clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) credential: CredentialId,
    pub(super) session: Vec<u8>,
    pub(super) request: String,
}

#[derive(Debug, Default)]
pub(super) struct Running(Mutex<HashMap<Name, CancellationToken>>);

/// In the table as long as it lives.
#[derive(Debug)]
pub(super) struct Entry {
    name: Name,
    cancel: CancellationToken,
    table: Arc<Running>,
}

impl Running {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<Name, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client that uses an id twice at once can cancel the later call only.
    pub(super) fn begin(self: &Arc<Self>, name: Name, cancel: CancellationToken) -> Entry {
        self.table().insert(name.clone(), cancel.clone());
        Entry { name, cancel, table: self.clone() }
    }

    pub(super) fn cancel(&self, name: &Name) {
        if let Some(cancel) = self.table().get(name) {
            cancel.cancel();
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Never looked up again, in case a later call of its name is not over.
        self.cancel.cancel();
        let mut table = self.table.table();
        if table.get(&self.name).is_some_and(CancellationToken::is_cancelled) {
            table.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(session: &str) -> Name {
        Name { credential: CredentialId::new_v4(), session: session.into(), request: "1".into() }
    }

    #[test]
    fn only_the_named_call_is_cancelled_and_nothing_stays() {
        let running = Arc::new(Running::default());
        let (mine, other) = (name("a"), name("a"));
        let (cancel, untouched) = (CancellationToken::new(), CancellationToken::new());
        let first = running.begin(mine.clone(), cancel.clone());
        let second = running.begin(other, untouched.clone());
        running.cancel(&mine);
        assert!(cancel.is_cancelled() && !untouched.is_cancelled());
        drop((first, second));
        assert!(running.table().is_empty());
    }

    #[test]
    fn a_later_call_of_the_same_name_outlives_the_earlier_one() {
        let running = Arc::new(Running::default());
        let mine = name("a");
        let later = CancellationToken::new();
        let first = running.begin(mine.clone(), CancellationToken::new());
        let second = running.begin(mine.clone(), later.clone());
        drop(first);
        running.cancel(&mine);
        assert!(later.is_cancelled());
        drop(second);
        assert!(running.table().is_empty());
    }
}
