//! Types of process calls.
