//! What OpenSSH reads to reach a sandbox.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use serde_json::json;

use super::store::{Store, replace};
use super::{DOMAIN, Outcome, Printer, Surroundings};
use crate::args::ssh::ConfigArgs;
use crate::failure::Failure;

/// What holds for every sandbox. The host key is the one the server told of, or there is no connection; nothing else may
/// say what it is, and it is not remembered.
const FIXED: &str = "    User runtime
    IdentitiesOnly yes
    PreferredAuthentications publickey
    HostKeyAlgorithms ssh-ed25519
    StrictHostKeyChecking yes
    GlobalKnownHostsFile none
    CheckHostIP no
    UpdateHostKeys no
";

pub(super) struct Settings {
    program: String,
    identity: String,
    known_hosts: String,
}

impl Settings {
    pub(super) fn new(identity: &Path, known_hosts: &Path) -> Result<Self, Failure> {
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        Ok(Self { program: plain(&program)?, identity: plain(identity)?, known_hosts: plain(known_hosts)? })
    }

    /// A block for hosts of a pattern. `alone`: the files are for one connection, and the proxy is told of them.
    pub(super) fn text(&self, hosts: &str, alone: bool) -> Result<String, Failure> {
        let mut proxy = vec![self.program.clone()];
        proxy.extend(["sandboxes", "ssh", "proxy"].map(str::to_owned));
        if alone {
            proxy.extend(["--key".to_owned(), format!("{}.pub", self.identity)]);
            proxy.extend(["--known-hosts".to_owned(), self.known_hosts.clone()]);
        }
        let proxy = proxy.iter().map(|word| shell_word(word).replace('%', "%%")).collect::<Vec<_>>().join(" ");
        let identity = self.identity.replace('%', "%%");
        let known_hosts = self.known_hosts.replace('%', "%%");
        Ok(format!(
            "Host {hosts}\n    ProxyCommand {proxy} '%h' '%n'\n    IdentityFile \"{identity}\"\n    \
             UserKnownHostsFile \"{known_hosts}\"\n{FIXED}"
        ))
    }
}

/// A path that can be written between quotes.
fn plain(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| !text.contains(['"', '\\', '$', '\n', '\r']));
    let text = text.ok_or_else(|| anyhow!("{} cannot be written in OpenSSH's settings", path.display()))?;
    Ok(text.to_owned())
}

/// A word that a shell takes as it is.
pub(super) fn shell_word(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

pub(super) fn config(around: &Surroundings, args: &ConfigArgs, printer: Printer) -> Outcome {
    let store = Store::of(around)?;
    store.lasting_pair()?;
    let settings = Settings::new(&store.identity(), &store.known_hosts())?;
    let text = format!(
        "# Sandboxes as NAME{DOMAIN} or ID{DOMAIN}: written by `runtime sandboxes ssh config`.\n{}",
        settings.text(&format!("*{DOMAIN}"), false)?
    );
    if !args.install {
        if printer.json {
            printer.value(&json!({ "config": text }))?;
        } else {
            printer.line(text.trim_end())?;
        }
        return Ok(0);
    }
    let own = store.config();
    replace(&own, text.as_bytes()).with_context(|| format!("cannot write {}", own.display()))?;
    let home = around.home.as_deref().ok_or_else(|| anyhow!("HOME is not set: there is no ~/.ssh to write to"))?;
    let file = home.join(".ssh/config");
    let changed = include(&file, &own)?;
    if printer.json {
        printer.value(&json!({ "config": own, "included": file, "changed": changed }))?;
    } else {
        printer.line(&own.display().to_string())?;
        let file = file.display();
        printer.hint(&if changed {
            format!("{file} includes it now.")
        } else {
            format!("{file} included it already.")
        });
        printer.hint(&format!("Try: ssh NAME{DOMAIN}"));
    }
    Ok(0)
}

/// First of all, since what OpenSSH reads first holds. False if it was there.
fn include(file: &Path, own: &Path) -> Result<bool, Failure> {
    let line = format!("Include \"{}\"", plain(own)?);
    let step = || format!("cannot have {} include {}", file.display(), own.display());
    if let Some(dir) = file.parent() {
        super::store::make_dir(dir).with_context(step)?;
    }
    // Where it is a link, what it leads to is changed.
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let before = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(anyhow::Error::new(error).context(step()).into()),
    };
    if before.lines().any(|known| known.trim() == line) {
        return Ok(false);
    }
    let text = if before.is_empty() { format!("{line}\n") } else { format!("{line}\n\n{before}") };
    replace(&file, text.as_bytes()).with_context(step)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(dir: &str) -> Settings {
        Settings {
            program: "/opt/it's 100%/runtime".to_owned(),
            identity: format!("{dir}/id"),
            known_hosts: format!("{dir}/known"),
        }
    }

    #[test]
    fn names_of_files_stay_whole_in_openssh_and_in_its_shell() {
        let text = settings("/a b/50%").text("*", true).expect("settings");
        let line = |name: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
            line.unwrap_or_else(|| panic!("{name}: {text}")).trim().to_owned()
        };
        assert_eq!(line("IdentityFile"), "\"/a b/50%%/id\"");
        assert_eq!(
            line("ProxyCommand"),
            "'/opt/it'\\''s 100%%/runtime' 'sandboxes' 'ssh' 'proxy' '--key' '/a b/50%%/id.pub' '--known-hosts' \
             '/a b/50%%/known' '%h' '%n'"
        );
        for wrong in ["/a\"b", "/a\\b", "/$HOME", "/a\nb"] {
            assert!(plain(Path::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_person_has_in_the_file_stays_and_ours_comes_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, own) = (dir.path().join(".ssh/config"), dir.path().join("own"));
        assert!(include(&file, &own).expect("made"));
        assert!(!include(&file, &own).expect("there"));
        let line = format!("Include \"{}\"\n", own.display());
        assert_eq!(fs::read_to_string(&file).expect("read"), line);

        let linked = dir.path().join("dotfiles");
        fs::write(&linked, "Host *\n  Compression yes\n").expect("written");
        fs::remove_file(&file).expect("removed");
        std::os::unix::fs::symlink(&linked, &file).expect("linked");
        assert!(include(&file, &own).expect("included"));
        assert_eq!(fs::read_to_string(&linked).expect("read"), format!("{line}\nHost *\n  Compression yes\n"));
        assert!(fs::symlink_metadata(&file).expect("there").is_symlink());
    }
}
