//! Chance that can be played again: the seed is printed, and `RUNTIME_SEED` sets it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Splitmix64: small, and good enough to pick a moment.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// # Panics
    /// When the seed that was asked for is not a number.
    #[must_use]
    pub fn from_environment() -> Self {
        let seed = variable("RUNTIME_SEED").unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
            now.as_secs() ^ (u64::from(now.subsec_nanos()) << 20)
        });
        println!("RUNTIME_SEED={seed} plays this again");
        Self(seed)
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    /// One for another thread.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self(self.roll())
    }
}

/// How many rounds, where a longer run is asked for by a variable.
///
/// # Panics
/// When the variable is not a number.
#[must_use]
pub fn count(name: &str, usual: u64) -> u64 {
    variable(name).unwrap_or(usual)
}

fn variable(name: &str) -> Option<u64> {
    let text = crate::program::env(name)?.display().to_string();
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}
