//! Types of file calls.
