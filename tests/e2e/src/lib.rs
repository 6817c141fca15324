//! End-to-end suites: the built program, the real kernel, real gVisor, and the public API.
//!
//! | suite | it proves |
//! | --- | --- |
//! | `client` | each line of the contract that is served, by the public Python client, one test for each check in `client/` |
//! | `bad_input` | what a stranger may send: refused or cut, memory flat, the server lives |
//! | `crash` | what was acknowledged is there after `kill -9` and after a reboot, and nothing runs twice |
//! | `leaks` | sandboxes that are gone leave nothing behind |
//! | `egress` | what the network rules let through works, and nothing else leaves, whatever root tries |
//! | `isolation` | a guest reaches neither the host, nor another sandbox, nor a network, nor a secret |
//! | `limits` | a sandbox gets what was asked for and no more |
//! | `tenancy` | a key sees what is its own |
//! | `scenarios` | the table that all clients share, by the Rust client |
//! | `cli` | the command line as people type it |
//! | `image` | every tool that the guest contract names works |
//!
//! Every test has a server and a data directory of its own (`runtime_test_kit::Stack`).

pub mod ledger;
pub mod scenario;
