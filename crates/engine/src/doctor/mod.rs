//! `doctor`: every prerequisite as a line, with the exact fix where something is wrong. Looks, changes nothing.

use std::fmt;
use std::path::PathBuf;

use crate::prepare::EngineChoice;

mod disk;
mod machine;
mod names;
mod port;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok,
    /// Sandboxes will not run, or not as promised.
    Problem,
    /// Worth knowing.
    Note,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub status: Status,
    pub detail: String,
    /// What to do, as a command where there is one.
    pub fix: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub data_dir: PathBuf,
    /// What is to run the sandboxes.
    pub engine: EngineChoice,
    /// Where the server listens or would: `HOST:PORT`.
    pub listen: String,
    /// What previews are to lie below: `http[s]://DOMAIN[:PORT]`.
    pub preview_domain: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub checks: Vec<Check>,
}

impl Report {
    /// The exit code says this.
    pub fn healthy(&self) -> bool {
        self.checks.iter().all(|check| check.status != Status::Problem)
    }
}

/// Runs every check; one that fails keeps none of the others from running.
pub fn run(options: &Options) -> Report {
    let mut checks = vec![machine::rights(), machine::kernel()];
    checks.push(machine::clock());
    checks.push(machine::memory());
    checks.push(machine::cgroups());
    checks.push(machine::ptrace());
    checks.push(machine::runsc());
    checks.push(machine::firecracker(options.engine));
    checks.push(machine::qemu(options.engine));
    checks.push(machine::kvm(&options.data_dir));
    checks.push(machine::engine(options.engine, &options.data_dir));
    checks.push(machine::descriptors());
    checks.push(machine::packages(options.engine, &options.data_dir));
    checks.push(disk::loop_devices());
    checks.extend(disk::pool(&options.data_dir));
    checks.push(disk::room(&options.data_dir));
    checks.push(port::listen(&options.data_dir, &options.listen));
    checks.extend(options.preview_domain.as_deref().map(names::below));
    Report { checks }
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, detail: detail.into(), fix: None }
    }

    fn note(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, status: Status::Note, detail: detail.into(), fix: None }
    }

    fn problem(name: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, status: Status::Problem, detail: detail.into(), fix: Some(fix.into()) }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.status {
            Status::Ok => "ok",
            Status::Problem => "problem",
            Status::Note => "note",
        };
        write!(f, "{word:<8}{}: {}", self.name, self.detail)?;
        match &self.fix {
            Some(fix) => write!(f, "\n        fix: {fix}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
