//! The program on each host: driver trait, gVisor driver, one actor per sandbox, recovery.

pub mod doctor;
pub mod prepare;
