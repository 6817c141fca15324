//! When a failed attempt is made again, and after how long. Pure: time and chance come from outside.
//!
//! Three reasons to try again, in this order: there was no *room* (only for calls that asked to wait for it), *nothing
//! ran* (until the deadline), or the failure is of a kind that usually passes (a few times). Whatever the reason, a wait
//! the server names above a minute is the caller's to decide, and is not slept here.

use std::time::Duration;

use super::ClientError;

/// Refusals that end when somebody else's sandbox does.
pub const ROOM_CODES: [&str; 8] = [
    "no_credit_running_limit",
    "no_credit_total_limit",
    "no_credit_domain_limit",
    "no_credit_capacity_full",
    "quota_exceeded",
    "account_share_full",
    "no_capacity",
    "volume_releasing",
];

const NOTHING_RAN_CODES: [&str; 3] = ["guest_busy", "busy", "rate_limited"];
const MAX_RETRIES: u32 = 4;
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
const LONGEST_NAMED_WAIT: Duration = Duration::from_secs(60);

/// What to do about a failure.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    Again(Duration),
    /// As `Again`, because there was no room: the caller is told.
    WaitForRoom(Duration),
    GiveUp,
}

/// The memory of one call.
#[derive(Debug)]
pub(crate) struct Retry {
    deadline: Duration,
    /// Zero: room is not waited for.
    room: Duration,
    room_slept: Duration,
    room_tries: u32,
    nothing_ran: u32,
    failures: u32,
    connect_failures: u32,
}

impl Retry {
    pub(crate) fn new(deadline: Duration, room: Duration) -> Self {
        Self {
            deadline,
            room,
            room_slept: Duration::ZERO,
            room_tries: 0,
            nothing_ran: 0,
            failures: 0,
            connect_failures: 0,
        }
    }

    /// Time the call may take in all; waiting for room is added to it.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline + self.room_slept
    }

    /// `elapsed` since the call began; `chance` in `0.0..1.0`.
    pub(crate) fn decide(&mut self, error: &ClientError, elapsed: Duration, chance: f64) -> Verdict {
        let named = error.retry_after_ms.map(Duration::from_millis);
        if named.is_some_and(|wait| wait > LONGEST_NAMED_WAIT) {
            return Verdict::GiveUp;
        }
        if error.never_opened {
            self.connect_failures += 1;
            if self.connect_failures == 1 {
                return Verdict::Again(Duration::ZERO);
            }
        }
        if self.waits_for_room(error) {
            return self.room_verdict(named, chance);
        }
        let delay = if nothing_ran(error) {
            let base = named.unwrap_or(Duration::from_millis(250));
            let doubled = base.saturating_mul(1 << self.nothing_ran.min(3));
            self.nothing_ran += 1;
            spread(doubled, 0.1, chance).min(LONGEST_SLEEP)
        } else if error.passes() && self.failures < MAX_RETRIES {
            let usual = Duration::from_millis(250).saturating_mul(1 << self.failures).min(Duration::from_secs(8));
            self.failures += 1;
            named.map_or_else(|| spread(usual, 0.5, chance), |wait| wait.min(LONGEST_SLEEP))
        } else {
            return Verdict::GiveUp;
        };
        if elapsed + delay >= self.deadline() { Verdict::GiveUp } else { Verdict::Again(delay) }
    }

    fn waits_for_room(&self, error: &ClientError) -> bool {
        !self.room.is_zero()
            && ROOM_CODES.contains(&error.code.as_str())
            && error.server_retryable != Some(false)
            && !error.about_count()
    }

    fn room_verdict(&mut self, named: Option<Duration>, chance: f64) -> Verdict {
        let left = self.room.saturating_sub(self.room_slept);
        if left.is_zero() {
            return Verdict::GiveUp;
        }
        let usual = Duration::from_millis(500).saturating_mul(1 << self.room_tries.min(4));
        self.room_tries += 1;
        let delay = named.unwrap_or_else(|| spread(usual, 0.25, chance)).min(left);
        // A server that names no time at all must not be asked in a tight loop.
        let delay = delay.max(Duration::from_millis(50)).min(left);
        self.room_slept += delay;
        Verdict::WaitForRoom(delay)
    }
}

/// The server said that it did not begin. Late, only a busy guest still means that.
fn nothing_ran(error: &ClientError) -> bool {
    NOTHING_RAN_CODES.contains(&error.code.as_str())
        && matches!(error.status, 429 | 503)
        && error.server_retryable != Some(false)
        && (!error.late || error.code == "guest_busy")
}

/// `delay` times something between `1 - share` and `1 + share`, so that many clients do not come back together.
fn spread(delay: Duration, share: f64, chance: f64) -> Duration {
    delay.mul_f64(1.0 - share + 2.0 * share * chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MIDDLE: f64 = 0.5;

    fn failure(status: u16, body: serde_json::Value) -> ClientError {
        ClientError::from_body(status, &body)
    }

    fn waits(retry: &mut Retry, error: &ClientError) -> Vec<u64> {
        let mut elapsed = Duration::ZERO;
        let mut waits = Vec::new();
        while let Verdict::Again(delay) | Verdict::WaitForRoom(delay) = retry.decide(error, elapsed, MIDDLE) {
            elapsed += delay;
            waits.push(delay.as_millis() as u64);
            assert!(waits.len() < 10_000, "never gives up");
        }
        waits
    }

    fn usual() -> Retry {
        Retry::new(Duration::from_secs(300), Duration::ZERO)
    }

    #[test]
    fn passing_failures_are_tried_four_times() {
        let gateway = failure(502, json!({"code": "guest_failed"}));
        assert_eq!(waits(&mut usual(), &gateway), [250, 500, 1000, 2000]);
        let mut chance = usual();
        assert_eq!(chance.decide(&gateway, Duration::ZERO, 0.0), Verdict::Again(Duration::from_millis(125)));
        assert_eq!(chance.decide(&gateway, Duration::ZERO, 1.0), Verdict::Again(Duration::from_millis(750)));
    }

    #[test]
    fn the_servers_wait_is_kept_up_to_a_minute() {
        let wait = |ms| failure(503, json!({"code": "host_unavailable", "retryAfterMs": ms}));
        assert_eq!(waits(&mut usual(), &wait(1500)), [1500; 4]);
        assert_eq!(waits(&mut usual(), &wait(45_000)), [30_000; 4]);
        assert!(waits(&mut usual(), &wait(60_001)).is_empty());
    }

    #[test]
    fn refusals_and_features_that_are_off_are_final() {
        assert!(waits(&mut usual(), &failure(400, json!({"code": "invalid_request"}))).is_empty());
        assert!(waits(&mut usual(), &failure(501, json!({"code": "unavailable"}))).is_empty());
        assert!(waits(&mut usual(), &failure(503, json!({"code": "fork_unavailable"}))).is_empty());
        assert!(waits(&mut usual(), &failure(500, json!({"code": "internal_error"}))).is_empty());
        assert_eq!(waits(&mut usual(), &failure(500, json!({"code": "internal_error", "retryable": true}))).len(), 4);
    }

    #[test]
    fn a_busy_server_is_asked_until_the_deadline() {
        let busy = failure(429, json!({"code": "rate_limited", "retryAfterMs": 1000}));
        let waits = waits(&mut usual(), &busy);
        assert_eq!(waits[..5], [1000, 2000, 4000, 8000, 8000]);
        let total: u64 = waits.iter().sum();
        assert!((285_000..300_000).contains(&total), "{total}");
    }

    #[test]
    fn a_late_refusal_means_nothing_ran_only_for_a_busy_guest() {
        let late = |code| failure(503, json!({"code": code})).mark_late();
        assert!(waits(&mut usual(), &late("guest_busy")).len() > 4);
        assert_eq!(waits(&mut usual(), &late("busy")).len(), 4);
    }

    #[test]
    fn room_is_waited_for_only_when_asked() {
        let full = failure(409, json!({"code": "no_capacity"}));
        let mut retry = Retry::new(Duration::from_secs(300), Duration::from_secs(20));
        assert_eq!(waits(&mut retry, &full), [500, 1000, 2000, 4000, 8000, 4500]);
        assert_eq!(retry.deadline(), Duration::from_secs(320));

        assert!(waits(&mut usual(), &full).is_empty(), "told at once");
        let quota = failure(429, json!({"code": "quota_exceeded"}));
        assert!(waits(&mut usual(), &quota).is_empty());
        let mut retry = Retry::new(Duration::from_secs(300), Duration::from_secs(20));
        let never = failure(429, json!({"code": "quota_exceeded", "retryable": false}));
        assert!(waits(&mut retry, &never).is_empty());
        let count = failure(409, json!({"code": "no_capacity", "details": {"field": "count"}}));
        assert!(waits(&mut retry, &count).is_empty());
    }
}
