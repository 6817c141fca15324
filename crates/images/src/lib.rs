//! Base images: built once per data directory from one description, by digest.
