//! One line of a list: a name, all below a domain, an address, a range; and for `connect`, a host with its port.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Host, HostError, HostName, MAX_ENTRY};

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Entry {
    Name(HostName),
    /// Any depth below this domain, never the domain itself.
    Below(HostName),
    Address(IpAddr),
    Range(Cidr),
}

/// A range of addresses, kept with the bits behind its prefix cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    base: IpAddr,
    prefix: u8,
}

/// One port of one host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reach {
    pub host: Host,
    pub port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    #[error("is longer than {MAX_ENTRY} characters")]
    TooLong,
    #[error("is a URL; write the host alone")]
    Url,
    #[error("has a port; ports belong into connect")]
    Port,
    #[error("needs a port, as in db.example.com:5432")]
    NoPort,
    #[error("has a port that is not from 1 to 65535")]
    BadPort,
    #[error("has a * that does not stand for all below a domain, as in *.example.com")]
    Star,
    #[error("is no range of addresses, such as 192.0.2.0/24")]
    Range,
    #[error(transparent)]
    Host(#[from] HostError),
}

impl Entry {
    #[must_use]
    pub fn matches_name(&self, name: &HostName) -> bool {
        match self {
            Self::Name(own) => own == name,
            Self::Below(domain) => name.is_below(domain),
            Self::Address(_) | Self::Range(_) => false,
        }
    }

    #[must_use]
    pub fn matches_address(&self, ip: IpAddr) -> bool {
        match self {
            Self::Address(own) => *own == ip,
            Self::Range(range) => range.contains(ip),
            Self::Name(_) | Self::Below(_) => false,
        }
    }

    #[must_use]
    pub fn matches(&self, host: &Host) -> bool {
        match host {
            Host::Name(name) => self.matches_name(name),
            Host::Address(ip) => self.matches_address(*ip),
        }
    }
}

impl FromStr for Entry {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, EntryError> {
        if text.len() > MAX_ENTRY {
            return Err(EntryError::TooLong);
        }
        if text.contains("://") || text.contains('@') {
            return Err(EntryError::Url);
        }
        if let Some(domain) = text.strip_prefix("*.") {
            return match domain.parse() {
                Ok(Host::Name(domain)) => Ok(Self::Below(domain)),
                Ok(Host::Address(_)) => Err(EntryError::Star),
                Err(_) if domain.contains('*') => Err(EntryError::Star),
                Err(error) => Err(error.into()),
            };
        }
        if text.contains('*') {
            return Err(EntryError::Star);
        }
        if text.contains('/') {
            return text.parse().map(Self::Range);
        }
        match text.parse() {
            Ok(Host::Name(name)) => Ok(Self::Name(name)),
            Ok(Host::Address(ip)) => Ok(Self::Address(ip)),
            Err(_) if text.parse::<Reach>().is_ok() => Err(EntryError::Port),
            Err(error) => Err(error.into()),
        }
    }
}

impl Cidr {
    /// `None` for a prefix longer than the address.
    #[must_use]
    pub fn new(ip: IpAddr, prefix: u8) -> Option<Self> {
        let base = match ip {
            IpAddr::V4(ip) if prefix <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V4((u32::from(ip) & mask).into())
            }
            IpAddr::V6(ip) if prefix <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V6((u128::from(ip) & mask).into())
            }
            IpAddr::V4(_) | IpAddr::V6(_) => return None,
        };
        Some(Self { base, prefix })
    }

    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.base.is_ipv4() == ip.is_ipv4() && Self::new(ip, self.prefix).is_some_and(|own| own.base == self.base)
    }
}

impl FromStr for Cidr {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, EntryError> {
        let (ip, prefix) = text.split_once('/').ok_or(EntryError::Range)?;
        // No sign, no zero in front, nothing longer than a prefix is.
        let plain = (1..=3).contains(&prefix.len()) && (prefix == "0" || !prefix.starts_with('0'));
        if !plain || !prefix.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(EntryError::Range);
        }
        let ip: IpAddr = ip.parse().map_err(|_| EntryError::Range)?;
        let prefix = prefix.parse().map_err(|_| EntryError::Range)?;
        Self::new(ip, prefix).ok_or(EntryError::Range)
    }
}

impl Reach {
    #[must_use]
    pub fn matches(&self, host: &Host, port: u16) -> bool {
        self.port == port && self.host == *host
    }
}

impl FromStr for Reach {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, EntryError> {
        if text.len() > MAX_ENTRY {
            return Err(EntryError::TooLong);
        }
        if text.contains("://") || text.contains('@') || text.contains('/') {
            return Err(EntryError::Url);
        }
        if text.contains('*') {
            return Err(EntryError::Star);
        }
        let (host, port) = text.rsplit_once(':').ok_or(EntryError::NoPort)?;
        if host.contains(':') && !host.starts_with('[') {
            return Err(EntryError::NoPort);
        }
        if port.is_empty() || port.len() > 5 || !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(EntryError::BadPort);
        }
        let port = port.parse().ok().filter(|port| *port > 0).ok_or(EntryError::BadPort)?;
        Ok(Self { host: host.parse()?, port })
    }
}

macro_rules! as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = EntryError;
            fn try_from(text: String) -> Result<Self, EntryError> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}
as_text!(Entry);
as_text!(Reach);

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Below(domain) => write!(f, "*.{domain}"),
            Self::Address(ip) => ip.fmt(f),
            Self::Range(range) => range.fmt(f),
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            host => write!(f, "{host}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn entries_are_kept_in_one_spelling() {
        for (text, kept) in [
            ("Example.COM.", "example.com"),
            ("*.Example.com", "*.example.com"),
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.77/24", "192.0.2.0/24"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:DB8:0::/48", "2001:db8::/48"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            assert_eq!(text.parse::<Entry>().unwrap().to_string(), kept, "{text}");
        }
    }

    #[test]
    fn entries_that_mean_nothing_say_why() {
        for (text, error) in [
            ("https://a.example", EntryError::Url),
            ("user@a.example", EntryError::Url),
            ("a.example:443", EntryError::Port),
            ("192.0.2.1:443", EntryError::Port),
            ("[2001:db8::1]:443", EntryError::Port),
            ("*", EntryError::Star),
            ("a.*.example", EntryError::Star),
            ("*a.example", EntryError::Star),
            ("*.*.example", EntryError::Star),
            ("*.192.0.2.1", EntryError::Star),
            ("a.example/path", EntryError::Range),
            ("192.0.2.0/33", EntryError::Range),
            ("192.0.2.0/+8", EntryError::Range),
            ("192.0.2.0/08", EntryError::Range),
            ("192.0.2.0/", EntryError::Range),
            ("2001:db8::/129", EntryError::Range),
            ("", EntryError::Host(HostError::Empty)),
            ("127.1", EntryError::Host(HostError::Number)),
        ] {
            assert_eq!(text.parse::<Entry>(), Err(error), "{text}");
        }
        for (text, error) in [
            ("a.example", EntryError::NoPort),
            ("2001:db8::1", EntryError::NoPort),
            ("a.example:", EntryError::BadPort),
            ("a.example:0", EntryError::BadPort),
            ("a.example:+22", EntryError::BadPort),
            ("a.example:65536", EntryError::BadPort),
            ("*.a.example:22", EntryError::Star),
            (":22", EntryError::Host(HostError::Empty)),
        ] {
            assert_eq!(text.parse::<Reach>(), Err(error), "{text}");
        }
    }

    #[test]
    fn what_an_entry_matches() {
        let matches = |entry: &str, host: &str| {
            entry.parse::<Entry>().unwrap().matches(&host.parse().unwrap_or_else(|_| panic!("{host}")))
        };
        assert!(matches("a.example", "A.example."));
        assert!(!matches("a.example", "b.a.example"));
        assert!(matches("*.a.example", "c.b.a.example"));
        assert!(!matches("*.a.example", "a.example"));
        assert!(matches("192.0.2.0/25", "192.0.2.127"));
        assert!(!matches("192.0.2.0/25", "192.0.2.128"));
        assert!(!matches("0.0.0.0/0", "2001:db8::1"));
        assert!(!matches("0.0.0.0/0", "::ffff:192.0.2.1"));
        assert!(matches("::/0", "2001:db8::1"));
        assert!("[2001:db8::1]:22".parse::<Reach>().unwrap().matches(&"2001:db8::1".parse().unwrap(), 22));
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_so_that_it_reads_the_same(text in "[a-zA-Z0-9.*:/\\[\\]_-]{0,60}|\\PC{0,30}") {
            if let Ok(entry) = text.parse::<Entry>() {
                prop_assert_eq!(entry.to_string().parse::<Entry>(), Ok(entry));
            }
            if let Ok(reach) = text.parse::<Reach>() {
                prop_assert_eq!(reach.to_string().parse::<Reach>(), Ok(reach));
            }
        }

        #[test]
        fn a_range_holds_what_begins_like_it(ip in any::<u32>(), other in any::<u32>(), prefix in 0..=32_u8) {
            let range = Cidr::new(IpAddr::V4(ip.into()), prefix).unwrap();
            let same = prefix == 0 || (ip ^ other) >> (32 - u32::from(prefix)) == 0;
            prop_assert_eq!(range.contains(IpAddr::V4(other.into())), same);
        }
    }
}
