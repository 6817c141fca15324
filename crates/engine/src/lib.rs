//! The program on each host: driver trait, gVisor driver, one actor per sandbox, recovery.
//!
//! [`prepare::open`] finds what a sandbox needs of the machine; [`Engine::open`] takes over what runs on it and is the
//! [`runtime_proto::node::Node`] that a server drives. Each sandbox has one task that owns it (`actor`), one link to its
//! agent (`link`), and one process on the host that outlives the server ([`shim`]).

mod actor;
mod agent_file;
pub mod doctor;
pub mod driver;
mod engine;
mod host_state;
mod link;
mod no_way_out;
mod pause;
pub mod prepare;
mod saves;
pub mod shim;
mod shortage;
mod snapshots;

pub use agent_file::{AgentFile, AgentFileError};
pub use engine::{DEFAULT_USER_PROCESSES, Engine, EngineConfig, EngineError};
pub use no_way_out::NoWayOut;
