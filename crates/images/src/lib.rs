//! Base images: built once per data directory from one description, by digest.
//!
//! The description is the folder `base/` of this crate, compiled in: the packages, what is done to them, how the
//! result is checked. Its SHA-256 names the image, so a changed description is another image and an unchanged one
//! is never built twice. The packages themselves come from wherever this machine gets its own ([`apt`]).

pub mod apt;
pub mod base;
pub mod microvm;
