//! What a connection may be opened to.

/// What the sandbox's own relay listens on.
const RESERVED: [u16; 3] = [10800, 10802, 10853];

/// The port that a target names, or why it is not had.
pub(super) fn port(target: &[u8]) -> Result<u16, &'static str> {
    let text = std::str::from_utf8(target).map_err(|_| "the target does not read")?;
    if text.starts_with("ssh ") {
        return Err("no-sshd");
    }
    let digits = text.strip_prefix("tcp ").filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|port| port.parse::<u16>().ok()) {
        None | Some(0) => Err("the target is no port"),
        Some(port) if RESERVED.contains(&port) => Err("reserved"),
        Some(port) => Ok(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_ports_and_nothing_else() {
        assert_eq!(port(b"tcp 80"), Ok(80));
        assert_eq!(port(b"tcp 65535"), Ok(65_535));
        for (target, why) in [
            (&b"tcp 10800"[..], "reserved"),
            (b"ssh ssh-ed25519 AAAA", "no-sshd"),
            (b"tcp 0", "the target is no port"),
            (b"tcp 65536", "the target is no port"),
            (b"tcp +1", "the target is no port"),
            (b"tcp 10.0.0.1:80", "the target is no port"),
            (b"TCP 80", "the target is no port"),
            (b"", "the target is no port"),
            (b"tcp \xff", "the target does not read"),
        ] {
            assert_eq!(port(target), Err(why));
        }
    }
}
