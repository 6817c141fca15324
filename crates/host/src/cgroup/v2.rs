//! Version 2: one tree; controllers must be handed down level by level.

use std::path::Path;

use super::{CgroupError, Limits, make, number, read, v1, write};

const PERIOD_US: u64 = 100_000;
const MIN_QUOTA_US: u64 = 1_000;
/// How far above the throttling limit the killing one lies while the killer is held off.
const HEADROOM: u64 = 64 << 20;
const CONTROLLERS: &str = "+memory +cpu +pids";

pub(super) fn prepare_parent(root: &Path, parent: &str) -> Result<(), CgroupError> {
    hand_down(root)?;
    let dir = root.join(parent);
    make(&dir)?;
    hand_down(&dir)
}

fn hand_down(dir: &Path) -> Result<(), CgroupError> {
    let file = dir.join("cgroup.subtree_control");
    let now = read(&file)?;
    let complete = ["memory", "cpu", "pids"].iter().all(|c| now.split_whitespace().any(|n| n == *c));
    if complete { Ok(()) } else { write(&file, CONTROLLERS) }
}

pub(super) fn set_limits(dir: &Path, limits: &Limits) -> Result<(), CgroupError> {
    let quota = (limits.cpu_quota_millis.saturating_mul(PERIOD_US) / 1000).max(MIN_QUOTA_US);
    write(&dir.join("cpu.max"), &format!("{quota} {PERIOD_US}"))?;
    write(&dir.join("cpu.weight"), &weight(limits.cpu_floor_millis).to_string())?;
    write(&dir.join("pids.max"), &limits.pids.to_string())
}

/// Shares and weights are two scales of the same thing: 2..262144 onto 1..10000.
pub(super) fn weight(floor_millis: u64) -> u64 {
    1 + (v1::shares(floor_millis) - 2) * 9999 / 262_142
}

pub(super) fn memory_limit(dir: &Path) -> Result<u64, CgroupError> {
    let high = number(&dir.join("memory.high"))?;
    if high == u64::MAX { number(&dir.join("memory.max")) } else { Ok(high) }
}

pub(super) fn set_memory_limit(dir: &Path, bytes: u64) -> Result<(), CgroupError> {
    let held_off = number(&dir.join("memory.high"))? != u64::MAX;
    if held_off { hold_off(dir, bytes) } else { write(&dir.join("memory.max"), &bytes.to_string()) }
}

pub(super) fn set_oom_kill(dir: &Path, kill: bool) -> Result<(), CgroupError> {
    let limit = memory_limit(dir)?;
    if !kill {
        return if limit == u64::MAX { Ok(()) } else { hold_off(dir, limit) };
    }
    let text = if limit == u64::MAX { "max".to_owned() } else { limit.to_string() };
    write(&dir.join("memory.max"), &text)?;
    write(&dir.join("memory.high"), "max")
}

fn hold_off(dir: &Path, limit: u64) -> Result<(), CgroupError> {
    write(&dir.join("memory.max"), &limit.saturating_add(HEADROOM).to_string())?;
    write(&dir.join("memory.high"), &limit.to_string())
}

pub(super) fn cpu_usage_ns(dir: &Path) -> Result<u64, CgroupError> {
    let file = dir.join("cpu.stat");
    let text = read(&file)?;
    let micros = text.lines().find_map(|l| l.strip_prefix("usage_usec ")).and_then(|n| n.trim().parse::<u64>().ok());
    micros.map(|us| us.saturating_mul(1000)).ok_or_else(|| CgroupError::File {
        step: "understand",
        path: file,
        source: std::io::Error::from(std::io::ErrorKind::InvalidData),
    })
}
