//! Steps that take a while, told as they happen: on stderr, one line each, with a moving line under the running one when
//! a person is watching.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::printer::plain;

/// Where a long piece of work says what it does.
pub trait Progress: Send + Sync {
    /// A step begins: what, and what it is for.
    fn step(&self, name: &str, why: &str);
    /// Something about the running step; the latest stands beside it.
    fn note(&self, text: &str);
    /// The running step is done; `text` says what came of it.
    fn done(&self, text: &str);
    /// The running step failed; the error itself is said by whoever handles it.
    fn failed(&self, text: &str);
}

/// Tells it on stderr.
#[derive(Debug, Default)]
pub struct StderrProgress {
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    name: String,
    /// Only when a person is watching.
    bar: Option<ProgressBar>,
}

impl StderrProgress {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn take(&self) -> Option<Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn end(&self, mark: &str, text: &str) {
        let Some(running) = self.take() else { return };
        if let Some(bar) = &running.bar {
            bar.finish_and_clear();
        }
        let result = if text.is_empty() { String::new() } else { format!(": {}", plain(text)) };
        say(&format!("  {mark} {}{result}", running.name));
    }
}

impl Progress for StderrProgress {
    fn step(&self, name: &str, why: &str) {
        // A step that was never ended is over now.
        self.end("ok", "");
        let name = plain(name);
        say(&format!("{name} ({})", plain(why)));
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("  {spinner} {elapsed} {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(Running { name, bar });
    }

    fn note(&self, text: &str) {
        let text = plain(text);
        match self.running.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(Running { bar: Some(bar), .. }) => bar.set_message(text),
            _ => say(&format!("  {text}")),
        }
    }

    fn done(&self, text: &str) {
        self.end("ok", text);
    }

    fn failed(&self, text: &str) {
        self.end("FAILED", text);
    }
}

impl Drop for StderrProgress {
    fn drop(&mut self) {
        // Work that ended early leaves no moving line behind.
        if let Some(Running { bar: Some(bar), .. }) = self.take() {
            bar.finish_and_clear();
        }
    }
}

fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
