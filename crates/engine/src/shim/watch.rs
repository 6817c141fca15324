//! The life of a shim between start and end: it waits for whichever comes first and passes it on.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::hold::HoldError;
use super::wire::{self, Ask, Say};
use super::{Held, Log, ShimError, io_error};
use crate::driver::record::EndRecord;
use crate::host_state::chain;

/// Servers that may listen at once; one is usual.
const MAX_CLIENTS: usize = 16;

#[derive(Default)]
pub(super) struct Clients(Vec<Client>);

struct Client {
    stream: UnixStream,
    unread: Vec<u8>,
}

impl Clients {
    /// A client that does not take what it is told is cut off.
    fn tell(&mut self, say: &Say) {
        let line = wire::line(say);
        self.0.retain_mut(|client| client.stream.write_all(&line).is_ok());
    }

    fn accept(&mut self, listener: &UnixListener, greeting: &[Say]) {
        while let Ok((stream, _)) = listener.accept() {
            if self.0.len() >= MAX_CLIENTS || stream.set_nonblocking(true).is_err() {
                continue;
            }
            let mut client = Client { stream, unread: Vec::new() };
            if greeting.iter().all(|say| client.stream.write_all(&wire::line(say)).is_ok()) {
                self.0.push(client);
            }
        }
    }

    fn hear(&mut self) -> Vec<Ask> {
        let mut asked = Vec::new();
        self.0.retain_mut(|client| client.read(&mut asked));
        asked
    }
}

impl Client {
    /// False once it is gone.
    fn read(&mut self, asked: &mut Vec<Ask>) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            asked.extend(wire::take_lines::<Ask>(&mut self.unread));
            if self.unread.len() > wire::LINE {
                return false;
            }
        }
    }
}

/// What ended the watch.
pub(super) struct Seen {
    who: Who,
    asked: bool,
    shortages: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Sentry,
    Gofer,
}

/// Returns once the sandbox's kernel, or the server of its files, has ended: neither is any good without the other.
pub(super) fn watch(held: &mut Held, listener: &UnixListener, log: &mut Log) -> Result<(Seen, Clients), ShimError> {
    let mut clients = Clients::default();
    let (mut asked, mut short, mut shortages) = (false, false, 0);
    loop {
        let ready = wait(held, listener, &clients).map_err(io_error("wait for", "the sandbox"))?;
        for (number, watched) in [(0, Who::Sentry), (1, Who::Gofer)] {
            if ready[number] {
                return Ok((Seen { who: watched, asked, shortages }, clients));
            }
        }
        if ready[2] && held.shortage.take().unwrap_or(false) {
            shortages += 1;
            short = true;
            clients.tell(&Say::OutOfMemory);
        }
        if ready[3] {
            drain(held.complaints.as_fd(), log);
        }
        for ask in clients.hear() {
            match ask {
                Ask::End => {
                    asked = true;
                    let _ = held.sentry.handle.kill();
                }
                Ask::Relieved => short = false,
                Ask::Freeze => {
                    let done = held.hold.freeze();
                    clients.tell(&said(done, Say::Frozen, log));
                }
                Ask::Thaw => {
                    let done = held.hold.thaw();
                    clients.tell(&said(done, Say::Thawed, log));
                }
                Ask::Unknown => {}
            }
        }
        let (create_ms, start_ms) = (held.create_ms, held.start_ms);
        let running = Say::Running { create_ms, start_ms, frozen: held.hold.is_frozen() };
        if short {
            clients.accept(listener, &[running.clone(), Say::OutOfMemory]);
        } else {
            clients.accept(listener, std::slice::from_ref(&running));
        }
    }
}

fn said(done: Result<(), HoldError>, say: Say, log: &mut Log) -> Say {
    match done {
        Ok(()) => say,
        Err(error) => {
            let cause = chain(&error);
            log.line(&cause);
            Say::Failed { cause }
        }
    }
}

/// Which of sentry, gofer, shortage and complaints have news. Returns as well when a client has.
fn wait(held: &Held, listener: &UnixListener, clients: &Clients) -> io::Result<[bool; 4]> {
    let sentry = held.sentry.handle.as_fd();
    // A sandbox without a file server has nothing to watch in its place: the same one twice.
    let gofer = held.gofer.as_ref().map_or(sentry, |gofer| gofer.handle.as_fd());
    let mut fds: Vec<PollFd<'_>> = [sentry, gofer, held.shortage.as_fd(), held.complaints.as_fd(), listener.as_fd()]
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .into();
    fds.extend(clients.0.iter().map(|client| PollFd::from_borrowed_fd(client.stream.as_fd(), PollFlags::IN)));
    loop {
        match poll(&mut fds, None) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let news = |number: usize| !fds[number].revents().is_empty();
    Ok([news(0), news(1), news(2), news(3)])
}

pub(super) fn drain(pipe: BorrowedFd<'_>, log: &mut Log) {
    let mut buffer = [0; 16 * 1024];
    // One round a wake: a guest that never stops talking must not keep the shim from anything else.
    if let Ok(count) = rustix::io::read(pipe, &mut buffer[..]) {
        log.bytes(&buffer[..count]);
    }
}

pub(super) fn describe(seen: Seen, status: Option<i32>) -> EndRecord {
    let cause = match (seen.asked, seen.who, status) {
        (true, ..) => "it was asked to".to_owned(),
        (false, Who::Gofer, _) => "the server of its files ended".to_owned(),
        (false, Who::Sentry, None) => "its kernel ended".to_owned(),
        (false, Who::Sentry, Some(status)) => match (status & 0x7f, (status >> 8) & 0xff) {
            (0, code) => format!("its kernel ended with code {code}"),
            (signal, _) => format!("its kernel was ended by signal {signal}"),
        },
    };
    EndRecord { cause, asked: seen.asked, memory_shortages: seen.shortages, unusable: false }
}

/// The last word to everyone, also to those who have only just come.
pub(super) fn tell_end(mut clients: Clients, listener: &UnixListener, end: EndRecord) {
    let last = Say::Ended(end);
    clients.tell(&last);
    clients.accept(listener, std::slice::from_ref(&last));
}
