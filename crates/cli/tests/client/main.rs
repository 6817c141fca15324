//! The command line as a process of its own, against a small server that plays the contract's answers.
//!
//! The program under test is this very test binary: a child of it with words in its environment carries out the command
//! line instead of testing (see [`process`]). So what is asserted is what a person gets: stdout, stderr, the exit code.

mod exec;
mod player;
mod process;
mod retry;
mod sandboxes;
