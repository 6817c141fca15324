//! Waiting for a value. The limit only catches a hang; a test never waits for a time.

use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(20);

/// Looks until there is a value, and gives it.
///
/// # Panics
/// After `limit`, naming what was waited for.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(Instant::now() < end, "waited {limit:?} for: {what}");
        std::thread::sleep(STEP);
    }
}

/// Looks until it is true.
///
/// # Panics
/// After `limit`, naming what was waited for.
#[track_caller]
pub fn eventually(what: &str, limit: Duration, mut look: impl FnMut() -> bool) {
    until(what, limit, || look().then_some(()));
}
