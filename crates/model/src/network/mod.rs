//! What a sandbox may reach: the rules as words, and what they say of a name, an address or a port. Pure: who resolves
//! names and opens connections asks here.
//!
//! Closed by default: a missing policy is one that refuses.

mod host;
mod rule;

pub use host::{Host, HostError, HostName};
pub use rule::{Cidr, Entry, EntryError, Reach};

use serde::{Deserialize, Serialize};

/// Entries in each list.
pub const MAX_ENTRIES: usize = 256;
/// The longest entry as text.
pub const MAX_ENTRY: usize = 320;
/// Reachable by everybody.
pub const WEB_PORTS: [u16; 2] = [80, 443];
/// Never reachable, by nobody: telnet, Windows RPC and file sharing, IRC; and mail, which is a grant of its own.
pub const FORBIDDEN_PORTS: &[u16] = &[
    23, 25, 135, 137, 138, 139, 445, 465, 587, 6660, 6661, 6662, 6663, 6664, 6665, 6666, 6667, 6668, 6669, 6697, 7000,
];

/// The rules of one sandbox. `deny` wins over everything; a filled `allow` leaves nothing but what it names, and what
/// `connect` adds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    pub internet: bool,
    #[serde(default)]
    pub allow: Vec<Entry>,
    #[serde(default)]
    pub deny: Vec<Entry>,
    #[serde(default)]
    pub connect: Vec<Reach>,
}

impl Network {
    /// No way out.
    #[must_use]
    pub fn closed() -> Self {
        Self::default()
    }

    /// Every public place: what a sandbox has that says nothing of its network.
    #[must_use]
    pub fn open() -> Self {
        Self { internet: true, ..Self::default() }
    }

    /// No internet, but a list of what is allowed, means the list and nothing else.
    #[must_use]
    pub fn normalized(mut self) -> Self {
        self.internet |= !self.allow.is_empty();
        self
    }

    /// Whether there is any place it does not refuse.
    #[must_use]
    pub fn allows_anything(&self) -> bool {
        self.internet
    }

    /// Whether names matter: with no rule, every public place is as good as any other.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        !(self.allow.is_empty() && self.deny.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_internet_is_the_list_alone() {
        let listed = Network { allow: vec!["a.example".parse().unwrap()], ..Network::closed() }.normalized();
        assert!(listed.internet);
        let connect = Network { connect: vec!["a.example:22".parse().unwrap()], ..Network::closed() }.normalized();
        assert!(!connect.allows_anything());
        assert_eq!(Network::closed().normalized(), Network::closed());
    }

    #[test]
    fn a_policy_with_nothing_in_it_is_closed() {
        assert!(!Network::default().allows_anything());
        assert!(serde_json::from_str::<Network>("{}").is_err());
        assert_eq!(serde_json::from_str::<Network>(r#"{"internet":false}"#).unwrap(), Network::closed());
        assert!(serde_json::from_str::<Network>(r#"{"internet":true,"allow":["*"]}"#).is_err());
    }

    #[test]
    fn a_policy_comes_back_as_it_was_written() {
        let text = r#"{"internet":true,"allow":["a.example","*.b.example","192.0.2.1","2001:db8::/32"],"deny":["192.0.2.0/24"],"connect":["[2001:db8::1]:22","c.example:5432"]}"#;
        let network: Network = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&network).unwrap(), text);
    }
}
