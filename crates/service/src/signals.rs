//! The two reasons a person or an init system gives a program to stop.

use std::io;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Why the program was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// What init systems and `kill` send.
    Terminate,
}

impl Signal {
    /// The exit code of a program that ended because of it.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }
}

/// Catches signals from the moment it exists: one that comes while nobody waits is kept for the next [`Signals::next`].
#[derive(Debug)]
pub struct Signals {
    interrupt: Stream,
    terminate: Stream,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot catch {signal}")]
pub struct SignalError {
    signal: &'static str,
    #[source]
    source: io::Error,
}

impl Signals {
    /// Takes the signals over; their default action (ending the process) is gone for good.
    pub fn catch() -> Result<Self, SignalError> {
        let open = |kind, name| signal(kind).map_err(|source| SignalError { signal: name, source });
        Ok(Self {
            interrupt: open(SignalKind::interrupt(), "SIGINT")?,
            terminate: open(SignalKind::terminate(), "SIGTERM")?,
        })
    }

    /// The next reason to stop. Cancel-safe: nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_that_comes_before_anybody_waits_is_kept() {
        let mut signals = Signals::catch().expect("caught");
        let own = std::process::id().to_string();
        let sent = std::process::Command::new("kill").args(["-TERM", &own]).status().expect("kill runs");
        assert!(sent.success());
        assert_eq!(signals.next().await, Signal::Terminate);
    }
}
