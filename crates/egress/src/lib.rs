//! The way out of a sandbox, on the host's side.
//!
//! A sandbox has no network card. Its agent takes connections to a proxy inside and passes their bytes over the channel;
//! here they are read, judged and, if the rules let them, carried on by a socket of the host. A guest decides nothing:
//! not which address a name stands for, not what its bytes mean, not when rules begin to hold.
//!
//! ```text
//!   flow ──> proxy (what is asked for) ──> judge (may it be) ──> resolve (where is it) ──> judge ──> dial ──> tunnel
//!                                                     every verdict ──> ledger
//! ```
//!
//! All of it is a program of its own ([`run`]), without rights; its [`Keeper`] starts it, arms it and hands it connections.
//! [`judge`] is pure and holds all of policy. [`address`] knows which addresses nobody may reach. [`sniff`] reads what a
//! connection says of its own destination, so that it cannot say another name than the one that was judged.

pub mod address;
mod dial;
pub mod judge;
mod keeper;
mod ledger;
mod pipe;
mod program;
mod proxy;
pub mod resolve;
mod service;
pub mod sniff;
mod tunnel;

pub use keeper::{Keeper, KeeperOptions, SUBCOMMAND};
pub use program::{ProgramError, run};
pub use service::{Gate, Settings};
