//! The life of a sandbox.
//!
//! ```text
//!   create ──> starting ──> running ──> pausing ──> paused
//!                 │  ▲         │  ▲                   │
//!                 │  │         │  └───── resuming <───┤
//!                 ▼  └restart  ▼                      ▼
//!              stopping ──────────────────────────> stopped
//! ```
//!
//! Deleting is possible from every state and leaves none. [`transition`] is total: each pair of state and event is
//! listed, and answers a move, nothing to do, or a refusal.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Starting,
    Running,
    Pausing,
    Paused,
    Resuming,
    Stopping,
    Stopped,
}

impl State {
    pub const ALL: [Self; 7] =
        [Self::Starting, Self::Running, Self::Pausing, Self::Paused, Self::Resuming, Self::Stopping, Self::Stopped];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Resuming => "resuming",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// Why a sandbox stopped or paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    Idle,
    Requested,
    TimeLimit,
    PausedExpired,
    LifetimeCap,
    StartupFailed,
    PauseFailed,
    HostStopped,
    HostLost,
    OperatorStopped,
}

impl Reason {
    pub const ALL: [Self; 10] = [
        Self::Idle,
        Self::Requested,
        Self::TimeLimit,
        Self::PausedExpired,
        Self::LifetimeCap,
        Self::StartupFailed,
        Self::PauseFailed,
        Self::HostStopped,
        Self::HostLost,
        Self::OperatorStopped,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Requested => "requested",
            Self::TimeLimit => "time_limit",
            Self::PausedExpired => "paused_expired",
            Self::LifetimeCap => "lifetime_cap",
            Self::StartupFailed => "startup_failed",
            Self::PauseFailed => "pause_failed",
            Self::HostStopped => "host_stopped",
            Self::HostLost => "host_lost",
            Self::OperatorStopped => "operator_stopped",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

/// What may happen to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// Its machine is up and its agent answered.
    Booted,
    /// A start did not come up; the disk of a restart is kept, a half-made one is not.
    BootFailed,
    Stop,
    /// The machine has ended.
    Ended,
    Restart,
    Pause,
    Frozen,
    Wake,
    Thawed,
}

impl Event {
    pub const ALL: [Self; 9] = [
        Self::Booted,
        Self::BootFailed,
        Self::Stop,
        Self::Ended,
        Self::Restart,
        Self::Pause,
        Self::Frozen,
        Self::Wake,
        Self::Thawed,
    ];
}

/// What an event does in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Go(State),
    /// Already so, or on the way: answer the record.
    Stay,
    Refuse(Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the sandbox is not running")]
    NotRunning,
    #[error("the sandbox is not paused")]
    NotPaused,
    #[error("the sandbox is stopped")]
    Stopped,
    #[error("the sandbox is not ready yet")]
    NotReady,
    /// A report about a machine that the state says does not exist: a late message, dropped.
    #[error("the report does not fit the state")]
    Stale,
}

/// The table. `Ended` wins over everything: a machine that is gone cannot be argued with.
#[must_use]
pub fn transition(state: State, event: Event) -> Step {
    use Event as E;
    use State as S;
    use Step::{Go, Refuse, Stay};
    match (state, event) {
        (S::Starting, E::Booted) => Go(S::Running),
        (S::Starting, E::BootFailed | E::Ended) => Go(S::Stopped),
        (S::Starting, E::Stop) => Go(S::Stopping),
        (S::Starting, E::Restart) => Stay,
        (S::Starting, E::Pause) => Refuse(Refusal::NotReady),
        (S::Starting, E::Wake) => Refuse(Refusal::NotPaused),
        (S::Starting, E::Frozen | E::Thawed) => Refuse(Refusal::Stale),

        (S::Running, E::Booted | E::Thawed) => Stay,
        (S::Running, E::Stop) => Go(S::Stopping),
        (S::Running, E::Ended) => Go(S::Stopped),
        (S::Running, E::Restart) => Stay,
        (S::Running, E::Pause) => Go(S::Pausing),
        (S::Running, E::Wake) => Refuse(Refusal::NotPaused),
        (S::Running, E::BootFailed | E::Frozen) => Refuse(Refusal::Stale),

        (S::Pausing, E::Frozen) => Go(S::Paused),
        (S::Pausing, E::Pause) => Stay,
        (S::Pausing, E::Thawed) => Go(S::Running),
        (S::Pausing, E::Wake) => Go(S::Resuming),
        (S::Pausing, E::Stop) => Go(S::Stopping),
        (S::Pausing, E::Ended) => Go(S::Stopped),
        (S::Pausing, E::Restart) => Refuse(Refusal::NotReady),
        (S::Pausing, E::Booted | E::BootFailed) => Refuse(Refusal::Stale),

        (S::Paused, E::Wake) => Go(S::Resuming),
        (S::Paused, E::Pause | E::Frozen) => Stay,
        (S::Paused, E::Stop) => Go(S::Stopping),
        // A saved machine holds no process: its end is no news. One still frozen in memory is ended by its engine's word.
        (S::Paused, E::Ended) => Go(S::Stopped),
        (S::Paused, E::Restart) => Refuse(Refusal::NotRunning),
        (S::Paused, E::Booted | E::BootFailed | E::Thawed) => Refuse(Refusal::Stale),

        (S::Resuming, E::Thawed | E::Booted) => Go(S::Running),
        (S::Resuming, E::Wake | E::Restart) => Stay,
        (S::Resuming, E::Stop) => Go(S::Stopping),
        (S::Resuming, E::BootFailed) => Go(S::Paused),
        (S::Resuming, E::Ended) => Go(S::Stopped),
        (S::Resuming, E::Pause) => Refuse(Refusal::NotReady),
        (S::Resuming, E::Frozen) => Refuse(Refusal::Stale),

        (S::Stopping, E::Ended | E::BootFailed) => Go(S::Stopped),
        (S::Stopping, E::Stop) => Stay,
        (S::Stopping, E::Restart) => Refuse(Refusal::NotReady),
        (S::Stopping, E::Pause) => Refuse(Refusal::NotRunning),
        (S::Stopping, E::Wake) => Refuse(Refusal::NotPaused),
        (S::Stopping, E::Booted | E::Frozen | E::Thawed) => Refuse(Refusal::Stale),

        (S::Stopped, E::Restart) => Go(S::Starting),
        (S::Stopped, E::Stop | E::Ended) => Stay,
        (S::Stopped, E::Pause) => Refuse(Refusal::NotRunning),
        (S::Stopped, E::Wake) => Refuse(Refusal::NotPaused),
        (S::Stopped, E::Booted | E::BootFailed | E::Frozen | E::Thawed) => Refuse(Refusal::Stale),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_can_be_stopped_or_is_stopping() {
        for state in State::ALL {
            assert!(matches!(transition(state, Event::Stop), Step::Go(State::Stopping) | Step::Stay), "{state:?}");
        }
    }

    #[test]
    fn the_end_of_a_machine_leads_to_stopped_from_everywhere() {
        for state in State::ALL {
            let step = transition(state, Event::Ended);
            assert!(step == Step::Go(State::Stopped) || (step == Step::Stay && state == State::Stopped), "{state:?}");
        }
    }

    #[test]
    fn only_a_stopped_sandbox_starts_again() {
        for state in State::ALL {
            for event in Event::ALL {
                if transition(state, event) == Step::Go(State::Starting) {
                    assert_eq!((state, event), (State::Stopped, Event::Restart));
                }
            }
        }
    }

    #[test]
    fn words_and_states_are_one_to_one() {
        for state in State::ALL {
            assert_eq!(State::parse(state.as_str()), Some(state));
        }
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
    }
}
