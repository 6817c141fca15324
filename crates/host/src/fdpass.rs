//! Bytes and open descriptors over a unix socket (`SCM_RIGHTS`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, UCred,
};

/// The most descriptors one message may carry.
pub const MAX_FDS: usize = 8;

/// Sends some of `bytes` with `fds`; says how many bytes went. The descriptors go with the first byte.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives into `buffer`; descriptors that came along are appended to `fds`, close-on-exec. 0 = the peer closed.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(got.bytes)
}

/// Who sent a message, as the kernel vouches for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    pub pid: i32,
    pub uid: u32,
}

/// Sends as [`send`] does, with the own identity beside it. Not every kernel knows a connection's peer; a message's
/// sender they all know.
pub fn send_signed(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS), ScmCredentials(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let own = UCred { pid: rustix::process::getpid(), uid: rustix::process::getuid(), gid: rustix::process::getgid() };
    let fits =
        control.push(SendAncillaryMessage::ScmRights(fds)) && control.push(SendAncillaryMessage::ScmCredentials(own));
    if !fits {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Asks the kernel to name senders on this socket.
pub fn name_senders(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(socket, true)?)
}

/// Receives as [`receive`] does; `sender` is filled in once the kernel names one.
pub fn receive_signed(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    sender: &mut Option<Sender>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(received) => fds.extend(received),
            RecvAncillaryMessage::ScmCredentials(cred) => {
                *sender = Some(Sender { pid: cred.pid.as_raw_nonzero().get(), uid: cred.uid.as_raw() });
            }
            _ => {}
        }
    }
    Ok(got.bytes)
}
