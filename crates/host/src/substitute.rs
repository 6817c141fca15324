//! A program that opens a file for writing though it only ever reads it, and cannot be told otherwise: in place of what
//! it asked for it gets a descriptor that cannot write.
//!
//! A seccomp filter, installed before the program's first instruction, has the kernel hold each plain `open` for reading
//! and writing and ask its parent ([`Asked::give`]), which puts in the descriptor at the one path that is meant. Nothing
//! is kept safe by the filter: that is for the descriptor's own mode, and the file's, under which the program could not
//! have opened it. To give back room in that file is a success that changes nothing, since the program could not.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::fdpass;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// Where the kernel shows a filter the call, the architecture, and the lower half of each argument.
const CALL: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

/// For [`crate::spawn::Program::substitute`].
#[derive(Debug)]
pub struct Substitute {
    pub(crate) filter: Box<[libc::sock_filter]>,
    /// Over which the child hands out the kernel's questions.
    pub(crate) socket: OwnedFd,
}

/// The parent's side.
#[derive(Debug)]
pub struct Asked {
    socket: UnixStream,
    number: RawFd,
}

/// `number` is what the descriptor will be in the program: high, so that it is nobody else's.
pub fn substitute(number: RawFd) -> io::Result<(Substitute, Asked)> {
    let (ours, theirs) = UnixStream::pair()?;
    Ok((Substitute { filter: filter(number), socket: theirs.into() }, Asked { socket: ours, number }))
}

fn filter(number: RawFd) -> Box<[libc::sock_filter]> {
    let word = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at: u32| word(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let equal = |value: u32, yes: u8, no: u8| word(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, yes, no, value);
    let done = |value: u32| word(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    Box::new([
        load(ARCH),
        equal(ARCHITECTURE, 0, 8),
        load(CALL),
        equal(libc::SYS_openat as u32, 0, 3),
        load(ARGUMENTS + 2 * 8),
        // Exactly this: whatever a program opens with care for its children is not it.
        equal(libc::O_RDWR as u32, 0, 4),
        done(libc::SECCOMP_RET_USER_NOTIF),
        equal(libc::SYS_fallocate as u32, 0, 2),
        load(ARGUMENTS),
        equal(number as u32, 1, 0),
        done(libc::SECCOMP_RET_ALLOW),
        // With no error in it: the call says that all went well.
        done(libc::SECCOMP_RET_ERRNO),
    ])
}

impl Asked {
    /// Waits until the program opens `path`, and gives it `file`. What else it opens so meanwhile, it opens itself;
    /// afterwards it cannot open so any more.
    pub fn give(self, path: &CStr, file: BorrowedFd<'_>, limit: Duration) -> io::Result<()> {
        let end = Instant::now() + limit;
        self.socket.set_read_timeout(Some(limit))?;
        let mut received = Vec::new();
        let _ = fdpass::receive(&self.socket, &mut [0], &mut received)?;
        let questions = received.pop().ok_or(io::ErrorKind::UnexpectedEof)?;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut polled = [PollFd::new(&questions, PollFlags::IN)];
            if rustix::io::retry_on_intr(|| poll(&mut polled, Some(&wait)))? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if !polled[0].revents().contains(PollFlags::IN) {
                // Nobody is left who could ask.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some((id, pid, at)) = next(questions.as_fd())? else { continue };
            if !opens(pid, at, path) {
                go_on(questions.as_fd(), id)?;
                continue;
            }
            match answer(questions.as_fd(), id, file, self.number) {
                // A signal took the program out of its call meanwhile: it begins it anew, and asks again.
                Err(error) if withdrawn(&error) => {}
                given => return given,
            }
        }
    }
}

/// Does the program's memory hold this path there? Where nobody may look into another's memory, it is taken to be so.
fn opens(pid: u32, at: u64, path: &CStr) -> bool {
    let mut found = vec![0; path.to_bytes_with_nul().len()];
    match File::open(format!("/proc/{pid}/mem")).and_then(|memory| memory.read_exact_at(&mut found, at)) {
        Ok(()) => found == path.to_bytes_with_nul(),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

/// Whose question it is, and where the path lies in its memory; `None` if it does not want an answer any more.
fn next(questions: BorrowedFd<'_>) -> io::Result<Option<(u64, u32, u64)>> {
    // SAFETY: plain numbers, for which zero is valid; the kernel wants it zeroed.
    let mut question: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one such structure into a live local.
    let got = unsafe { libc::ioctl(questions.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut question) };
    match check(got) {
        Ok(()) => Ok(Some((question.id, question.pid, question.data.args[1]))),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn answer(questions: BorrowedFd<'_>, id: u64, file: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: plain numbers, for which zero is valid.
    let mut given: libc::seccomp_notif_addfd = unsafe { std::mem::zeroed() };
    given.id = id;
    given.flags = (libc::SECCOMP_ADDFD_FLAG_SETFD | libc::SECCOMP_ADDFD_FLAG_SEND) as u32;
    given.srcfd = file.as_raw_fd() as u32;
    given.newfd = number as u32;
    given.newfd_flags = libc::O_CLOEXEC as u32;
    // SAFETY: the kernel reads one such structure; the descriptor in it is borrowed for as long.
    check(unsafe { libc::ioctl(questions.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut given) })
}

fn go_on(questions: BorrowedFd<'_>, id: u64) -> io::Result<()> {
    // SAFETY: plain numbers, for which zero is valid.
    let mut response: libc::seccomp_notif_resp = unsafe { std::mem::zeroed() };
    response.id = id;
    response.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    // SAFETY: the kernel reads one such structure.
    match check(unsafe { libc::ioctl(questions.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) }) {
        Err(error) if withdrawn(&error) => Ok(()),
        result => result,
    }
}

/// Nobody waits for the answer to that question any more: none is there, or who asked was called away while it came.
fn withdrawn(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// In the child, between clone and exec: installs the filter and sends off the descriptor of its questions. Returns the
/// error's number, or zero.
///
/// # Safety
/// As for everything in [`crate::spawn`]'s child: the pointers live, and nothing else of the process is touched.
pub(crate) unsafe fn install(filter: &libc::sock_fprog, socket: RawFd) -> i32 {
    // SAFETY: raw system calls on prepared memory and on locals that live until they return.
    unsafe {
        let errno = || *libc::__errno_location();
        if libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
            return errno();
        }
        let filter: *const libc::sock_fprog = filter;
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let listener = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, filter);
        if listener < 0 {
            return errno();
        }
        // One descriptor: a header of 16 bytes, and its number.
        let mut control = [20_u64, (libc::SOL_SOCKET as u64) | ((libc::SCM_RIGHTS as u64) << 32), listener as u64];
        let mut byte = 0_u8;
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        if libc::syscall(libc::SYS_sendmsg, socket, &raw const message, libc::MSG_NOSIGNAL) < 0 { errno() } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spawn::{Program, spawn};
    use std::ffi::CString;
    use std::io::Read;

    /// Runs a shell that opens files for reading and writing; returns what it said.
    fn said(script: &str, path: &CStr, file: &File) -> (io::Result<()>, String) {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (substitute, asked) = substitute(200).unwrap();
        let words = ["python3", "-c", script].map(|word| CString::new(word).unwrap());
        let pid = spawn(&Program {
            paths: &[c"/usr/bin/python3".to_owned()],
            argv: &words,
            envp: &[],
            fds: &[(write.as_fd(), 1), (write.as_fd(), 2)],
            cwd: None,
            identity: None,
            limits: &[],
            new_session: true,
            terminal: None,
            parent_death_signal: None,
            announce: None,
            groups: &[],
            substitute: Some(&substitute),
            traced: None,
        })
        .unwrap();
        drop((write, substitute));
        // Nobody lives to see it waited out.
        let given = asked.give(path, file.as_fd(), Duration::from_secs(100_000));
        let mut said = String::new();
        File::from(read).read_to_string(&mut said).unwrap();
        crate::reap::wait_for(pid).unwrap();
        (given, said)
    }

    #[test]
    fn a_program_that_opens_for_writing_gets_what_only_reads() {
        let dir = tempfile::tempdir().unwrap();
        let (meant, other) = (dir.path().join("meant"), dir.path().join("other"));
        std::fs::write(&meant, "template").unwrap();
        std::fs::write(&other, "").unwrap();
        let script = format!(
            "import ctypes, mmap, os\n\
             libc = ctypes.CDLL(None, use_errno=True)\n\
             libc.open(b'{other}', os.O_RDWR)\n\
             fd = libc.open(b'{meant}', os.O_RDWR)\n\
             print(fd)\n\
             try: os.write(fd, b'x')\n\
             except OSError as e: print(e.strerror)\n\
             print(libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(8)))\n\
             m = mmap.mmap(fd, 8, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)\n\
             m[0:1] = b'T'\n\
             print(m[:].decode())\n\
             print(libc.open(b'{other}', os.O_RDWR), os.strerror(ctypes.get_errno()))\n",
            other = other.display(),
            meant = meant.display(),
        );
        let path = CString::new(meant.to_str().unwrap()).unwrap();
        let (given, said) = said(&script, &path, &File::open(&meant).unwrap());
        given.unwrap();
        let refused = "-1 Function not implemented";
        assert_eq!(said, format!("200\nBad file descriptor\n0\nTemplate\n{refused}\n"));
        assert_eq!(std::fs::read_to_string(&meant).unwrap(), "template");
    }

    #[test]
    fn a_program_that_ends_before_it_asks_is_not_waited_for() {
        let (given, _) = said("pass", c"/nowhere", &File::open("/dev/null").unwrap());
        assert_eq!(given.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
