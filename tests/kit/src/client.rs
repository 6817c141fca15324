//! The public Python client, unmodified, as a client of the program under test.
//!
//! A check is a function of one of the files in `tests/e2e/client`. It runs in its own Python against a stack of its
//! own, and may ask for the server to be killed, stopped and started, or for its helpers to be ended, by writing a line
//! `@word` to its output; the answer is a line on its input.

use crate::{Stack, program};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The version that the contract was recorded from.
const CLIENT: &str = "withruntime==0.35.0";

/// A Python with the client in it, made once for the machine and kept outside the clone.
///
/// # Panics
/// When it cannot be made, with what pip said.
#[must_use]
pub fn client_venv() -> PathBuf {
    venv().unwrap_or_else(|error| panic!("a Python environment with {CLIENT}: {error:#}"))
}

fn venv() -> Result<PathBuf> {
    let cache = program::env("XDG_CACHE_HOME").or_else(|| Some(program::env("HOME")?.join(".cache")));
    let cache = cache.unwrap_or_else(|| PathBuf::from("/var/cache")).join("runtime-tests");
    fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
    let lock = File::create(cache.join("client.lock")).context("create the lock of the environment")?;
    lock.lock().context("wait for another test that makes the environment")?;
    let dir = cache.join(CLIENT.replace("==", "-"));
    let python = dir.join("bin/python");
    // Written last: without it the environment was left half made.
    let ready = dir.join("ready");
    if ready.exists() && python.exists() {
        return Ok(python);
    }
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", CLIENT]))?;
    File::create(&ready).context("mark the environment as whole")?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<()> {
    let done = command.output().with_context(|| format!("start {command:?}"))?;
    if !done.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

/// Runs one check of one file in `dir` against a new stack.
///
/// # Panics
/// When it fails, with what it printed.
pub fn check(dir: &Path, file: &str, name: &str) {
    let python = client_venv();
    let mut stack = Stack::start();
    let child = Command::new(python)
        .arg("-u")
        .arg(dir.join(format!("{file}.py")))
        .arg(name)
        .env("RUNTIME_API_URL", stack.url())
        .env("RUNTIME_API_KEY", stack.owner_key())
        .env("RUNTIME_TEST_PROGRAM", program())
        .env("RUNTIME_TEST_DATA", stack.dir())
        .env("NO_PROXY", "127.0.0.1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONFAULTHANDLER", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start Python");
    let mut running = Running(child);
    let child = &mut running.0;
    let mut answers = child.stdin.take().expect("its input");
    let said = BufReader::new(child.stdout.take().expect("its output"));
    for line in said.lines() {
        let line = line.expect("what the check printed");
        let Some(word) = line.strip_prefix('@') else {
            println!("{line}");
            continue;
        };
        obey(&mut stack, word);
        writeln!(answers, "done").expect("answer the check");
    }
    let status = child.wait().expect("wait for the check");
    assert!(status.success(), "{file}.py {name} ended with {status}");
}

/// A check whose test has failed is ended with it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn obey(stack: &mut Stack, word: &str) {
    match word {
        "kill9" => stack.kill9(),
        "stop" => stack.stop(),
        "start" => stack.restart(),
        "kill-helpers" => stack.kill_helpers(),
        other => panic!("a check asked for {other:?}, which nobody knows"),
    }
}
