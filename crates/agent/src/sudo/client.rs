//! The program called `sudo`: reads its options, asks the agent, passes signals on, ends as the command ended.

use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use prost::Message;
use runtime_host::fdpass;

use super::args::{ArgsError, Options, parse};
use super::{Ask, MAX_REQUEST, SOCKET, Said};

#[derive(Debug, thiserror::Error)]
enum SudoError {
    #[error(transparent)]
    Args(#[from] ArgsError),
    #[error("the sandbox's agent does not answer")]
    Connect(#[source] io::Error),
    #[error("asking the sandbox's agent failed")]
    Ask(#[source] io::Error),
    #[error("{0}")]
    Refused(String),
    #[error("the arguments and environment are too long")]
    TooLong,
    #[error("passing signals on failed")]
    Signals(#[source] io::Error),
}

pub(crate) fn main() -> ExitCode {
    let args = std::env::args_os().skip(1).map(OsStringExt::into_vec).collect();
    match run(args) {
        Ok(code) => code,
        Err(error) => {
            let mut text = format!("sudo: {error}");
            if let Some(source) = std::error::Error::source(&error) {
                text = format!("{text}: {source}");
            }
            let _ = writeln!(io::stderr(), "{text}");
            ExitCode::from(1)
        }
    }
}

fn run(args: Vec<Vec<u8>>) -> Result<ExitCode, SudoError> {
    let options = parse(args)?;
    if options.version || options.help {
        say("sudo of this sandbox: every command is allowed and no password is asked\n");
        say("usage: sudo [-EHinsS] [-u user] [-g group] [--preserve-env[=list]] [VAR=value] [command]\n");
        return Ok(ExitCode::SUCCESS);
    }
    if options.list {
        say("The user may run the following commands in this sandbox:\n    (ALL : ALL) NOPASSWD: ALL\n");
        return Ok(ExitCode::SUCCESS);
    }
    if options.command.is_empty() && (options.validate || options.forget) {
        return Ok(ExitCode::SUCCESS);
    }
    let ask = request(options);
    // Signals become bytes on a pipe before the command exists, so that none is missed.
    let signals = runtime_host::forward::Signals::catch().map_err(SudoError::Signals)?;
    let mut socket = UnixStream::connect(SOCKET).map_err(SudoError::Connect)?;
    send(&mut socket, &ask)?;
    let said = wait(&mut socket, &signals)?;
    if !said.refused.is_empty() {
        return Err(SudoError::Refused(said.refused));
    }
    let end = said.end.unwrap_or(1);
    if end < 0 {
        // So that a caller sees the same end as without us.
        runtime_host::forward::die_of(-end);
    }
    Ok(ExitCode::from(u8::try_from(end).unwrap_or(1)))
}

fn say(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

fn request(options: Options) -> Ask {
    let cwd = match options.chdir {
        Some(dir) => dir.into_bytes(),
        None => std::env::current_dir().map_or_else(|_| b"/".to_vec(), |dir| dir.into_os_string().into_vec()),
    };
    #[expect(clippy::disallowed_methods, reason = "it is the caller's own environment; the agent picks what is kept")]
    let envp = std::env::vars_os().map(|(name, value)| [&name.into_vec()[..], b"=", &value.into_vec()].concat());
    Ask {
        argv: options.command,
        envp: envp.collect(),
        cwd,
        set: options.set,
        user: options.user,
        group: options.group,
        keep_all: options.keep_all,
        keep: options.keep,
        set_home: options.set_home,
        login: options.login,
        shell: options.shell,
    }
}

fn send(socket: &mut UnixStream, ask: &Ask) -> Result<(), SudoError> {
    let body = ask.encode_to_vec();
    if body.len() > MAX_REQUEST {
        return Err(SudoError::TooLong);
    }
    let wire = [&(body.len() as u32).to_le_bytes()[..], &body].concat();
    // A caller may have closed any of the three.
    let null = std::fs::File::options().read(true).write(true).open("/dev/null").map_err(SudoError::Ask)?;
    let own = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    let fds = own.map(|fd| if rustix::io::fcntl_getfd(fd).is_ok() { fd } else { borrow(&null) });
    let sent = fdpass::send_signed(&*socket, &wire, &fds).map_err(SudoError::Ask)?;
    socket.write_all(&wire[sent..]).map_err(SudoError::Ask)
}

fn borrow(file: &std::fs::File) -> BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(file)
}

fn wait(socket: &mut UnixStream, signals: &runtime_host::forward::Signals) -> Result<Said, SudoError> {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        let mut fds = [PollFd::new(&*socket, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other.map_err(|error| SudoError::Ask(error.into()))?,
        };
        let [answer, signal] = fds.map(|fd| !fd.revents().is_empty());
        // First: once the command has ended nobody reads what it should be signalled.
        if answer {
            let mut length = [0; 4];
            socket.read_exact(&mut length).map_err(SudoError::Ask)?;
            let mut body = vec![0; (u32::from_le_bytes(length) as usize).min(64 * 1024)];
            socket.read_exact(&mut body).map_err(SudoError::Ask)?;
            return Said::decode(&body[..]).map_err(|_| SudoError::Ask(io::ErrorKind::InvalidData.into()));
        }
        if signal && let Some(number) = signals.next() {
            match socket.write_all(&[number]) {
                // It ended since the look: the answer is there to be read, or its absence is told as such.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                other => other.map_err(SudoError::Ask)?,
            }
        }
    }
}
