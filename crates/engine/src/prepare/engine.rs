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
            Self::Auto => Ok(Found {
                firecracker: Firecracker::find().is_ok(),
                firecracker_proven: proven(data_dir, By::Firecracker),
                qemu: Qemu::find().is_ok(),
                qemu_proven: proven(data_dir, By::Qemu),
                gvisor: Runsc::find().is_ok(),
            }
            .best()),
        }
    }
}

/// What this machine has, and under what a guest has been seen to run by KVM.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    firecracker: bool,
    firecracker_proven: bool,
    qemu: bool,
    qemu_proven: bool,
    gvisor: bool,
}

impl Found {
    fn best(self) -> Kind {
        if self.firecracker && self.firecracker_proven {
            Kind::Firecracker
        } else if self.qemu && (self.qemu_proven || !self.gvisor) {
            Kind::Qemu
        } else {
            // Also where there is nothing yet: what a set-up brings.
            Kind::Gvisor
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_what_is_proven_then_gvisor_then_what_emulates() {
        let all = Found { firecracker: true, firecracker_proven: true, qemu: true, qemu_proven: true, gvisor: true };
        let table = [
            (all, Kind::Firecracker),
            (Found { firecracker: false, ..all }, Kind::Qemu),
            (Found { firecracker_proven: false, ..all }, Kind::Qemu),
            (Found { firecracker_proven: false, qemu: false, ..all }, Kind::Gvisor),
            (Found { firecracker_proven: false, qemu_proven: false, ..all }, Kind::Gvisor),
            (Found { firecracker_proven: false, qemu_proven: false, gvisor: false, ..all }, Kind::Qemu),
            (Found { firecracker: true, ..Found::default() }, Kind::Gvisor),
            (Found::default(), Kind::Gvisor),
        ];
        for (found, kind) in table {
            assert_eq!(found.best(), kind, "{found:?}");
        }
    }

    #[test]
    fn a_device_without_a_proof_is_not_taken_for_kvm() {
        let dir = tempfile::tempdir().unwrap();
        let kind = EngineChoice::Auto.resolve(dir.path()).unwrap();
        assert_ne!(kind, Kind::Firecracker);
        assert_eq!(kind == Kind::Qemu, Runsc::find().is_err() && Qemu::find().is_ok());
        for (choice, kind) in [
            (EngineChoice::Gvisor, Kind::Gvisor),
            (EngineChoice::Firecracker, Kind::Firecracker),
            (EngineChoice::Qemu, Kind::Qemu),
        ] {
            assert_eq!(choice.resolve(dir.path()).unwrap(), kind, "the operator decides");
        }
    }
}
