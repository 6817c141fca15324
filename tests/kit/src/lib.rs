//! Builders and a one-call stack for tests that run the real program.
