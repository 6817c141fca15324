//! Following what a program, and all that it starts, asks of the kernel about files.
//!
//! A seccomp filter has the kernel stop a thread at the calls that open or make names of files, and at no other; its
//! tracer looks at what is asked, lets the call go on, and looks at what came of it. The program starts held: it may not
//! become itself before its tracer has it ([`Tracing::attach`]), so that no call slips through. What it starts is traced
//! from its first instruction. Should the tracer die, so does all that it traces: without one, those calls fail.
//!
//! Only the thread that attached may ask about what it traces. A 32-bit program is not stopped.

mod calls;

use std::ffi::c_long;
use std::io::{self, Read, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

pub use calls::{NO_DIRECTORY, Wanted};

use crate::reap::End;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// Where the kernel shows a filter the call and the architecture.
const CALL: u32 = 0;
const ARCH: u32 = 4;
const PAGE: u64 = 4096;

/// For [`crate::spawn::Program::traced`].
#[derive(Debug)]
pub struct Held {
    pub(crate) filter: Box<[libc::sock_filter]>,
    /// Over which the child says who it is, and waits.
    pub(crate) socket: OwnedFd,
}

/// The tracer's side.
#[derive(Debug)]
pub struct Tracing {
    socket: UnixStream,
}

/// What a look for news of children and traced threads found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// A process ended, or one thread of one.
    Ended(i32, End),
    Stopped(Stop),
    NoneYet,
    /// There is neither a child nor a traced thread.
    NobodyLeft,
}

/// A thread that stands still until it is told to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    pub thread: i32,
    pub why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// At a call of the filter, before it is made.
    Calling,
    /// On the way into that call or out of it, if it was told to stop there.
    Called,
    /// It has become another program.
    Program,
    /// With its whole process, as told by a signal.
    Stopping,
    /// Before a signal is delivered.
    Signal(i32),
    Other,
}

/// A call as it stands in the registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub number: c_long,
    pub arguments: [u64; 6],
    pub result: i64,
}

/// Both sides of one program's trace.
pub fn prepare() -> io::Result<(Held, Tracing)> {
    let (ours, theirs) = UnixStream::pair()?;
    Ok((Held { filter: filter(), socket: theirs.into() }, Tracing { socket: ours }))
}

fn filter() -> Box<[libc::sock_filter]> {
    let word = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at: u32| word(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let done = |value: u32| word(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let count = calls::NUMBERS.len();
    // After the comparisons stand two ends: first the one that allows.
    let mut words = vec![load(ARCH), word(is, 0, (1 + count) as u8, ARCHITECTURE), load(CALL)];
    for (at, number) in calls::NUMBERS.iter().enumerate() {
        words.push(word(is, (count - at) as u8, 0, *number as u32));
    }
    words.extend([done(libc::SECCOMP_RET_ALLOW), done(libc::SECCOMP_RET_TRACE)]);
    words.into()
}

impl Tracing {
    /// Waits for the held child, takes it, and lets it become the program. While this waits another thread starts it.
    pub fn attach(mut self) -> io::Result<i32> {
        let mut pid = [0; 4];
        self.socket.read_exact(&mut pid)?;
        let pid = i32::from_ne_bytes(pid);
        let options = libc::PTRACE_O_TRACESECCOMP
            | libc::PTRACE_O_TRACEEXEC
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACESYSGOOD
            | libc::PTRACE_O_EXITKILL;
        ask(libc::PTRACE_SEIZE as c_long, pid, 0, options as u64)?;
        self.socket.write_all(&[1])?;
        Ok(pid)
    }
}

/// The next news, without waiting; what ended is collected.
pub fn news() -> io::Result<News> {
    loop {
        let mut status = 0;
        // SAFETY: `status` lives through the call, which only writes to it.
        let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WNOHANG) };
        if thread < 0 {
            match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(News::NobodyLeft),
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            }
        }
        return Ok(match thread {
            0 => News::NoneYet,
            _ if libc::WIFEXITED(status) => News::Ended(thread, End::Code(libc::WEXITSTATUS(status))),
            _ if libc::WIFSIGNALED(status) => News::Ended(thread, End::Signal(libc::WTERMSIG(status))),
            _ => News::Stopped(Stop { thread, why: why(status) }),
        });
    }
}

fn why(status: i32) -> Why {
    let signal = (status >> 8) & 0xff;
    match status >> 16 {
        0 if signal == libc::SIGTRAP | 0x80 => Why::Called,
        0 => Why::Signal(signal),
        libc::PTRACE_EVENT_SECCOMP => Why::Calling,
        libc::PTRACE_EVENT_EXEC => Why::Program,
        libc::PTRACE_EVENT_STOP if matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) => {
            Why::Stopping
        }
        _ => Why::Other,
    }
}

impl Stop {
    /// Lets it run, with this signal if there is one. That it was killed meanwhile is no error here or below: that is
    /// its next news.
    pub fn go_on(&self, signal: Option<i32>) {
        let _ = ask(libc::PTRACE_CONT as c_long, self.thread, 0, signal.unwrap_or(0) as u64);
    }

    /// Lets it run to the next edge of the call that it is at.
    pub fn step(&self) {
        let _ = ask(libc::PTRACE_SYSCALL as c_long, self.thread, 0, 0);
    }

    /// Leaves it stopped until a signal says otherwise.
    pub fn stay(&self) {
        let _ = ask(libc::PTRACE_LISTEN as c_long, self.thread, 0, 0);
    }

    /// The call that it is at.
    #[must_use]
    pub fn call(&self) -> Option<Call> {
        // SAFETY: plain numbers, for which zero is valid.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let mut place =
            libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_of::<libc::user_regs_struct>() };
        const REGISTERS: u64 = 1;
        ask(libc::PTRACE_GETREGSET as c_long, self.thread, REGISTERS, (&raw mut place) as u64).ok()?;
        Some(calls::from_registers(&registers))
    }

    /// What this call wants of a file; nothing if that is nothing we tell of.
    #[must_use]
    pub fn wanted(&self, call: &Call) -> Option<Wanted> {
        calls::wanted(call, |at| {
            let mut word = [0; 8];
            (self.peek(at, &mut word) == word.len()).then(|| u64::from_ne_bytes(word))
        })
    }

    /// The text in its memory there, without the NUL that ends it; nothing if it is longer than `most`.
    #[must_use]
    pub fn text(&self, mut at: u64, most: usize) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while text.len() <= most {
            // Page by page: what follows the text may be nobody's.
            let step = (PAGE - at % PAGE).min(256) as usize;
            let mut piece = [0; 256];
            let got = self.peek(at, &mut piece[..step]);
            let piece = &piece[..got];
            if let Some(end) = piece.iter().position(|byte| *byte == 0) {
                text.extend_from_slice(&piece[..end]);
                return (text.len() <= most).then_some(text);
            }
            if got < step {
                return None;
            }
            text.extend_from_slice(piece);
            at = at.checked_add(step as u64)?;
        }
        None
    }

    /// How many bytes of its memory were read.
    fn peek(&self, at: u64, into: &mut [u8]) -> usize {
        let ours = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let theirs = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: into.len() };
        // SAFETY: `ours` is a live buffer of that length; `theirs` is only a number here, and the kernel checks it
        // against the other's memory.
        let got = unsafe { libc::process_vm_readv(self.thread, &raw const ours, 1, &raw const theirs, 1, 0) };
        usize::try_from(got).unwrap_or(0)
    }
}

/// One question about a traced thread. Which of the last two are addresses of ours depends on the request: the callers
/// above pass live ones.
fn ask(request: c_long, thread: i32, address: u64, data: u64) -> io::Result<()> {
    // SAFETY: the kernel reads or writes at most what `request` says at `data`, which the callers keep alive.
    match unsafe { libc::syscall(libc::SYS_ptrace, request, c_long::from(thread), address, data) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// In the child, between clone and exec: says who it is, waits until it is traced, installs the filter. Returns the
/// error's number, or zero.
///
/// # Safety
/// As for everything in [`crate::spawn`]'s child: the pointers live, and nothing else of the process is touched.
pub(crate) unsafe fn hold(filter: &libc::sock_fprog, socket: RawFd) -> i32 {
    // SAFETY: raw system calls on prepared memory and on locals that live until they return.
    unsafe {
        let errno = || *libc::__errno_location();
        let pid = (libc::syscall(libc::SYS_getpid) as i32).to_ne_bytes();
        if libc::syscall(libc::SYS_write, socket, pid.as_ptr(), pid.len()) != pid.len() as c_long {
            return errno();
        }
        let mut byte = 0_u8;
        if libc::syscall(libc::SYS_read, socket, &raw mut byte, 1) != 1 {
            return libc::EPERM;
        }
        let filter: *const libc::sock_fprog = filter;
        if libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, filter) < 0 { errno() } else { 0 }
    }
}

#[cfg(test)]
mod tests;
