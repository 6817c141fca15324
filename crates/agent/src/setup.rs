//! The first steps of a first process: what a sandbox needs and may not have yet.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};

use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};

use crate::log::log;
use crate::users::{SANDBOX_GID, SANDBOX_UID};

/// Where the agent's sockets are.
pub(crate) const RUN_DIR: &str = "/run/runtime";
const WANTED_FILES: u64 = 1 << 20;
/// Of all users together: what the watches of the API may need, and as much again.
const MOST_INOTIFY_WATCHES: u32 = 512 * 1024;

/// gVisor, told by the version it has shown for ever.
pub(crate) fn user_space_kernel() -> bool {
    let uname = rustix::system::uname();
    uname.release().to_bytes() == b"4.4.0" && uname.version().to_bytes() == b"#1 SMP Sun Jan 10 15:06:54 PST 2016"
}

/// Takes back the limits that a guest with root may have put on us; a command that could do so runs without the
/// capability that raising them needs.
pub(crate) fn restore_limits() {
    for resource in [Resource::Nproc, Resource::Fsize, Resource::As, Resource::Data, Resource::Stack, Resource::Memlock]
    {
        let _ = setrlimit(resource, Rlimit { current: None, maximum: None });
    }
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(WANTED_FILES), maximum: Some(WANTED_FILES) });
}

/// None of this can fail the start: what is missing shows where it is needed.
pub(crate) fn prepare() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(WANTED_FILES, |maximum| maximum.min(WANTED_FILES));
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
    if !getpid().is_init() {
        return;
    }
    if let Err(error) = runtime_host::forward::disregard_signals() {
        log!("taking the signals over failed: {error}");
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let _ = rustix::process::chdir("/");
    // By itself Linux allows fewer on a small machine than one watch may need. gVisor has no such limit, and no such file.
    let _ = std::fs::write("/proc/sys/fs/inotify/max_user_watches", MOST_INOTIFY_WATCHES.to_string());
    if let Err(error) = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(RUN_DIR) {
        log!("making {RUN_DIR} failed: {error}");
    }
    crate::uploads::sweep_left();
    let workspace = "/workspace";
    let _ = std::fs::create_dir_all(workspace);
    if std::fs::metadata(workspace).is_ok_and(|meta| meta.uid() != SANDBOX_UID)
        && let Err(error) = std::os::unix::fs::chown(workspace, Some(SANDBOX_UID), Some(SANDBOX_GID))
    {
        log!("giving {workspace} to its user failed: {error}");
    }
}

/// The two ends to the host, set not to block. Both numbers are then free for nothing else: they stay open.
pub(crate) fn channel() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let stdin = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let stdout = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    for fd in [&stdin, &stdout] {
        let flags = rustix::fs::fcntl_getfl(fd.as_fd())?;
        rustix::fs::fcntl_setfl(fd.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
    }
    // Anybody who printed by mistake would break the frames.
    let null = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok((stdin, stdout))
}
