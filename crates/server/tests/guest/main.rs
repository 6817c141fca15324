//! The routes into a sandbox, over HTTP, with the real store and the real agent. Only the machine is missing: the agent
//! runs as a process of this host, so these tests need root as the agent does.

mod archives;
mod commands;
mod files;
mod node;
mod previews;
mod processes;
mod sockets;
mod stack;
mod uploads;
mod watches;
