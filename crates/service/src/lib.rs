//! What every program of the product does alike: logs, signals, a group of tasks that is drained, TLS for clients.
//!
//! A daemon's life is always the same: [`logs::init`], build, say what is listening, wait for [`signals::Signals`],
//! then [`tasks::TaskGroup::drain`] within a grace time. Nothing here knows what the tasks do.

pub mod logs;
pub mod signals;
pub mod tasks;
pub mod tls;
