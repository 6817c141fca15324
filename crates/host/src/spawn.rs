//! Starting a program without copying the caller: the child borrows our memory until it has become the program.
//!
//! A plain fork copies page tables, which is what makes it slow under a user-space kernel. Here the child runs on a
//! stack of its own inside our address space (`CLONE_VM | CLONE_VFORK`), makes only raw system calls, and either becomes
//! the program or leaves behind which step failed.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::substitute::Substitute;
use crate::trace::Held;

pub const RLIMIT_NPROC: u32 = libc::RLIMIT_NPROC;
pub const RLIMIT_NOFILE: u32 = libc::RLIMIT_NOFILE;

/// Room for the child's few calls; the kernel gives pages only as they are touched.
const STACK: usize = 64 * 1024;
/// Descriptors below this number may be targets; sources are moved above it first.
const TARGETS: RawFd = 16;

/// Who the program runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// A limit (`RLIMIT_*`) given to the program.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    pub resource: u32,
    pub soft: u64,
    pub hard: u64,
}

/// What to start. Every descriptor that is not named here must be close-on-exec.
#[derive(Debug)]
pub struct Program<'a> {
    /// Tried in order until one exists, as a shell walks its PATH.
    pub paths: &'a [CString],
    pub argv: &'a [CString],
    pub envp: &'a [CString],
    /// Ours and the number it gets there (below 16).
    pub fds: &'a [(BorrowedFd<'a>, RawFd)],
    pub cwd: Option<&'a CStr>,
    pub identity: Option<&'a Identity>,
    pub limits: &'a [Limit],
    /// A session and process group of its own.
    pub new_session: bool,
    /// Make this descriptor (after `fds`) the session's terminal.
    pub terminal: Option<RawFd>,
    /// Sent to the program when its parent's thread ends.
    pub parent_death_signal: Option<i32>,
    /// Written by the child just before it becomes the program, so that its pid is known even if the program's first
    /// act is to kill its parent.
    pub announce: Option<Announce<'a>>,
    /// The doors of control groups, through which it goes first of all.
    pub groups: &'a [OwnedFd],
    /// One file that it opens is another.
    pub substitute: Option<&'a Substitute>,
    /// It is held until its tracer has it; see [`crate::trace`].
    pub traced: Option<&'a Held>,
}

/// Twelve bytes of which the middle four become the pid.
#[derive(Debug, Clone, Copy)]
pub struct Announce<'a> {
    pub to: BorrowedFd<'a>,
    pub message: [u8; 12],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Step {
    Clone = 1,
    Descriptors = 2,
    Session = 3,
    Limits = 4,
    Identity = 5,
    Directory = 6,
    Exec = 7,
    Substitute = 8,
    Groups = 9,
    Trace = 10,
}

impl Step {
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        let first = [Self::Clone, Self::Descriptors, Self::Session, Self::Limits];
        let last = [Self::Identity, Self::Directory, Self::Exec, Self::Substitute, Self::Groups, Self::Trace];
        first.into_iter().chain(last).find(|step| *step as i32 == number)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("starting a program failed at the step {step:?}")]
pub struct SpawnError {
    pub step: Step,
    #[source]
    pub source: io::Error,
}

/// Everything the child needs, made before it exists: it may neither allocate nor take a lock.
struct Child {
    paths: Vec<*const libc::c_char>,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    fds: Vec<(RawFd, RawFd)>,
    cwd: *const libc::c_char,
    ids: Option<(u32, u32, Vec<u32>)>,
    limits: Vec<(u32, [u64; 2])>,
    new_session: bool,
    terminal: Option<RawFd>,
    death_signal: Option<i32>,
    announce: Option<(RawFd, [u8; 12])>,
    groups: Vec<RawFd>,
    substitute: Option<(libc::sock_fprog, RawFd)>,
    traced: Option<(libc::sock_fprog, RawFd)>,
    failed: (i32, i32),
}

/// Starts the program and returns its pid. Blocks until the child has become the program or failed.
pub fn spawn(program: &Program<'_>) -> Result<i32, SpawnError> {
    let fail = |step, errno| SpawnError { step, source: io::Error::from_raw_os_error(errno) };
    if program.fds.iter().any(|(_, target)| !(0..TARGETS).contains(target)) {
        return Err(fail(Step::Descriptors, libc::EBADF));
    }
    let pointers = |list: &[CString]| {
        let mut out: Vec<_> = list.iter().map(|item| item.as_ptr()).collect();
        out.push(std::ptr::null());
        out
    };
    let mut child = Child {
        paths: pointers(program.paths),
        argv: pointers(program.argv),
        envp: pointers(program.envp),
        fds: program.fds.iter().map(|(fd, target)| (fd.as_raw_fd(), *target)).collect(),
        cwd: program.cwd.map_or(std::ptr::null(), CStr::as_ptr),
        ids: program.identity.map(|id| (id.uid, id.gid, id.groups.clone())),
        limits: program.limits.iter().map(|limit| (limit.resource, [limit.soft, limit.hard])).collect(),
        new_session: program.new_session,
        terminal: program.terminal,
        death_signal: program.parent_death_signal,
        announce: program.announce.map(|announce| (announce.to.as_raw_fd(), announce.message)),
        groups: program.groups.iter().map(AsRawFd::as_raw_fd).collect(),
        substitute: program.substitute.map(|wanted| (as_program(&wanted.filter), wanted.socket.as_raw_fd())),
        traced: program.traced.map(|held| (as_program(&held.filter), held.socket.as_raw_fd())),
        failed: (0, 0),
    };
    let mut stack: Vec<u128> = vec![0; STACK / size_of::<u128>()];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let argument: *mut Child = &raw mut child;

    // Signals stay blocked across the clone, so that no handler of ours runs in the child on shared memory.
    let mut all: libc::sigset_t = unset();
    let mut old: libc::sigset_t = unset();
    // SAFETY: both sets are live locals; sigfillset and pthread_sigmask only write through them.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
    }
    // SAFETY: the stack is owned and 16-byte aligned, and its end is passed because stacks grow down. CLONE_VFORK keeps
    // this thread suspended until the child has exec'd or exited, so `child` and `stack` outlive every use, and the
    // child is the only one to touch them meanwhile.
    let pid = unsafe { libc::clone(run, stack.as_mut_ptr_range().end.cast(), flags, argument.cast()) };
    let errno = io::Error::last_os_error();
    // SAFETY: `old` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut()) };
    if pid < 0 {
        return Err(SpawnError { step: Step::Clone, source: errno });
    }
    // SAFETY: `argument` points to `child`, which lives; volatile because another process wrote it.
    let (step, errno) = unsafe { std::ptr::read_volatile(&raw const (*argument).failed) };
    drop(stack);
    match Step::from_number(step) {
        None => Ok(pid),
        Some(step) => {
            // SAFETY: waits for our own child, which has exited; no status is wanted.
            while unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) } < 0
                && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
            {}
            Err(fail(step, errno))
        }
    }
}

/// Takes over a descriptor that this program was started with, close-on-exec from now on. Call once per number.
#[must_use]
pub fn take_inherited(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: a query and a flag change on a number; a wrong one gives an error and nothing else.
    let open = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
    // SAFETY: it is open, was opened by our parent for us, and by contract this is called once per number.
    open.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// The kernel only reads it.
fn as_program(filter: &[libc::sock_filter]) -> libc::sock_fprog {
    libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() }
}

fn unset() -> libc::sigset_t {
    // SAFETY: a signal set is plain bits for which zero is valid.
    unsafe { std::mem::zeroed() }
}

extern "C" fn run(argument: *mut libc::c_void) -> libc::c_int {
    let child: *mut Child = argument.cast();
    // SAFETY: `spawn` passes a live `Child` and stays suspended until we are gone.
    let failed = unsafe { become_program(&*child) };
    // SAFETY: as above; written once, just before the exit that wakes `spawn`.
    unsafe {
        std::ptr::write_volatile(&raw mut (*child).failed, failed);
        libc::syscall(libc::SYS_exit_group, 127);
    }
    0
}

fn errno() -> i32 {
    // SAFETY: the thread's errno; the parent thread is suspended, so sharing it harms nobody.
    unsafe { *libc::__errno_location() }
}

/// Runs in the child. Returns the step that failed; on success it does not return.
///
/// # Safety
/// Only between clone and exec, with pointers that live: no allocation, no locks, no libc call that keeps state.
unsafe fn become_program(child: &Child) -> (i32, i32) {
    // SAFETY: raw system calls on values prepared by the parent; every pointer is to memory the parent keeps alive.
    unsafe {
        if let Some(signal) = child.death_signal {
            libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, signal);
        }
        for door in &child.groups {
            // Nought is oneself.
            if libc::syscall(libc::SYS_write, *door, c"0".as_ptr(), 1) < 0 {
                return (Step::Groups as i32, errno());
            }
        }
        // Ignored signals would be inherited by the program. The kernel's own sigaction layout: all zero is "default".
        let default = [0_u64; 4];
        for signal in [libc::SIGPIPE, libc::SIGCHLD, libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGQUIT] {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u8>(), 8);
        }
        if child.new_session && libc::syscall(libc::SYS_setsid) < 0 {
            return (Step::Session as i32, errno());
        }
        for &(source, target) in &child.fds {
            let mut from = source;
            if source < TARGETS {
                from = libc::syscall(libc::SYS_fcntl, source, libc::F_DUPFD_CLOEXEC, TARGETS) as RawFd;
                if from < 0 {
                    return (Step::Descriptors as i32, errno());
                }
            }
            if libc::syscall(libc::SYS_dup2, from, target) < 0 {
                return (Step::Descriptors as i32, errno());
            }
        }
        if let Some(fd) = child.terminal
            && libc::syscall(libc::SYS_ioctl, fd, libc::TIOCSCTTY, 0) < 0
        {
            return (Step::Session as i32, errno());
        }
        for (resource, values) in &child.limits {
            if libc::syscall(libc::SYS_prlimit64, 0, *resource, values.as_ptr(), std::ptr::null::<u8>()) < 0 {
                return (Step::Limits as i32, errno());
            }
        }
        // While it still may install a filter that holds for programs with more rights than it.
        if let Some((filter, socket)) = &child.traced {
            let errno = crate::trace::hold(filter, *socket);
            if errno != 0 {
                return (Step::Trace as i32, errno);
            }
        }
        if let Some((uid, gid, groups)) = &child.ids
            && (libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) < 0
                || libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid) < 0
                || libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid) < 0)
        {
            return (Step::Identity as i32, errno());
        }
        if !child.cwd.is_null() && libc::syscall(libc::SYS_chdir, child.cwd) < 0 {
            return (Step::Directory as i32, errno());
        }
        libc::syscall(libc::SYS_umask, 0o022);
        let none = 0_u64;
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, std::ptr::null::<u8>(), 8);
        if let Some((to, mut message)) = child.announce {
            let pid = (libc::syscall(libc::SYS_getpid) as i32).to_le_bytes();
            message[4..8].copy_from_slice(&pid);
            if libc::syscall(libc::SYS_write, to, message.as_ptr(), message.len()) != message.len() as i64 {
                return (Step::Exec as i32, libc::EPIPE);
            }
        }
        if let Some((filter, socket)) = &child.substitute {
            let errno = crate::substitute::install(filter, *socket);
            if errno != 0 {
                return (Step::Substitute as i32, errno);
            }
        }
        let mut found = libc::ENOENT;
        for &path in &child.paths {
            if path.is_null() {
                break;
            }
            libc::syscall(libc::SYS_execve, path, child.argv.as_ptr(), child.envp.as_ptr());
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => found = libc::EACCES,
                other => return (Step::Exec as i32, other),
            }
        }
        (Step::Exec as i32, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    fn c(text: &str) -> CString {
        CString::new(text).unwrap()
    }

    fn start(paths: &[&str], argv: &[&str], cwd: Option<&str>) -> Result<String, SpawnError> {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let paths: Vec<_> = paths.iter().map(|s| c(s)).collect();
        let argv: Vec<_> = argv.iter().map(|s| c(s)).collect();
        let cwd = cwd.map(c);
        let pid = spawn(&Program {
            paths: &paths,
            argv: &argv,
            envp: &[c("A=b")],
            fds: &[(write.as_fd(), 1)],
            cwd: cwd.as_deref(),
            identity: None,
            limits: &[Limit { resource: libc::RLIMIT_CORE, soft: 0, hard: 0 }],
            new_session: true,
            terminal: None,
            parent_death_signal: None,
            announce: None,
            groups: &[],
            substitute: None,
            traced: None,
        })?;
        drop(write);
        let mut out = String::new();
        std::fs::File::from(read).read_to_string(&mut out).unwrap();
        crate::reap::wait_for(pid).unwrap();
        Ok(out)
    }

    #[test]
    fn the_first_path_that_exists_is_run_with_what_was_asked() {
        let out = start(&["/nowhere/sh", "/bin/sh"], &["sh", "-c", "pwd; echo $A; ulimit -c"], Some("/usr"));
        assert_eq!(out.unwrap(), "/usr\nb\n0\n");
    }

    #[test]
    fn a_program_goes_through_the_doors_of_its_groups_by_itself() {
        let door = tempfile::NamedTempFile::new().unwrap();
        let doors = [OwnedFd::from(door.reopen().unwrap())];
        let start = |groups: &[OwnedFd]| {
            spawn(&Program {
                paths: &[c("/bin/true")],
                argv: &[c("true")],
                envp: &[],
                fds: &[],
                cwd: None,
                identity: Some(&Identity { uid: 12_345, gid: 12_345, groups: Vec::new() }),
                limits: &[],
                new_session: true,
                terminal: None,
                parent_death_signal: None,
                announce: None,
                groups,
                substitute: None,
                traced: None,
            })
        };
        crate::reap::wait_for(start(&doors).unwrap()).unwrap();
        assert_eq!(std::fs::read_to_string(door.path()).unwrap(), "0", "itself, while it still may");
        let closed = [OwnedFd::from(std::fs::File::open(door.path()).unwrap())];
        assert_eq!(start(&closed).unwrap_err().step, Step::Groups);
    }

    #[test]
    fn a_failure_names_its_step_and_leaves_no_child() {
        let missing = start(&["/nowhere/sh"], &["sh"], None).unwrap_err();
        assert_eq!((missing.step, missing.source.raw_os_error()), (Step::Exec, Some(libc::ENOENT)));
        let refused = start(&["/etc/passwd", "/nowhere"], &["x"], None).unwrap_err();
        assert_eq!((refused.step, refused.source.raw_os_error()), (Step::Exec, Some(libc::EACCES)));
        let nowhere = start(&["/bin/sh"], &["sh"], Some("/nowhere")).unwrap_err();
        assert_eq!(nowhere.step, Step::Directory);
    }
}
