//! The variables of a command under `sudo`: few, unless the caller asks to keep its own.

use super::Ask;
use crate::process::launch::PATH;
use crate::users::{Account, users};

/// Kept from the caller: the way out of the sandbox, what to trust on it, language and terminal.
const KEPT: [&str; 26] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "FTP_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "ftp_proxy",
    "NODE_USE_ENV_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
    "LANG",
    "LANGUAGE",
    "TERM",
    "COLORTERM",
    "TZ",
    "DISPLAY",
    "RUNTIME_API_URL",
];
const SHOWN: usize = 4096;

pub(super) fn environment(ask: &Ask, target: &Account, shell: &str, caller: u32, argv: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut env: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut set = |name: &[u8], value: &[u8]| {
        env.retain(|(known, _)| known != name);
        env.push((name.to_vec(), value.to_vec()));
    };
    for var in &ask.envp {
        let Some((name, value)) = split(var) else { continue };
        let text = std::str::from_utf8(name).unwrap_or_default();
        let wanted = KEPT.contains(&text) || text.starts_with("LC_") || ask.keep.iter().any(|keep| keep == text);
        if wanted || (ask.keep_all && !ask.login) {
            set(name, value);
        }
    }
    let has_home = ask.envp.iter().any(|var| var.starts_with(b"HOME="));
    let keeps_home =
        !ask.login && !ask.set_home && has_home && (ask.keep_all || ask.keep.iter().any(|name| name == "HOME"));
    if !keeps_home {
        set(b"HOME", target.home.as_bytes());
    }
    let users = users();
    let caller_gid = users.account_by_id(caller).map_or(caller, |account| account.gid);
    let mut command = argv.join(&b' ');
    command.truncate(SHOWN);
    for (name, value) in [
        (&b"USER"[..], target.name.as_bytes()),
        (b"LOGNAME", target.name.as_bytes()),
        (b"SHELL", shell.as_bytes()),
        (b"PATH", PATH.as_bytes()),
        (b"SUDO_USER", users.owner(caller).as_bytes()),
        (b"SUDO_UID", caller.to_string().as_bytes()),
        (b"SUDO_GID", caller_gid.to_string().as_bytes()),
        (b"SUDO_COMMAND", &command),
    ] {
        set(name, value);
    }
    for var in &ask.set {
        if let Some((name, value)) = split(var) {
            set(name, value);
        }
    }
    env.into_iter().map(|(name, value)| [&name[..], b"=", &value].concat()).collect()
}

fn split(var: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = var.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
    Some((&var[..at], &var[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ask: Ask) -> Vec<String> {
        let root = Account { name: "root".into(), uid: 0, gid: 0, home: "/root".into(), shell: "/bin/sh".into() };
        let env = environment(&ask, &root, "/bin/sh", 1000, &[b"id".to_vec()]);
        env.into_iter().map(|var| String::from_utf8(var).unwrap()).collect()
    }

    #[test]
    fn what_is_kept_and_what_is_told() {
        let envp = ["HOME=/workspace", "SECRET=x", "https_proxy=p", "A=1"].map(|var| var.as_bytes().to_vec()).to_vec();
        let plain = run(Ask { envp: envp.clone(), set: vec![b"B=2".to_vec()], ..Ask::default() });
        for wanted in ["HOME=/root", "https_proxy=p", "B=2", "SUDO_UID=1000", "SUDO_COMMAND=id", "USER=root"] {
            assert!(plain.iter().any(|var| var == wanted), "{wanted} in {plain:?}");
        }
        assert!(!plain.iter().any(|var| var.starts_with("SECRET") || var.starts_with("A=")));
        let listed = run(Ask { envp: envp.clone(), keep: vec!["A".into()], ..Ask::default() });
        assert!(listed.contains(&"A=1".to_owned()));
        let all = run(Ask { envp: envp.clone(), keep_all: true, ..Ask::default() });
        assert!(all.contains(&"SECRET=x".to_owned()) && all.contains(&"HOME=/workspace".to_owned()));
        let home = run(Ask { envp, keep_all: true, set_home: true, ..Ask::default() });
        assert!(home.contains(&"HOME=/root".to_owned()));
    }
}
