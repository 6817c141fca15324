//! What a shim is told about a microVM, whatever program runs it.

use std::path::PathBuf;

use runtime_host::cgroup::Limits;
use serde::{Deserialize, Serialize};

use super::vmm::Program;
use crate::driver::record::Process;
use crate::driver::{Identity, Saved};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) program: Program,
    pub(crate) memory_mib: u64,
    pub(crate) vcpu: u32,
    pub(crate) uid: u32,
    pub(crate) bounds: Bounds,
    pub(crate) base: PathBuf,
    pub(crate) disk: PathBuf,
    /// A directory of its own into which the machine writes what is saved of it, where it does so itself.
    pub(crate) outbox: PathBuf,
    pub(crate) memory: Memory,
    pub(crate) start: Start,
    /// A template in the making: nobody's sandbox, so nobody takes it over.
    pub(crate) template: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Memory {
    /// Nobody else's.
    Own,
    /// In this file, which is to become a template's.
    Written(PathBuf),
    /// A private view of this file.
    Template(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Start {
    Cold {
        kernel: PathBuf,
        initramfs: PathBuf,
    },
    Restore {
        state: PathBuf,
        /// What is used up by it, where something is.
        spends: Option<Saved>,
    },
}

/// Limits of the control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bounds {
    memory_bytes: u64,
    cpu_quota_millis: u64,
    cpu_floor_millis: u64,
    pids: u64,
}

impl From<Limits> for Bounds {
    fn from(limits: Limits) -> Self {
        let Limits { memory_bytes, cpu_quota_millis, cpu_floor_millis, pids } = limits;
        Self { memory_bytes, cpu_quota_millis, cpu_floor_millis, pids }
    }
}

impl From<Bounds> for Limits {
    fn from(bounds: Bounds) -> Self {
        let Bounds { memory_bytes, cpu_quota_millis, cpu_floor_millis, pids } = bounds;
        Self { memory_bytes, cpu_quota_millis, cpu_floor_millis, pids }
    }
}

/// A microVM that runs, in `machine.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VmMachine {
    pub(crate) engine: String,
    pub(crate) boot_id: String,
    pub(crate) shim: Process,
    pub(crate) vmm: Process,
    /// Below the parent of all sandboxes' groups.
    pub(crate) cgroup: String,
    pub(crate) agent: String,
    pub(crate) identity: Identity,
    pub(crate) launch: Launch,
}
