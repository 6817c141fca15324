//! The name of a place, in its one spelling: what cannot be spelled so is no place.
//!
//! A guest chooses the text. Whatever a resolver or a C library would read as a number (`127.1`, `0x7f000001`,
//! `2130706433`, `017700000001`) is refused instead of being taken for a name, so that no address passes as one.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A DNS name: lower case, no dot at its end, at least one character that no number has in its last part.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

/// Where a connection is to go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    Name(HostName),
    Address(IpAddr),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("is empty")]
    Empty,
    #[error("is longer than a name can be")]
    TooLong,
    #[error("holds a character that no host name has (international names are written as xn--...)")]
    Character,
    #[error("has an empty part, or one of more than 63 characters")]
    Part,
    #[error("is a number that is no plain address")]
    Number,
    #[error("is no IPv6 address")]
    Bracket,
}

const MAX_NAME: usize = 253;
const MAX_PART: usize = 63;

impl HostName {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Any depth below, never the name itself.
    #[must_use]
    pub fn is_below(&self, domain: &Self) -> bool {
        self.0.strip_suffix(domain.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
    }

    /// One word alone is a name of somebody's own network.
    #[must_use]
    pub fn has_dot(&self) -> bool {
        self.0.contains('.')
    }
}

impl FromStr for HostName {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        match text.parse()? {
            Host::Name(name) => Ok(name),
            Host::Address(_) => Err(HostError::Number),
        }
    }
}

impl FromStr for Host {
    type Err = HostError;

    /// An IPv6 address may stand in brackets or bare.
    fn from_str(text: &str) -> Result<Self, HostError> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(HostError::Bracket)?;
            return inner.parse::<Ipv6Addr>().map(|ip| Self::Address(ip.into())).map_err(|_| HostError::Bracket);
        }
        if text.contains(':') {
            return text.parse::<Ipv6Addr>().map(|ip| Self::Address(ip.into())).map_err(|_| HostError::Bracket);
        }
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(HostError::Empty);
        }
        if text.len() > MAX_NAME {
            return Err(HostError::TooLong);
        }
        if let Ok(ip) = text.parse::<Ipv4Addr>() {
            return Ok(Self::Address(ip.into()));
        }
        let mut last = "";
        for part in text.split('.') {
            if part.is_empty() || part.len() > MAX_PART {
                return Err(HostError::Part);
            }
            if !part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
                return Err(HostError::Character);
            }
            last = part;
        }
        if reads_as_number(last) {
            return Err(HostError::Number);
        }
        Ok(Self::Name(HostName(text.to_ascii_lowercase())))
    }
}

/// As every reader of addresses since the first does: decimal, octal, or hexadecimal behind 0x.
fn reads_as_number(part: &str) -> bool {
    part.bytes().all(|byte| byte.is_ascii_digit())
        || part
            .strip_prefix("0x")
            .or_else(|| part.strip_prefix("0X"))
            .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl TryFrom<String> for HostName {
    type Error = HostError;
    fn try_from(text: String) -> Result<Self, HostError> {
        text.parse()
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Host {
    /// Without brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(ip) => ip.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(text: &str) -> Result<String, HostError> {
        text.parse::<Host>().map(|host| match host {
            Host::Name(name) => format!("name {name}"),
            Host::Address(ip) => format!("address {ip}"),
        })
    }

    #[test]
    fn names_have_one_spelling() {
        for (text, read) in [
            ("Example.COM", "name example.com"),
            ("example.com.", "name example.com"),
            ("a_b-c.example", "name a_b-c.example"),
            ("xn--bcher-kva.example", "name xn--bcher-kva.example"),
            ("192.0.2.1", "address 192.0.2.1"),
            ("192.0.2.1.", "address 192.0.2.1"),
            ("[2001:DB8::1]", "address 2001:db8::1"),
            ("2001:db8:0::1", "address 2001:db8::1"),
            ("::ffff:192.0.2.1", "address ::ffff:192.0.2.1"),
            ("1.example", "name 1.example"),
            ("0x7f.example", "name 0x7f.example"),
        ] {
            assert_eq!(host(text).as_deref(), Ok(read), "{text}");
        }
    }

    #[test]
    fn no_number_passes_for_a_name() {
        for text in [
            "2130706433",
            "0x7f000001",
            "0X7F000001",
            "017700000001",
            "127.1",
            "127.0.1",
            "0177.0.0.1",
            "127.0.0.0x1",
            "1.2.3.4.5",
            "256.1.1.1",
            "0x",
            "a.0x",
            "example.123",
            "01.02.03.04",
        ] {
            assert_eq!(host(text), Err(HostError::Number), "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for text in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a b",
            "a/b",
            "a@b",
            "a#b",
            "a%2eb",
            "ex\u{e4}mple",
            "a\0b",
            "a\r\nb",
            "a:80",
            "[::1",
            "::1]",
            "[fe80::1%eth0]",
            "[127.0.0.1]",
            "*",
            "*.a",
            "\u{ff11}.example",
            "a\u{3002}b",
            "127.0.0.1\0.a",
        ] {
            assert!(host(text).is_err(), "{text:?}");
        }
        assert!(host(&format!("{}.a", "x".repeat(64))).is_err());
        assert!(host(&format!("{}a", "x.".repeat(127))).is_err());
    }

    #[test]
    fn below_is_below_and_not_beside() {
        let name = |text: &str| text.parse::<HostName>().unwrap();
        assert!(name("a.b.example").is_below(&name("example")));
        assert!(name("a.b.example").is_below(&name("b.example")));
        assert!(!name("b.example").is_below(&name("b.example")));
        assert!(!name("xb.example").is_below(&name("b.example")));
    }

    proptest! {
        #[test]
        fn reading_what_was_written_changes_nothing(text in "\\PC{0,80}|[a-zA-Z0-9._:\\[\\]x-]{0,80}") {
            if let Ok(host) = text.parse::<Host>() {
                prop_assert_eq!(host.to_string().parse::<Host>(), Ok(host));
            }
        }

        /// Whatever the system's own reader takes for an address is an address here too, or nothing.
        #[test]
        fn what_reads_as_an_address_is_one(a in any::<u32>(), form in 0..5_u8) {
            let ip = Ipv4Addr::from(a);
            let [p, q, r, s] = ip.octets();
            let text = match form {
                0 => a.to_string(),
                1 => format!("{a:#x}"),
                2 => format!("0{a:o}"),
                3 => format!("{p}.{}", a & 0xff_ffff),
                _ => format!("{p}.{q}.{}", u32::from(r) << 8 | u32::from(s)),
            };
            prop_assert_eq!(text.parse::<Host>(), Err(HostError::Number));
            prop_assert_eq!(ip.to_string().parse::<Host>(), Ok(Host::Address(ip.into())));
        }
    }
}
