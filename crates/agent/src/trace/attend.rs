//! A runner's work while its command is traced: the tracer must be the thread that started it, and news of children and
//! of stopped threads come by the same way.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use runtime_host::reap::{Endings, Reaped};
use runtime_host::spawn::{Program, SpawnError, Step, spawn};
use runtime_host::trace::{self, News};

use super::follow::Follower;
use crate::order::Reply;
use crate::runner::{attend_rest, next_end, reply};

/// Starts a program held, and lets it go once this thread traces it. Another thread starts it, since whoever does waits
/// for it to become the program.
pub(crate) fn start(program: &Program<'_>) -> Result<i32, SpawnError> {
    let failed = |source| SpawnError { step: Step::Trace, source };
    let (held, tracing) = trace::prepare().map_err(failed)?;
    std::thread::scope(|scope| {
        let starting = std::thread::Builder::new().stack_size(128 * 1024).spawn_scoped(scope, move || {
            let started = spawn(&Program { traced: Some(&held), ..*program });
            // The other side is told by this, where nobody came to be traced.
            drop(held);
            started
        });
        let starting = starting.map_err(failed)?;
        let attached = tracing.attach();
        let started = starting.join().map_err(|_| failed(io::ErrorKind::Other.into()))??;
        attached.map_err(failed)?;
        Ok(started)
    })
}

/// Stays with the command until nothing of it is left, or the agent is gone.
pub(crate) fn attend(
    socket: &UnixStream,
    endings: &Endings,
    leader: i32,
    kill_leftovers: bool,
    record: OwnedFd,
) -> io::Result<()> {
    let mut follower = Follower::new(record);
    let end = loop {
        match trace::news()? {
            News::Ended(pid, end) if pid == leader => break end,
            News::Ended(thread, _) => follower.gone(thread),
            News::Stopped(stop) => follower.stopped(&stop),
            News::NoneYet => next_end(socket, endings)?,
            News::NobodyLeft => return Err(io::ErrorKind::NotFound.into()),
        }
    };
    reply(socket, Reply::Ending { end: end.number() })?;
    attend_rest(socket, endings, end, kill_leftovers, &mut || {
        loop {
            return Ok(match trace::news()? {
                News::Ended(thread, end) => {
                    follower.gone(thread);
                    Reaped::Child(thread, end)
                }
                News::Stopped(stop) => {
                    follower.stopped(&stop);
                    continue;
                }
                News::NoneYet => Reaped::NoneYet,
                News::NobodyLeft => Reaped::NoChildren,
            });
        }
    })
}
