//! Version 1: a file per limit in the tree of its controller.

use std::path::Path;

use super::{CgroupError, Limits, write};

const PERIOD_US: u64 = 100_000;
/// The kernel refuses quotas below a millisecond and shares below two.
const MIN_QUOTA_US: u64 = 1_000;
const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;

pub(super) fn set_limits(cpu: &Path, pids: &Path, limits: &Limits) -> Result<(), CgroupError> {
    let quota = (limits.cpu_quota_millis.saturating_mul(PERIOD_US) / 1000).max(MIN_QUOTA_US);
    write(&cpu.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
    write(&cpu.join("cpu.cfs_quota_us"), &quota.to_string())?;
    write(&cpu.join("cpu.shares"), &shares(limits.cpu_floor_millis).to_string())?;
    write(&pids.join("pids.max"), &limits.pids.to_string())
}

/// One whole CPU is 1024 shares.
pub(super) fn shares(floor_millis: u64) -> u64 {
    (floor_millis.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}
