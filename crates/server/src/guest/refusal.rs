//! Why a sandbox's agent gave no answer, and what that is called.

use std::time::Duration;

use runtime_proto::channel::ChannelError;
use runtime_proto::guest::{ErrorCode, GuestError};
use runtime_proto::node::{AskError, NodeError};

use crate::error::{ApiError, Kind};

/// Characters of a guest's message that are passed on.
const MESSAGE_SHOWN: usize = 1024;
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Why there is no answer: the machine could not be asked, or the agent did not answer well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Asked {
    #[error(transparent)]
    Node(NodeError),
    #[error(transparent)]
    Agent(#[from] AskError),
    /// It was paused meanwhile, and did not come back.
    #[error(transparent)]
    Away(#[from] ApiError),
}

impl Asked {
    /// Whether it ran is not known.
    pub(super) fn is_broken(&self) -> bool {
        match self {
            Self::Node(NodeError::Channel(error)) | Self::Agent(AskError::Channel(error)) => {
                matches!(error, ChannelError::Closed | ChannelError::Reset)
            }
            Self::Agent(AskError::Short) => true,
            Self::Node(_) | Self::Agent(_) | Self::Away(_) => false,
        }
    }

    pub(crate) fn guest_code(&self) -> Option<ErrorCode> {
        match self {
            Self::Agent(AskError::Guest(error)) => ErrorCode::try_from(error.code).ok(),
            Self::Agent(_) | Self::Node(_) | Self::Away(_) => None,
        }
    }

    /// As the API says it, where what the agent finds invalid is this field.
    pub(crate) fn with(self, field: &'static str) -> ApiError {
        match self {
            Self::Agent(error) => asked_with(field)(error),
            other => other.into(),
        }
    }

    /// As the API says it, naming the file it was about.
    pub(crate) fn about(self, path: &str) -> ApiError {
        match self {
            Self::Agent(AskError::Guest(mut error)) => {
                if !error.message.contains(path) {
                    error.message = format!("{path}: {}", error.message);
                }
                from_guest(error, "path")
            }
            other => other.into(),
        }
    }
}

impl From<Asked> for ApiError {
    fn from(error: Asked) -> Self {
        match error {
            Asked::Node(NodeError::Channel(ChannelError::TooMany)) => busy(&ChannelError::TooMany),
            Asked::Node(error) => error.into(),
            Asked::Agent(error) => from_ask(error),
            Asked::Away(error) => error,
        }
    }
}

/// For the answer to a question whose only doubtful part is this field.
pub(crate) fn asked_with(field: &'static str) -> impl Fn(AskError) -> ApiError {
    move |error| match error {
        AskError::Guest(error) => from_guest(error, field),
        other => from_ask(other),
    }
}

pub(crate) fn from_ask(error: AskError) -> ApiError {
    match error {
        AskError::Guest(error) => from_guest(error, "request"),
        AskError::Channel(ChannelError::TooMany) => busy(&ChannelError::TooMany),
        AskError::Channel(error) => ApiError::fault(Kind::HostUnavailable, "asking the sandbox's agent", &error),
        error @ (AskError::Decode(_) | AskError::Short | AskError::Unexpected) => {
            ApiError::fault(Kind::GuestFailed, "reading the answer of the sandbox's agent", &error)
        }
    }
}

fn busy(error: &ChannelError) -> ApiError {
    ApiError::fault(Kind::GuestBusy, "opening a stream to the sandbox's agent", error).retry_after(ASK_AGAIN)
}

/// A refusal of the agent under the code of the contract. Its text is the guest's: shown, and short.
fn from_guest(error: GuestError, field: &str) -> ApiError {
    let kind = match ErrorCode::try_from(error.code) {
        Ok(ErrorCode::Invalid) => return ApiError::wrong(field, shown(&error.message)),
        // The whole of arguments and variables; a single one that is too long was refused before.
        Ok(ErrorCode::TooLarge) => Kind::EnvTooLarge,
        Ok(ErrorCode::NoSuchProcess | ErrorCode::NoSuchUpload | ErrorCode::NoSuchWatch | ErrorCode::NotTraced) => {
            Kind::NotFound
        }
        Ok(ErrorCode::StillRunning) => Kind::ProcessRunning,
        Ok(ErrorCode::ProcessLimit) => Kind::ProcessLimit,
        Ok(ErrorCode::CwdNotFound) => Kind::CwdNotFound,
        Ok(ErrorCode::FileNotFound) => Kind::FileNotFound,
        Ok(ErrorCode::PermissionDenied) => Kind::PermissionDenied,
        Ok(ErrorCode::IsADirectory) => Kind::IsADirectory,
        Ok(ErrorCode::NotADirectory) => Kind::NotADirectory,
        Ok(ErrorCode::DirectoryNotEmpty) => Kind::DirectoryNotEmpty,
        Ok(ErrorCode::AlreadyExists) => Kind::AlreadyExists,
        Ok(ErrorCode::DiskFull) => Kind::DiskFull,
        Ok(ErrorCode::UploadIncomplete) => Kind::UploadIncomplete,
        Ok(ErrorCode::DigestMismatch) => Kind::DigestMismatch,
        Ok(ErrorCode::TransferLimit) => Kind::TransferLimit,
        Ok(ErrorCode::InvalidArchive) => Kind::InvalidArchive,
        Ok(ErrorCode::WatchLimit) => Kind::WatchLimit,
        Ok(ErrorCode::Unsupported) => Kind::Unavailable,
        Ok(ErrorCode::Busy) => {
            let error = AskError::Guest(error);
            return ApiError::fault(Kind::GuestBusy, "the sandbox's agent is out of room", &error)
                .retry_after(ASK_AGAIN);
        }
        Ok(ErrorCode::Internal | ErrorCode::ConnectionRefused) | Err(_) => {
            let error = AskError::Guest(error);
            return ApiError::fault(Kind::GuestFailed, "the sandbox's agent failed", &error);
        }
    };
    let text = shown(&error.message);
    let refusal = ApiError::new(kind, text);
    match kind {
        Kind::TransferLimit => refusal.hint("End or abort transfers that are under way, or ask again later."),
        Kind::WatchLimit => refusal.hint("Stop watches that are not needed; 4 may go on in a sandbox at once."),
        Kind::ProcessLimit => refusal.hint("End processes that are not needed; 1,024 may live in a sandbox at once."),
        Kind::ProcessRunning => refusal.hint("Wait for its end, or end it."),
        Kind::DiskFull => refusal.hint("Remove files, or use a sandbox with a larger diskMiB."),
        Kind::EnvTooLarge => refusal.hint("The kernel bounds arguments and variables; write large values to a file."),
        Kind::Unavailable => refusal.hint("This sandbox runs an older agent; a new sandbox has it."),
        _ => refusal,
    }
}

fn shown(message: &str) -> String {
    message.chars().take(MESSAGE_SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_agent_have_the_contracts_codes() {
        use ErrorCode as E;
        for (code, status, word) in [
            (E::Internal, 502, "guest_failed"),
            (E::Invalid, 400, "invalid_request"),
            (E::NoSuchProcess, 404, "not_found"),
            (E::ProcessLimit, 409, "process_limit"),
            (E::CwdNotFound, 400, "cwd_not_found"),
            (E::FileNotFound, 404, "file_not_found"),
            (E::PermissionDenied, 403, "permission_denied"),
            (E::IsADirectory, 409, "is_a_directory"),
            (E::NotADirectory, 409, "not_a_directory"),
            (E::DirectoryNotEmpty, 409, "directory_not_empty"),
            (E::AlreadyExists, 409, "already_exists"),
            (E::DiskFull, 409, "disk_full"),
            (E::Busy, 503, "guest_busy"),
            (E::Unsupported, 501, "unavailable"),
            (E::TooLarge, 400, "env_too_large"),
            (E::NoSuchUpload, 404, "not_found"),
            (E::UploadIncomplete, 409, "upload_incomplete"),
            (E::DigestMismatch, 409, "digest_mismatch"),
            (E::TransferLimit, 409, "transfer_limit"),
            (E::InvalidArchive, 400, "invalid_archive"),
            (E::NoSuchWatch, 404, "not_found"),
            (E::WatchLimit, 409, "watch_limit"),
            (E::StillRunning, 409, "process_running"),
            (E::NotTraced, 404, "not_found"),
        ] {
            let error = from_guest(GuestError::new(code, "why"), "path");
            assert_eq!((error.status(), error.kind().code()), (status, word), "{code:?}");
        }
        let unknown = from_guest(GuestError { code: 999, message: "secret path".to_owned() }, "path");
        assert_eq!(unknown.kind(), Kind::GuestFailed);
        assert!(!unknown.envelope("r").to_string().contains("secret path"));
    }

    #[test]
    fn a_file_is_always_named_and_a_guests_text_is_bounded() {
        let asked = |message: &str| Asked::Agent(AskError::Guest(GuestError::new(ErrorCode::FileNotFound, message)));
        for message in ["no such file", "opening /a/b: no such file"] {
            assert!(asked(message).about("/a/b").to_string().contains("/a/b"));
        }
        let long = asked(&"\u{1b}x".repeat(100_000)).about("/a/b").to_string();
        assert!(long.len() < 2_000 && !long.contains('\u{1b}'));
    }

    #[test]
    fn only_a_broken_channel_is_asked_again() {
        for (error, broken) in [
            (Asked::Node(NodeError::Channel(ChannelError::Closed)), true),
            (Asked::Agent(AskError::Channel(ChannelError::Reset)), true),
            (Asked::Agent(AskError::Short), true),
            (Asked::Node(NodeError::Channel(ChannelError::TooMany)), false),
            (Asked::Node(NodeError::NotRunning), false),
            (Asked::Node(NodeError::Busy(String::new())), false),
            (Asked::Agent(AskError::Unexpected), false),
        ] {
            assert_eq!(error.is_broken(), broken, "{error:?}");
        }
    }
}
