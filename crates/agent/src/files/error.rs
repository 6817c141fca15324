//! What went wrong with a file: the step, the path, the kernel's word; and which answer that is.

use std::io;
use std::path::{Path, PathBuf};

use runtime_proto::guest::{ErrorCode, GuestError};
use rustix::io::Errno;

#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("{step} {}", path.display())]
    Kernel {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} {why}", path.display())]
    Refused { code: ErrorCode, path: PathBuf, why: &'static str },
}

impl FileError {
    pub(crate) fn new(step: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Kernel { step, path: path.to_owned(), source }
    }

    pub(crate) fn refused(code: ErrorCode, path: &Path, why: &'static str) -> Self {
        Self::Refused { code, path: path.to_owned(), why }
    }

    /// For `map_err` on a kernel call.
    pub(crate) fn at<E: Into<io::Error>>(step: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::new(step, path, source.into())
    }

    pub(crate) fn is(&self, errno: Errno) -> bool {
        matches!(self, Self::Kernel { source, .. } if source.raw_os_error() == Some(errno.raw_os_error()))
    }

    pub(crate) fn to_guest(&self) -> GuestError {
        match self {
            Self::Refused { code, .. } => GuestError::new(*code, self.to_string()),
            Self::Kernel { source, .. } => GuestError::new(code_of(source), format!("{self}: {source}")),
        }
    }
}

fn code_of(error: &io::Error) -> ErrorCode {
    let Some(errno) = error.raw_os_error().map(Errno::from_raw_os_error) else { return ErrorCode::Internal };
    match errno {
        Errno::NOENT => ErrorCode::FileNotFound,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorCode::PermissionDenied,
        Errno::ISDIR => ErrorCode::IsADirectory,
        Errno::NOTDIR => ErrorCode::NotADirectory,
        Errno::NOTEMPTY => ErrorCode::DirectoryNotEmpty,
        Errno::EXIST => ErrorCode::AlreadyExists,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorCode::DiskFull,
        // Nothing of these passes by itself: a socket or a device that cannot be opened, a program that runs.
        Errno::NAMETOOLONG
        | Errno::LOOP
        | Errno::INVAL
        | Errno::XDEV
        | Errno::BUSY
        | Errno::NXIO
        | Errno::NODEV
        | Errno::NOTSUP
        | Errno::TXTBSY
        | Errno::MLINK => ErrorCode::Invalid,
        Errno::NOMEM | Errno::MFILE | Errno::NFILE => ErrorCode::Busy,
        _ => ErrorCode::Internal,
    }
}
