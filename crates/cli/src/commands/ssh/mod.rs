//! SSH into a sandbox, by the OpenSSH that is here: `ssh` runs it, `ssh config` tells it how, `ssh proxy` is its way there.
//!
//! OpenSSH reaches a sandbox through a [`proxy`], over the tunnel of the API. Two things are checked, and neither is
//! trusted blindly: the server lets in the one key that the proxy names when it opens the connection, and OpenSSH takes
//! only the host key that the server told the proxy for it. The keys are in [`store`], what OpenSSH reads in [`settings`].

mod proxy;
mod settings;
mod store;

use std::process::ExitStatus;

use anyhow::Context as _;
use runtime_api::client::ClientError;
use runtime_service::signals::{Signal as Asked, Signals};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::{Context, Outcome};
use crate::args::ssh::{SshArgs, SshVerb};
use crate::connect::connect;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::scan::UsageError;
use crate::surroundings::Surroundings;
use settings::{Settings, shell_word};
use store::Store;

/// What every host name of a sandbox ends with.
const DOMAIN: &str = ".runtime";
/// What was typed names nothing to do.
const NO_ARGUMENT: u8 = 64;
/// OpenSSH's own word for "no code came".
const NO_CODE: u8 = 255;

pub(super) async fn ssh(around: &Surroundings, args: SshArgs, printer: Printer) -> Outcome {
    let context = || connect(around, printer).map(|client| Context { client, printer });
    match (args.verb, args.sandbox) {
        (Some(SshVerb::Config(args)), _) => settings::config(around, &args, printer),
        (Some(SshVerb::Proxy(args)), _) => proxy::proxy(&context()?, around, &args).await,
        (None, Some(sandbox)) => {
            if printer.json {
                let mistake = UsageError::new("a login has no JSON form");
                return Err(mistake.hint("Use `runtime sandboxes exec --json`.").into());
            }
            login(&context()?, around, &sandbox, &args.command).await
        }
        (None, None) => {
            let mistake =
                UsageError::new("`runtime sandboxes ssh` needs a sandbox, or one of its verbs: config, proxy")
                    .hint("Write: runtime sandboxes ssh worker, or: runtime sandboxes ssh worker -- ls -la");
            Failure::from(mistake).tell(printer);
            Ok(NO_ARGUMENT)
        }
    }
}

/// The id or name in a host name.
fn bare(host: &str) -> &str {
    host.strip_suffix(DOMAIN).filter(|name| !name.is_empty()).unwrap_or(host)
}

/// With a pair of keys for this one connection, gone after it.
async fn login(context: &Context, around: &Surroundings, sandbox: &str, command: &[String]) -> Outcome {
    let sandbox = context.client.resolve(bare(sandbox)).await?;
    let files = Store::of(around)?.for_one_login()?;
    let settings = Settings::new(&files.identity(), &files.known_hosts())?;
    files.write_config(&settings.text("*", true)?)?;
    let mut signals = Signals::catch().context("cannot watch for Ctrl-C")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot watch for the end of the terminal")?;
    let mut ssh = Command::new("ssh");
    // After the dashes and the host, all is the command, whatever it begins with.
    ssh.arg("-F").arg(files.config()).args(["--", &format!("{sandbox}{DOMAIN}")]).args(line(command));
    let mut child = ssh.spawn().map_err(|error| no_openssh("ssh", &error))?;
    let status = loop {
        tokio::select! {
            biased;
            status = child.wait() => break status.context("cannot wait for ssh")?,
            // It decides what a signal means; this one stays until it has ended, and cleans up.
            asked = signals.next() => pass_on(&child, match asked {
                Asked::Interrupt => Signal::INT,
                Asked::Terminate => Signal::TERM,
            }),
            _ = hangup.recv() => pass_on(&child, Signal::HUP),
        }
    };
    Ok(code(status))
}

/// As a shell on the other side reads it: a line as it is, words so that they stay words.
fn line(command: &[String]) -> Option<String> {
    match command {
        [] => None,
        [line] => Some(line.clone()),
        words => Some(words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")),
    }
}

fn pass_on(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // One that has just ended needs no signal.
        let _ = kill_process(pid, signal);
    }
}

fn code(status: ExitStatus) -> u8 {
    status.code().map_or(NO_CODE, |code| u8::try_from(code).unwrap_or(NO_CODE))
}

/// What cannot be done without OpenSSH, and what can be done instead.
fn no_openssh(program: &str, error: &std::io::Error) -> Failure {
    if error.kind() != std::io::ErrorKind::NotFound {
        return anyhow::anyhow!("cannot run {program}: {error}").into();
    }
    ClientError::local("no_ssh", format!("there is no `{program}` on this machine"))
        .with_hint(
            "Install OpenSSH (openssh-client on Debian), or use `runtime sandboxes shell`, `exec` and `cp`, which need \
             nothing.",
        )
        .into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_line_stays_a_line_and_words_stay_words() {
        let line = |words: &[&str]| line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(line(&[]), None);
        assert_eq!(line(&["cd x && make"]).as_deref(), Some("cd x && make"));
        assert_eq!(line(&["echo", "it's", "$HOME", ""]).as_deref(), Some("'echo' 'it'\\''s' '$HOME' ''"));
    }

    #[test]
    fn a_code_is_passed_on_and_a_death_is_255() {
        assert_eq!(code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code(ExitStatus::from_raw(9)), 255);
    }

    #[test]
    fn a_host_name_is_a_name_with_or_without_its_domain() {
        for (host, name) in
            [("worker.runtime", "worker"), ("worker", "worker"), ("a.b.runtime", "a.b"), (".runtime", ".runtime")]
        {
            assert_eq!(bare(host), name);
        }
    }
}
