//! The wall clock in the store's unit.

use runtime_api::Time;

/// Milliseconds since the Unix epoch.
#[must_use]
pub fn now_ms() -> i64 {
    chrono::Utc::now().timestamp_millis()
}

/// As on the wire; a time no calendar can say becomes the epoch.
#[must_use]
pub fn time(millis: i64) -> Time {
    Time::from_millis(millis).unwrap_or(Time(chrono::DateTime::UNIX_EPOCH))
}

#[must_use]
pub fn seconds(seconds: u32) -> i64 {
    i64::from(seconds) * 1000
}
