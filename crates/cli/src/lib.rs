//! The command line: a client of the public API with no other way in.
