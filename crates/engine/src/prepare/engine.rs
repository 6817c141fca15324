//! Which engine the operator asked for.

use std::fmt;
use std::str::FromStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    #[default]
    Auto,
    Gvisor,
    Firecracker,
    Qemu,
}

impl EngineChoice {
    pub const NAMES: [&'static str; 4] = ["auto", "gvisor", "firecracker", "qemu"];

    /// The engine this version would run: only gVisor is built.
    pub fn resolve(self) -> Result<&'static str, super::PrepareError> {
        match self {
            Self::Auto | Self::Gvisor => Ok("gvisor"),
            Self::Firecracker | Self::Qemu => Err(super::PrepareError::EngineNotBuilt { engine: self }),
        }
    }
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
