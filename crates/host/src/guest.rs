//! What only the first process of a machine with a kernel of its own asks of that kernel.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes that one call stirs in at most.
pub const MAX_ENTROPY: usize = 256;

const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
const RNDRESEEDCRNG: libc::c_ulong = 0x5207;
const EXT4_IOC_RESIZE_FS: libc::c_ulong = 0x4008_6610;

#[repr(C)]
struct PoolInfo {
    entropy_bits: libc::c_int,
    size: libc::c_int,
    bytes: [u8; MAX_ENTROPY],
}

/// Credits `bytes` to the random pool behind `urandom` and makes the generator start anew from it, so that two copies
/// of one memory part ways. Needs root.
pub fn stir_entropy(urandom: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let mut info = PoolInfo { entropy_bits: 0, size: 0, bytes: [0; MAX_ENTROPY] };
    let Some(room) = info.bytes.get_mut(..bytes.len()) else { return Err(io::ErrorKind::InvalidInput.into()) };
    room.copy_from_slice(bytes);
    // Both fit: at most 256 bytes.
    info.size = bytes.len() as libc::c_int;
    info.entropy_bits = info.size * 8;
    let fd = urandom.as_fd().as_raw_fd();
    // SAFETY: the kernel reads the two numbers and `size` bytes, all inside `info`, which lives across the call.
    if unsafe { libc::ioctl(fd, RNDADDENTROPY as _, &raw const info) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a call without an argument.
    if unsafe { libc::ioctl(fd, RNDRESEEDCRNG as _) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Brings the loopback device up.
pub fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: plain bytes and integers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the kernel reads one `ifreq`, which lives across the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Grows the mounted ext4 that `dir` lies on to `blocks` of its blocks.
pub fn grow_ext4(dir: impl AsFd, blocks: u64) -> io::Result<()> {
    // SAFETY: the kernel reads one 64-bit number, which lives across the call.
    match unsafe { libc::ioctl(dir.as_fd().as_raw_fd(), EXT4_IOC_RESIZE_FS as _, &raw const blocks) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Becomes the program behind `fd`, which need not have a name any more. Returns only if that fails.
pub fn become_program(fd: impl AsFd, argv: &[CString], envp: &[CString]) -> io::Error {
    let pointers = |list: &[CString]| {
        let mut out: Vec<*const libc::c_char> = list.iter().map(|item| item.as_ptr()).collect();
        out.push(std::ptr::null());
        out
    };
    let (argv, envp) = (pointers(argv), pointers(envp));
    let empty: &CStr = c"";
    // SAFETY: both lists end in a null pointer and point to strings that live across the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            fd.as_fd().as_raw_fd(),
            empty.as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_entropy_than_fits_is_refused() {
        let urandom = std::fs::File::open("/dev/urandom").unwrap();
        let error = stir_entropy(&urandom, &[0; MAX_ENTROPY + 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_file_that_is_no_program_is_told() {
        let file = std::fs::File::open("/etc/hostname").unwrap();
        let error = become_program(&file, &[c"x".to_owned()], &[]);
        assert!(error.raw_os_error().is_some());
    }
}
