//! The size of a machine.

use serde::{Deserialize, Serialize};

/// The contract's ranges (spec: create body).
pub mod limits {
    use std::ops::RangeInclusive;
    pub const VCPU: RangeInclusive<u32> = 1..=16;
    pub const MEMORY_MIB: RangeInclusive<u64> = 128..=65_536;
    pub const DISK_MIB: RangeInclusive<u64> = 3_072..=409_600;
    pub const DEFAULT_VCPU: u32 = 2;
    pub const DEFAULT_MEMORY_MIB: u64 = 4_096;
    pub const DEFAULT_DISK_MIB: u64 = 4_096;
    pub const DEFAULT_CPU_FLOOR_MILLIS: u32 = 50;
    /// Seconds; shorter idle pauses are raised to the start of this range, 0 means never.
    pub const IDLE_SECONDS: RangeInclusive<u32> = 60..=86_400;
    pub const DEFAULT_IDLE_SECONDS: u32 = 300;
    /// Seconds; 0 means no limit.
    pub const TIME_LIMIT_SECONDS: RangeInclusive<u32> = 60..=86_400;
    pub const LABELS: usize = 32;
    pub const LABEL_TEXT: usize = 256;
    pub const NAME_TEXT: usize = 128;
    pub const ENV_VARS: usize = 32;
    pub const ENV_BYTES: usize = 32 * 1024;
}

/// What a machine may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    pub vcpu: u32,
    pub memory_mib: u64,
    pub disk_mib: u64,
    /// Thousandths of a core that stay its own when the host is busy.
    pub cpu_floor_millis: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            vcpu: limits::DEFAULT_VCPU,
            memory_mib: limits::DEFAULT_MEMORY_MIB,
            disk_mib: limits::DEFAULT_DISK_MIB,
            cpu_floor_millis: limits::DEFAULT_CPU_FLOOR_MILLIS,
        }
    }
}

/// A field of a shape that is out of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShapeField {
    Vcpu,
    MemoryMib,
    DiskMib,
    CpuFloorMillis,
}

impl Shape {
    /// Every field that is out of range, not only the first.
    #[must_use]
    pub fn wrong_fields(&self) -> Vec<ShapeField> {
        let mut wrong = Vec::new();
        if !limits::VCPU.contains(&self.vcpu) {
            wrong.push(ShapeField::Vcpu);
        }
        if !limits::MEMORY_MIB.contains(&self.memory_mib) {
            wrong.push(ShapeField::MemoryMib);
        }
        if !limits::DISK_MIB.contains(&self.disk_mib) {
            wrong.push(ShapeField::DiskMib);
        }
        if self.cpu_floor_millis > self.vcpu.saturating_mul(1000) {
            wrong.push(ShapeField::CpuFloorMillis);
        }
        wrong
    }
}
