//! Sockets by which a machine and its host speak.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// One that waits is enough: there is one host, and it comes once at a time.
const BACKLOG: libc::c_int = 4;

/// Listens on this port for whoever comes. The descriptor does not block.
pub fn listen(port: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::VSOCK, SocketType::STREAM, flags, None)?;
    // SAFETY: plain integers, for which zero is valid.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_port = port;
    address.svm_cid = libc::VMADDR_CID_ANY;
    let length = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: the kernel reads `length` bytes of an address that lives across the call.
    if unsafe { libc::bind(fd, (&raw const address).cast(), length) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: two numbers.
    match unsafe { libc::listen(fd, BACKLOG) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The next who came; `WouldBlock` if nobody did.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
}

/// True if connections are to be taken from it.
#[must_use]
pub fn is_listener(fd: impl AsFd) -> bool {
    rustix::net::sockopt::socket_acceptconn(fd).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_known_as_one_and_does_not_block() {
        let stream = std::os::unix::net::UnixStream::pair().unwrap().0;
        assert!(!is_listener(&stream) && !is_listener(io::stdin()));
        match listen(libc::VMADDR_PORT_ANY) {
            Ok(listener) => {
                assert!(is_listener(&listener));
                assert_eq!(accept(&listener).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            }
            // A kernel without such sockets.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EAFNOSUPPORT)),
        }
    }
}
