//! The exit code for the way a command ended.

use runtime_api::client::Exit;

/// A limit ran out.
pub(crate) const TIMED_OUT: u8 = 124;

/// The command's own code; 124 for a timeout, 128 and the signal for a killed one, 1 for one that is not known or whose
/// output was lost.
pub(crate) fn code(exit: &Exit, output_lost: bool) -> u8 {
    if exit.timed_out {
        return TIMED_OUT;
    }
    match exit.exit_code {
        None => 1,
        Some(0) if output_lost => 1,
        Some(code) if code < 0 => u8::try_from(code.unsigned_abs().saturating_add(128)).unwrap_or(u8::MAX),
        Some(code) => u8::try_from(code).unwrap_or(u8::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        let ended = |exit_code| Exit { exit_code, ..Exit::default() };
        for (exit_code, lost, expected) in [
            (Some(0), false, 0),
            (Some(0), true, 1),
            (Some(3), true, 3),
            (Some(255), false, 255),
            (Some(256), false, 255),
            (Some(-9), false, 137),
            (Some(-15), false, 143),
            (Some(i64::MIN), false, 255),
            (None, false, 1),
        ] {
            assert_eq!(code(&ended(exit_code), lost), expected, "{exit_code:?} {lost}");
        }
        assert_eq!(code(&Exit { timed_out: true, exit_code: Some(-9), ..Exit::default() }, false), 124);
    }
}
