//! Which idempotency keys may be in the store: a request with a fresh key, which most are, then needs no read.
//!
//! Two Bloom filters of a fixed size, one for this day and one for the last: a key stays for a day at least, as long as
//! its record. Never a wrong "no": this process is the only one that writes records, and notes each key before its
//! record exists. Until the records of former processes are read, every key may be there.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// Bits of one filter: 4 MiB. With a million keys a day one fresh key in several thousand is looked up in vain.
const BITS: usize = 1 << 25;
const WORDS: usize = BITS / 64;
const PROBES: u64 = 4;
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

pub(crate) struct SeenKeys {
    hashers: [RandomState; 2],
    days: Mutex<Days>,
}

struct Days {
    today: Vec<u64>,
    yesterday: Vec<u64>,
    began_ms: i64,
    complete: bool,
}

impl SeenKeys {
    pub(crate) fn new(now_ms: i64) -> Self {
        let days = Days { today: vec![0; WORDS], yesterday: vec![0; WORDS], began_ms: now_ms, complete: false };
        Self { hashers: [RandomState::new(), RandomState::new()], days: Mutex::new(days) }
    }

    fn days(&self) -> std::sync::MutexGuard<'_, Days> {
        self.days.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a key; whether it may have been noted before.
    pub(crate) fn note(&self, name: &str, now_ms: i64) -> bool {
        let (first, step) = (self.hashers[0].hash_one(name), self.hashers[1].hash_one(name) | 1);
        let mut days = self.days();
        if now_ms - days.began_ms >= DAY_MS {
            let mut older = std::mem::take(&mut days.yesterday);
            older.fill(0);
            days.yesterday = std::mem::replace(&mut days.today, older);
            days.began_ms = now_ms;
        }
        let (mut today, mut yesterday) = (true, true);
        for probe in 0..PROBES {
            // The remainder fits: there are fewer bits than a usize can count.
            let bit = (first.wrapping_add(probe.wrapping_mul(step)) % BITS as u64) as usize;
            let (word, mask) = (bit / 64, 1_u64 << (bit % 64));
            today &= days.today[word] & mask != 0;
            yesterday &= days.yesterday[word] & mask != 0;
            days.today[word] |= mask;
        }
        today || yesterday || !days.complete
    }

    /// All records of former processes were noted.
    pub(crate) fn complete(&self) {
        self.days().complete = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_for_a_day_at_least_and_two_at_most() {
        let keys = SeenKeys::new(0);
        assert!(keys.note("early", 0), "nothing is certain before the records are read");
        keys.complete();
        assert!(!keys.note("a", 1));
        assert!(keys.note("a", 2));
        assert!(!keys.note("b", DAY_MS));
        assert!(keys.note("a", DAY_MS + 1), "yesterday's");
        assert!(!keys.note("c", 2 * DAY_MS + 2));
        assert!(keys.note("b", 2 * DAY_MS + 3));
        assert!(!keys.note("early", 3 * DAY_MS + 4));
    }

    #[test]
    fn fresh_keys_are_hardly_ever_taken_for_known_ones() {
        let keys = SeenKeys::new(0);
        keys.complete();
        let wrong = (0..100_000).filter(|n| keys.note(&n.to_string(), 0)).count();
        assert!(wrong < 10, "{wrong}");
    }
}
