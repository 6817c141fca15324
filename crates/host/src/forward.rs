//! A program that stands in for another: it notes signals to pass on, and ends as the other ended.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The write end, for the handler.
static PIPE: AtomicI32 = AtomicI32::new(-1);

const PASSED_ON: [libc::c_int; 10] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGALRM,
    libc::SIGCONT,
    libc::SIGTSTP,
];

/// Signals that came, as bytes on a pipe: readable when there is one.
#[derive(Debug)]
pub struct Signals {
    read: OwnedFd,
    _write: OwnedFd,
}

extern "C" fn note(signal: libc::c_int) {
    let byte = signal as u8;
    // SAFETY: write is allowed in a handler; the byte lives; a full pipe or a wrong descriptor only fails. The errno
    // that the interrupted code may be about to read is put back.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::write(PIPE.load(Ordering::Relaxed), (&raw const byte).cast(), 1);
        *errno = before;
    }
}

impl Signals {
    /// From now on the signals that are passed on are noted here and do nothing else. Once per process. A signal that
    /// the caller had us ignore stays ignored.
    pub fn catch() -> io::Result<Self> {
        let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
        let (read, write) = rustix::pipe::pipe_with(flags)?;
        PIPE.store(write.as_raw_fd(), Ordering::Relaxed);
        for signal in PASSED_ON {
            // SAFETY: the structures are plain data, zero is valid for them; the handler only makes calls that are
            // allowed in one.
            unsafe {
                let mut old: libc::sigaction = std::mem::zeroed();
                if libc::sigaction(signal, std::ptr::null(), &raw mut old) == 0 && old.sa_sigaction == libc::SIG_IGN {
                    continue;
                }
                let mut new: libc::sigaction = std::mem::zeroed();
                new.sa_sigaction = note as *const () as usize;
                new.sa_flags = libc::SA_RESTART;
                if libc::sigaction(signal, &raw const new, std::ptr::null_mut()) != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
        }
        Ok(Self { read, _write: write })
    }

    /// The next signal that came, if one did.
    #[must_use]
    pub fn next(&self) -> Option<u8> {
        let mut byte = [0];
        (rustix::io::read(&self.read, &mut byte) == Ok(1)).then_some(byte[0])
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

/// Ends this process by a signal; returns only if the signal does not end processes.
pub fn die_of(signal: i32) {
    // SAFETY: plain numbers; restoring a default and raising a signal touch no memory of ours. No core: it would be
    // ours, not the command's.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// What the kernel sends for a mistake of ours, and what somebody may send as well: these need a handler.
const FAULTS: [libc::c_int; 7] =
    [libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS];

extern "C" fn disregard(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo; signal() is allowed in a handler.
    unsafe {
        // Positive: the kernel says that we did something wrong. It happens again at the return, with its true effect.
        if (*info).si_code > 0 {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// From now on a signal that somebody sends does nothing to this process, but SIGKILL and SIGSTOP; for a first process,
/// which Linux protects by itself and gVisor does not. Call it before there are other threads. SIGCHLD is left alone.
///
/// Blocked and not handled: a burst of handled realtime signals ends gVisor's kernel. Blocked and not ignored: programs
/// started later would inherit that, and `spawn` unblocks.
pub fn disregard_signals() -> io::Result<()> {
    for signal in FAULTS {
        // SAFETY: plain data, zero is valid; the handler only makes calls that are allowed in one.
        unsafe {
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = disregard as *const () as usize;
            new.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
            if libc::sigaction(signal, &raw const new, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    let bit = |signal: libc::c_int| 1_u64 << (signal - 1);
    let heard = FAULTS.into_iter().chain([libc::SIGCHLD]).map(bit).fold(0, std::ops::BitOr::bitor);
    let blocked = !heard;
    // Not by the C library, which keeps two signals to itself and does not block them.
    // SAFETY: the kernel reads one 64-bit mask and writes nothing.
    let done = unsafe {
        let nothing = std::ptr::null_mut::<u8>();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const blocked, nothing, size_of::<u64>())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
