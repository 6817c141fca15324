//! Which engine the operator asked for, and which one that comes to on this machine.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::kvm::By;
use super::{Firecracker, PrepareError, Qemu, Runsc, kvm};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    #[default]
    Auto,
    Gvisor,
    Firecracker,
    Qemu,
}

/// An engine that this version has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Gvisor,
    Firecracker,
    Qemu,
}

impl Kind {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gvisor => "gvisor",
            Self::Firecracker => "firecracker",
            Self::Qemu => "qemu",
        }
    }
}

impl EngineChoice {
    pub const NAMES: [&'static str; 4] = ["auto", "gvisor", "firecracker", "qemu"];

    /// The engine that this choice means for this data directory. `auto` takes microVMs where a guest has been seen to
    /// run under KVM, by Firecracker if it can be, else gVisor, else emulated microVMs where only those are installed.
    pub fn resolve(self, data_dir: &Path) -> Result<Kind, PrepareError> {
        match self {
            Self::Gvisor => Ok(Kind::Gvisor),
            Self::Qemu => Ok(Kind::Qemu),
            Self::Firecracker => Ok(Kind::Firecracker),
            Self::Auto if proven(data_dir, By::Firecracker) && Firecracker::find().is_ok() => Ok(Kind::Firecracker),
            Self::Auto if proven(data_dir, By::Qemu) && Qemu::find().is_ok() => Ok(Kind::Qemu),
            Self::Auto if Runsc::find().is_err() && Qemu::find().is_ok() => Ok(Kind::Qemu),
            Self::Auto => Ok(Kind::Gvisor),
        }
    }
}

fn proven(data_dir: &Path, by: By) -> bool {
    kvm::known(data_dir, by).is_some_and(|answer| answer.proven)
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Gvisor => "gvisor",
            Self::Firecracker => "firecracker",
            Self::Qemu => "qemu",
        })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("unknown engine {0:?}: use auto, gvisor, firecracker or qemu")]
pub struct UnknownEngine(String);

impl FromStr for EngineChoice {
    type Err = UnknownEngine;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "gvisor" => Ok(Self::Gvisor),
            "firecracker" => Ok(Self::Firecracker),
            "qemu" => Ok(Self::Qemu),
            other => Err(UnknownEngine(other.to_owned())),
        }
    }
}
