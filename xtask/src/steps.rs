//! Named, timed steps: what runs is printed before it runs, what it took is summed at the end.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Runs steps one after the other and remembers how long each took.
pub(crate) struct Steps {
    total: usize,
    done: Vec<Step>,
    began: Instant,
}

struct Step {
    name: String,
    took: Duration,
    passed: bool,
}

impl Steps {
    /// `total` is only for the reader: "[3/9]".
    pub(crate) fn new(total: usize) -> Self {
        Self { total, done: Vec::new(), began: Instant::now() }
    }

    /// Runs a step that the ones after it need. Its error says which step it was; the caller stops there.
    pub(crate) fn run(&mut self, name: &str, why: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.time(name, why, work).map_err(|error| {
            println!("\n{}", self.summary());
            error.context(format!("step `{name}` failed"))
        })
    }

    /// Runs a step whose failure hides nothing of what comes after it: that runs too, and [`Self::finish`] fails.
    pub(crate) fn check(&mut self, name: &str, why: &str, work: impl FnOnce() -> Result<()>) {
        if let Err(error) = self.time(name, why, work) {
            println!("\n    FAILED: {name}: {error:#}");
        }
    }

    /// Prints the times of all steps; call it last. An error names the steps that failed.
    pub(crate) fn finish(&self) -> Result<()> {
        println!("\n{}", self.summary());
        let failed: Vec<_> = self.done.iter().filter(|step| !step.passed).map(|step| step.name.as_str()).collect();
        if !failed.is_empty() {
            bail!("failed: {}", failed.join(", "));
        }
        Ok(())
    }

    fn time(&mut self, name: &str, why: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("\n==> [{}/{}] {name}: {why}", self.done.len() + 1, self.total);
        let began = Instant::now();
        let outcome = work();
        let took = began.elapsed();
        self.done.push(Step { name: name.to_owned(), took, passed: outcome.is_ok() });
        if outcome.is_ok() {
            println!("    ok: {name} in {}", seconds(took));
        }
        outcome
    }

    fn summary(&self) -> String {
        let mut text = String::from("Time by step\n");
        for Step { name, took, passed } in &self.done {
            let mark = if *passed { "ok" } else { "FAILED" };
            let _ = writeln!(text, "  {name:<16} {:>10}  {mark}", seconds(*took));
        }
        let _ = write!(text, "  {:<16} {:>10}", "total", seconds(self.began.elapsed()));
        text
    }
}

/// Runs a program with its output passed through; anything but success is an error that quotes the whole command.
pub(crate) fn call(command: &mut Command) -> Result<()> {
    let line = shown(command);
    println!("    $ {line}");
    let status = command.status().with_context(|| format!("`{line}` could not be started"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// Runs a program for its standard output; its standard error is passed through.
pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>> {
    let line = shown(command);
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("`{line}` could not be started"))?;
    if !output.status.success() {
        bail!("`{line}` ended with {}", output.status);
    }
    Ok(output.stdout)
}

/// Whether a program is there and says so; its output is of no interest.
pub(crate) fn answers(command: &mut Command) -> bool {
    command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The cargo that runs us, started at the workspace root.
pub(crate) fn cargo(root: &Path) -> Command {
    #[expect(clippy::disallowed_methods, reason = "cargo tells its children by CARGO which cargo they belong to")]
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root);
    command
}

/// The command as one would type it.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().filter(|name| *name == "cargo").unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args()).map(quoted);
    words.collect::<Vec<_>>().join(" ")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn seconds(duration: Duration) -> String {
    let whole = duration.as_secs();
    if whole < 60 {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_step_and_the_command() {
        let mut steps = Steps::new(2);
        steps.run("first", "passes", || Ok(())).unwrap();
        let error = steps.run("second", "fails", || call(Command::new("false").arg("a b"))).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("step `second` failed"), "{text}");
        assert!(text.contains("`false 'a b'` ended with exit status: 1"), "{text}");
        let summary = steps.summary();
        assert!(summary.lines().any(|line| line.contains("second") && line.ends_with("FAILED")), "{summary}");
        assert!(summary.lines().any(|line| line.contains("first") && line.ends_with("ok")), "{summary}");
    }

    #[test]
    fn what_failed_is_told_at_the_end_and_hides_nothing() {
        let mut steps = Steps::new(3);
        steps.check("first", "fails", || bail!("no"));
        let mut ran = false;
        steps.check("second", "passes", || {
            ran = true;
            Ok(())
        });
        steps.check("third", "fails", || bail!("no"));
        assert!(ran);
        assert_eq!(steps.finish().unwrap_err().to_string(), "failed: first, third");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = call(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(format!("{error:#}").contains("`no-such-program-here` could not be started"));
    }

    #[test]
    fn times_read_well() {
        assert_eq!(seconds(Duration::from_millis(1234)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(61)), "1 min 01 s");
    }
}
