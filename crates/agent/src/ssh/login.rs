//! What one sshd is started with: a directory of files that it reads, gone with the login.
//!
//! The directory is root's, so that nobody else puts anything into it; the files are the sandbox user's, as sshd runs as
//! that one, and only his to read.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use runtime_proto::guest::{ErrorCode, GuestError, Ssh};
use rustix::fs::{Gid, Uid};

use crate::identity::random_name;
use crate::setup::RUN_DIR;
use crate::users::{SANDBOX_GID, SANDBOX_UID};

/// Seconds that a client has to prove its key; after them the connection ends, and nobody can use the key any more.
const GRACE: u32 = 60;

/// Settings without a path in them. sshd reads no other file than this, and asks nobody: neither PAM nor the name service.
/// What it complains of is meant for the client's person, so only that.
const SETTINGS: &str = "\
AuthenticationMethods publickey
KbdInteractiveAuthentication no
PasswordAuthentication no
UsePAM no
UseDNS no
PidFile none
StrictModes no
PrintMotd no
PrintLastLog no
X11Forwarding no
TCPKeepAlive no
MaxSessions 64
LogLevel ERROR
Subsystem sftp /usr/lib/openssh/sftp-server
";

pub(super) struct Login {
    dir: PathBuf,
}

impl Login {
    pub(super) fn lay_out(wanted: &Ssh, env: &[(String, String)]) -> Result<Self, GuestError> {
        let words = env.iter().flat_map(|(name, value)| [name, value]);
        if wanted.key.contains(['\n', '\r']) || words.chain([&wanted.key, &wanted.host_key]).any(|w| w.contains('\0')) {
            return Err(GuestError::new(ErrorCode::Invalid, "a login over SSH: a key or a variable is not one"));
        }
        Self::write(wanted, env).map_err(|error| {
            let code = match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::DiskFull,
                _ => ErrorCode::Internal,
            };
            GuestError::new(code, format!("writing what sshd reads below {RUN_DIR}/ssh: {error}"))
        })
    }

    fn write(wanted: &Ssh, env: &[(String, String)]) -> io::Result<Self> {
        let all = Path::new(RUN_DIR).join("ssh");
        DirBuilder::new().recursive(true).mode(0o755).create(&all)?;
        let dir = all.join(random_name());
        DirBuilder::new().mode(0o755).create(&dir)?;
        // From here on it is taken away again.
        let login = Self { dir };
        login.put("host_key", &wanted.host_key)?;
        login.put("authorized_keys", &format!("{}\n", wanted.key))?;
        login.put("session", &session(env))?;
        login.put("config", &login.settings())?;
        Ok(login)
    }

    fn settings(&self) -> String {
        let at = |name| self.file(name).display().to_string();
        format!(
            "{SETTINGS}LoginGraceTime {GRACE}\nHostKey {}\nAuthorizedKeysFile {}\nForceCommand /bin/sh {}\n",
            at("host_key"),
            at("authorized_keys"),
            at("session")
        )
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(super) fn config(&self) -> PathBuf {
        self.file("config")
    }

    fn put(&self, name: &str, text: &str) -> io::Result<()> {
        let mut file = File::options().write(true).create_new(true).mode(0o400).open(self.file(name))?;
        file.write_all(text.as_bytes())?;
        Ok(rustix::fs::fchown(&file, Some(Uid::from_raw(SANDBOX_UID)), Some(Gid::from_raw(SANDBOX_GID)))?)
    }
}

impl Drop for Login {
    fn drop(&mut self) {
        // Without links to follow: the guest's root may have been here.
        if let Err(error) = std::fs::remove_dir_all(&self.dir)
            && error.kind() != io::ErrorKind::NotFound
        {
            crate::log::log!("removing {} failed: {error}", self.dir.display());
        }
    }
}

/// What sshd runs for each session, whatever was asked for: the same with the sandbox's variables, of any names and values.
fn session(env: &[(String, String)]) -> String {
    let mut set = String::from("set --");
    for (name, value) in env {
        set.push(' ');
        set.push_str(&quoted(&format!("{name}={value}")));
    }
    format!(
        "asked=${{SSH_ORIGINAL_COMMAND+yes}} line=$SSH_ORIGINAL_COMMAND\n\
         unset SSH_ORIGINAL_COMMAND\n\
         {set}\n\
         [ -z \"$asked\" ] || exec /usr/bin/env -- \"$@\" \"$SHELL\" -c \"$line\"\n\
         exec /usr/bin/env -- \"$@\" \"$SHELL\" -l\n"
    )
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    use super::*;

    fn run(env: &[(&str, &str)], line: Option<&str>) -> String {
        let env: Vec<_> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut sh = Command::new("/bin/sh");
        sh.env_clear().env("HOME", "/nonexistent").env("SHELL", "/bin/bash").args(["-c", &session(&env)]);
        if let Some(line) = line {
            sh.env("SSH_ORIGINAL_COMMAND", line);
        }
        let output = sh.stdin(std::process::Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_session_has_every_variable_as_it_is_and_runs_the_line_as_it_is() {
        let odd = "it's \"two\"\nlines $HOME `x` \\";
        assert_eq!(
            run(&[("A", odd), ("B", "")], Some("printf '%s|' \"$A\" \"$B\" \"${C-none}\"")),
            format!("{odd}||none|")
        );
        assert_eq!(run(&[("-S", "x"), ("a.b", "y")], Some("env | grep -c -e '^-S=x' -e '^a.b=y'")), "2\n");
        assert_eq!(run(&[], Some("echo ${SSH_ORIGINAL_COMMAND-unset} \"$#\"")), "unset 0\n");
        // An empty line is a line; without one it is a login, which reads its input here.
        assert_eq!((run(&[], Some("")), run(&[], None)), (String::new(), String::new()));
    }

    #[test]
    fn what_sshd_reads_is_the_users_alone_and_goes_with_the_login() {
        let wanted = Ssh { key: "ssh-ed25519 AAAA".into(), host_key: "secret".into(), env: Vec::new() };
        let login = Login::lay_out(&wanted, &[("A".into(), "1".into())]).unwrap();
        let dir = login.dir.clone();
        for name in ["host_key", "authorized_keys", "session", "config"] {
            let meta = std::fs::metadata(dir.join(name)).unwrap();
            assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o400, SANDBOX_UID), "{name}");
        }
        assert_eq!(std::fs::read_to_string(dir.join("authorized_keys")).unwrap(), "ssh-ed25519 AAAA\n");
        drop(login);
        assert!(!dir.exists());

        for wrong in [
            Ssh { key: "ssh-ed25519 AAAA\nssh-ed25519 BBBB".into(), ..Ssh::default() },
            Ssh { host_key: "a\0".into(), ..Ssh::default() },
        ] {
            assert_eq!(Login::lay_out(&wrong, &[]).err().map(|error| error.code()), Some(ErrorCode::Invalid));
        }
        assert!(Login::lay_out(&Ssh::default(), &[("A".into(), "\0".into())]).is_err());
    }
}
