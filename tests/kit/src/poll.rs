//! Waiting for a value. The limit only catches a hang; a test never waits for a time.

use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(20);
/// No limit is shorter: a machine that has other things to do is no hang.
const LEAST: Duration = Duration::from_secs(120);
/// What one look counts for at most. In a longer gap the machine stood still, and with it what is waited for.
const MOST_OF_A_LOOK: Duration = Duration::from_secs(1);

/// Looks until there is a value, and gives it.
///
/// # Panics
/// After `limit`, naming what was waited for.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let limit = limit.max(LEAST);
    let mut waited = Duration::ZERO;
    loop {
        let began = Instant::now();
        if let Some(value) = look() {
            return value;
        }
        assert!(waited < limit, "waited {limit:?} for: {what}");
        std::thread::sleep(STEP);
        waited += began.elapsed().min(MOST_OF_A_LOOK);
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
