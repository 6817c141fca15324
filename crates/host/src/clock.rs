//! How fast this processor's time stamp counter runs.

use std::time::{Duration, Instant};

/// Long enough that what interrupts it counts for little, and tried three times.
const WINDOW: Duration = Duration::from_millis(50);
const ROUNDS: usize = 3;

/// The counter's frequency in kHz. An emulated guest that is told
/// it need not find out by itself, which on a busy host goes wrong.
#[must_use]
pub fn tsc_khz() -> u64 {
    let mut found: Vec<u64> = (0..ROUNDS).map(|_| measure()).collect();
    found.sort_unstable();
    let khz = found[ROUNDS / 2];
    (khz + 5) / 10 * 10
}

fn measure() -> u64 {
    let (began, first) = (Instant::now(), counter());
    std::thread::sleep(WINDOW);
    let (last, took) = (counter(), began.elapsed());
    let ticks = u128::from(last.wrapping_sub(first));
    let micros = took.as_nanos().max(1);
    u64::try_from(ticks * 1_000_000 / micros).unwrap_or(0)
}

fn counter() -> u64 {
    // SAFETY: reads a register that every x86-64 processor has; user space may.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_counter_runs_at_the_speed_of_a_processor() {
        let khz = super::tsc_khz();
        assert!((500_000..10_000_000).contains(&khz), "{khz}");
    }
}
