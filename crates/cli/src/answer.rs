//! What a command of this machine answers: one result, told to a person or as one JSON value, or why there is none.

use std::process::ExitCode;

use serde_json::Value;

use crate::failure::Failure;
use crate::printer::Printer;

/// A result in both its forms. A command has one, so that it cannot print two JSON values.
#[derive(Debug)]
pub struct Answer {
    text: String,
    value: Value,
    code: ExitCode,
}

impl Answer {
    /// `text` is for a person; an empty one says nothing, where everything was told on the way.
    #[must_use]
    pub fn new(text: impl Into<String>, value: Value) -> Self {
        Self { text: text.into(), value, code: ExitCode::SUCCESS }
    }

    /// The same, as the answer of a command that asked whether something is so, and it is not.
    #[must_use]
    pub fn and_fails(mut self, fails: bool) -> Self {
        if fails {
            self.code = ExitCode::FAILURE;
        }
        self
    }

    /// Prints it; the exit code for it.
    #[must_use]
    pub fn finish(self, json: bool) -> ExitCode {
        match self.print(json) {
            Ok(()) => self.code,
            Err(error) => Failure::from(error).tell(Printer { json }).into(),
        }
    }

    /// Prints it while the work goes on.
    pub fn print(&self, json: bool) -> std::io::Result<()> {
        let printer = Printer { json };
        if json {
            printer.value(&self.value)
        } else if self.text.is_empty() {
            Ok(())
        } else {
            printer.line(&self.text)
        }
    }
}

/// Tells an error with everything that caused it; the exit code for it.
#[must_use]
pub fn fail(error: anyhow::Error, json: bool) -> ExitCode {
    Failure::from(error).tell(Printer { json }).into()
}
