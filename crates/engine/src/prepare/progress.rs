//! How a setup tells what it does.

/// Told of every step. Implementations print, or keep quiet.
pub trait Progress: Send + Sync {
    /// A step begins: what, and why it is needed.
    fn step(&self, name: &str, why: &str);
    /// Something worth knowing inside the step.
    fn note(&self, text: &str);
    /// The step has ended: what came of it.
    fn done(&self, name: &str, result: &str);
}

/// Says nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _: &str, _: &str) {}
    fn note(&self, _: &str) {}
    fn done(&self, _: &str, _: &str) {}
}
