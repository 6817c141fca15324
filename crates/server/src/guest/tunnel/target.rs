//! What a connection may be opened to.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// What the sandbox's own relay listens on.
const RESERVED: [u16; 3] = [10800, 10802, 10853];
/// Longer than the name of any type of key.
const MAX_KEY_TYPE: usize = 64;
const NO_KEY: &str = "the key does not read";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Of the sandbox's own loopback.
    Port(u16),
    /// An sshd.
    Login(Login),
}

/// A login over SSH, as it was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Login {
    /// The one key that may log in: its type, a blank, its base64.
    pub(super) key: String,
    /// The client wants to be told what sshd proves itself with: `k` frames are an addition to the contract.
    pub(super) tells_host_key: bool,
}

/// What a target names, or why it is not had.
pub(super) fn read(target: &[u8]) -> Result<Target, &'static str> {
    let text = std::str::from_utf8(target).map_err(|_| "the target does not read")?;
    if let Some(login) = text.strip_prefix("ssh ") {
        return login_with(login).map(Target::Login);
    }
    let digits = text.strip_prefix("tcp ").filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|port| port.parse::<u16>().ok()) {
        None | Some(0) => Err("the target is no port"),
        Some(port) if RESERVED.contains(&port) => Err("reserved"),
        Some(port) => Ok(Target::Port(port)),
    }
}

/// A type, the base64 of a key of that type, and perhaps the word that asks for the host key.
fn login_with(text: &str) -> Result<Login, &'static str> {
    let mut words = text.split(' ');
    let (Some(name), Some(encoded), option, None) = (words.next(), words.next(), words.next(), words.next()) else {
        return Err(NO_KEY);
    };
    let tells_host_key = match option {
        None => false,
        Some("host-key") => true,
        Some(_) => return Err(NO_KEY),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-@.".contains(&byte);
    if name.is_empty() || name.len() > MAX_KEY_TYPE || !name.bytes().all(plain) {
        return Err(NO_KEY);
    }
    let blob = STANDARD.decode(encoded).map_err(|_| NO_KEY)?;
    // A key begins with its type: its length, then its name. sshd reads the rest.
    let inner = blob.split_first_chunk::<4>().and_then(|(length, rest)| {
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        rest.split_at_checked(length)
    });
    match inner {
        Some((inner, rest)) if inner == name.as_bytes() && !rest.is_empty() => {
            Ok(Login { key: format!("{name} {encoded}"), tells_host_key })
        }
        _ => Err(NO_KEY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIN8dr0h+sogPFq6er3aSxXHbZ1vg/zAIKPsnjNCZ6Jhh";

    #[test]
    fn targets_are_ports_and_logins_and_nothing_else() {
        assert_eq!(read(b"tcp 80"), Ok(Target::Port(80)));
        assert_eq!(read(b"tcp 65535"), Ok(Target::Port(65_535)));
        for (target, why) in [
            (&b"tcp 10800"[..], "reserved"),
            (b"tcp 0", "the target is no port"),
            (b"tcp 65536", "the target is no port"),
            (b"tcp +1", "the target is no port"),
            (b"tcp 10.0.0.1:80", "the target is no port"),
            (b"TCP 80", "the target is no port"),
            (b"", "the target is no port"),
            (b"ssh", "the target is no port"),
            (b"tcp \xff", "the target does not read"),
        ] {
            assert_eq!(read(target), Err(why));
        }
    }

    #[test]
    fn a_login_names_one_key_and_no_option_of_it() {
        let login = |tells_host_key| Ok(Target::Login(Login { key: KEY.to_owned(), tells_host_key }));
        assert_eq!(read(format!("ssh {KEY}").as_bytes()), login(false));
        assert_eq!(read(format!("ssh {KEY} host-key").as_bytes()), login(true));
        let blob = &KEY["ssh-ed25519 ".len()..];
        for wrong in [
            String::new(),
            "ssh-ed25519".to_owned(),
            "ssh-ed25519 ".to_owned(),
            "ssh-ed25519 AAAA".to_owned(),
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5".to_owned(),
            "ssh-ed25519 /////w==".to_owned(),
            format!("ssh-rsa {blob}"),
            format!(" {blob}"),
            format!("{KEY} someone@here"),
            format!("{KEY} host-key host-key"),
            format!("{KEY}\nssh-ed25519 {blob}"),
            format!("{KEY}\n"),
            format!("command=\"x\" {KEY}"),
            format!("{} {blob}", "x".repeat(65)),
        ] {
            assert_eq!(read(format!("ssh {wrong}").as_bytes()), Err(NO_KEY), "{wrong:?}");
        }
    }
}
