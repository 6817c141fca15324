//! Whether a connection may be: all of policy, and nothing else.
//!
//! A destination is judged twice: by its name before anything is asked of it ([`by_name`]), so that a name that is not
//! allowed is not even looked up, and by the addresses it turned out to have ([`by_addresses`]). What a connection then
//! says about itself is held against the name that was judged ([`same_name`]). The first rule that refuses is the answer.

use std::net::{IpAddr, SocketAddr};

use runtime_model::network::{Cidr, Entry, FORBIDDEN_PORTS, Host, HostName, Network};

use crate::address;

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    pub host: Host,
    pub port: u16,
}

/// Why a connection was refused: a word of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    InternetOff,
    NotAllowed,
    Denied,
    PortForbidden,
    PrivateAddress,
    Blocked,
    /// TLS or HTTP inside named another host than the one that was judged.
    NameMismatch,
    DnsFailed,
    ConnectFailed,
    TooManyConnections,
    /// The rules are being put in place.
    NotReady,
    BadRequest,
}

impl Reason {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InternetOff => "internet-off",
            Self::NotAllowed => "rule-not-allowed",
            Self::Denied => "rule-denied",
            Self::PortForbidden => "port-forbidden",
            Self::PrivateAddress => "private-address",
            Self::Blocked => "destination-blocked",
            Self::NameMismatch => "name-mismatch",
            Self::DnsFailed => "dns-failed",
            Self::ConnectFailed => "connect-failed",
            Self::TooManyConnections => "connection-limit",
            Self::NotReady => "not-ready",
            Self::BadRequest => "bad-request",
        }
    }

    /// Of the answer to a client of the proxy.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::InternetOff
            | Self::NotAllowed
            | Self::Denied
            | Self::PortForbidden
            | Self::PrivateAddress
            | Self::Blocked
            | Self::NameMismatch => 403,
            Self::TooManyConnections => 429,
            Self::DnsFailed | Self::ConnectFailed => 502,
            Self::NotReady => 503,
        }
    }
}

/// A refusal with the entry that decided, or a word on what did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    pub rule: Option<String>,
    pub address: Option<IpAddr>,
}

impl Refusal {
    #[must_use]
    pub fn new(reason: Reason) -> Self {
        Self { reason, rule: None, address: None }
    }

    fn by(reason: Reason, rule: impl ToString) -> Self {
        Self { reason, rule: Some(rule.to_string()), address: None }
    }
}

/// What let a connection pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permit {
    /// No list names what is allowed.
    Open,
    Allow(String),
    Connect(String),
}

impl Permit {
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Allow(_) => "allow",
            Self::Connect(_) => "connect",
        }
    }

    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        match self {
            Self::Open => None,
            Self::Allow(rule) | Self::Connect(rule) => Some(rule),
        }
    }
}

/// Names that stand for whoever asks them: no sandbox has a good reason to.
const CATCHERS: [&str; 12] = [
    "oast.live",
    "oast.fun",
    "oast.me",
    "oast.online",
    "oast.pro",
    "oast.site",
    "oast.us",
    "interact.sh",
    "interactsh.com",
    "burpcollaborator.net",
    "oastify.com",
    "dnslog.cn",
];
/// Ends of names that are of no public place and must not be asked of anybody.
const LOCAL: [&str; 9] =
    ["localhost", "internal", "local", "localdomain", "lan", "home.arpa", "intranet", "corp", "onion"];

fn is_or_below(name: &HostName, domain: &str) -> bool {
    name.as_str().strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Judges what is asked for, before any name is looked up. A name is held to names, an address to addresses.
pub fn by_name(network: &Network, to: &Destination) -> Result<Permit, Refusal> {
    if !network.internet {
        return Err(Refusal::new(Reason::InternetOff));
    }
    if FORBIDDEN_PORTS.contains(&to.port) || to.port == 0 {
        return Err(Refusal::by(Reason::PortForbidden, to.port));
    }
    if let Some(rule) = network.deny.iter().find(|entry| entry.matches(&to.host)) {
        return Err(Refusal::by(Reason::Denied, rule));
    }
    let connect = network.connect.iter().find(|reach| reach.matches(&to.host, to.port));
    let allow = network.allow.iter().find(|entry| entry.matches(&to.host));
    let permit = match (connect, allow) {
        (_, Some(rule)) => Permit::Allow(rule.to_string()),
        (Some(rule), None) => Permit::Connect(rule.to_string()),
        (None, None) if network.allow.is_empty() => Permit::Open,
        (None, None) => return Err(Refusal::new(Reason::NotAllowed)),
    };
    if let Host::Name(name) = &to.host {
        if let Some(domain) = CATCHERS.iter().find(|domain| is_or_below(name, domain)) {
            return Err(Refusal::by(Reason::Blocked, format!("*.{domain}")));
        }
        if !name.has_dot() || LOCAL.iter().any(|domain| is_or_below(name, domain)) {
            return Err(Refusal::by(Reason::PrivateAddress, "a name of a local network"));
        }
    }
    Ok(permit)
}

/// Judges where it is: every address is, and one bad one among good ones refuses all. What comes back may be dialled.
pub fn by_addresses(
    network: &Network,
    to: &Destination,
    found: &[IpAddr],
    public: &[Cidr],
) -> Result<Vec<SocketAddr>, Refusal> {
    if found.is_empty() {
        return Err(Refusal::new(Reason::DnsFailed));
    }
    for ip in found {
        let at = |refusal| Refusal { address: Some(*ip), ..refusal };
        if let Some(rule) = network.deny.iter().find(|entry| entry.matches_address(*ip)) {
            return Err(at(Refusal::by(Reason::Denied, rule)));
        }
        if let Some(kind) = address::unreachable(*ip, public) {
            return Err(at(Refusal::by(Reason::PrivateAddress, kind)));
        }
    }
    Ok(found.iter().map(|ip| SocketAddr::new(*ip, to.port)).collect())
}

/// Whether a name that a connection carries inside (the server name of TLS, the host of HTTP) may stand there. Where a
/// name was judged it must be that one: a server of many names would answer for the other. Where an address was judged,
/// no name may stand that is denied.
pub fn same_name(network: &Network, judged: &Host, inside: &Host) -> Result<(), Refusal> {
    if let Some(rule) = network.deny.iter().find(|entry: &&Entry| entry.matches(inside)) {
        return Err(Refusal::by(Reason::Denied, rule));
    }
    match judged {
        Host::Name(_) if network.has_rules() && judged != inside => {
            Err(Refusal::by(Reason::NameMismatch, format!("{inside} inside a connection to {judged}")))
        }
        Host::Name(_) | Host::Address(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn network(internet: bool, allow: &[&str], deny: &[&str], connect: &[&str]) -> Network {
        let entries = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        let connect = connect.iter().map(|text| text.parse().unwrap()).collect();
        Network { internet, allow: entries(allow), deny: entries(deny), connect }
    }

    fn to(host: &str, port: u16) -> Destination {
        Destination { host: host.parse().unwrap(), port }
    }

    fn verdict(network: &Network, host: &str, port: u16, found: &[&str]) -> &'static str {
        let to = to(host, port);
        let permit = match by_name(network, &to) {
            Ok(permit) => permit,
            Err(refusal) => return refusal.reason.as_str(),
        };
        let found: Vec<IpAddr> = match to.host {
            Host::Address(ip) => vec![ip],
            Host::Name(_) => found.iter().map(|text| text.parse().unwrap()).collect(),
        };
        match by_addresses(network, &to, &found, &[]) {
            Ok(_) => permit.as_str(),
            Err(refusal) => refusal.reason.as_str(),
        }
    }

    #[test]
    fn the_order_of_the_rules() {
        let (closed, open) = (Network::closed(), Network::open());
        let listed = network(
            true,
            &["a.example.com", "*.b.example.com", "9.9.9.0/24"],
            &["bad.b.example.com"],
            &["db.example.com:5432"],
        );
        let denied = network(true, &[], &["evil.example.com", "*.evil.example.com", "1.2.3.0/24", "2a00::/16"], &[]);
        for (network, host, port, found, expected) in [
            (&closed, "a.example.com", 443, &["1.1.1.1"][..], "internet-off"),
            (&closed, "1.1.1.1", 443, &[], "internet-off"),
            (&open, "a.example.com", 443, &["1.1.1.1", "2606:4700::1"], "open"),
            (&open, "a.example.com", 8443, &["1.1.1.1"], "open"),
            (&open, "a.example.com", 25, &["1.1.1.1"], "port-forbidden"),
            (&open, "a.example.com", 445, &["1.1.1.1"], "port-forbidden"),
            (&open, "a.example.com", 0, &["1.1.1.1"], "port-forbidden"),
            (&open, "1.1.1.1", 443, &[], "open"),
            (&open, "10.0.0.1", 443, &[], "private-address"),
            (&open, "169.254.169.254", 80, &[], "private-address"),
            (&open, "::ffff:169.254.169.254", 80, &[], "private-address"),
            (&open, "a.example.com", 443, &["1.1.1.1", "10.0.0.1"], "private-address"),
            (&open, "a.example.com", 443, &["::1"], "private-address"),
            (&open, "a.example.com", 443, &[], "dns-failed"),
            (&open, "localhost", 443, &["1.1.1.1"], "private-address"),
            (&open, "metadata", 80, &["1.1.1.1"], "private-address"),
            (&open, "metadata.google.internal", 80, &["1.1.1.1"], "private-address"),
            (&open, "x.oast.live", 80, &["1.1.1.1"], "destination-blocked"),
            (&open, "notoast.live", 80, &["1.1.1.1"], "open"),
            (&listed, "a.example.com", 443, &["1.1.1.1"], "allow"),
            (&listed, "x.a.example.com", 443, &["1.1.1.1"], "rule-not-allowed"),
            (&listed, "x.b.example.com", 22, &["1.1.1.1"], "allow"),
            (&listed, "b.example.com", 443, &["1.1.1.1"], "rule-not-allowed"),
            (&listed, "bad.b.example.com", 443, &["1.1.1.1"], "rule-denied"),
            (&listed, "db.example.com", 5432, &["1.1.1.1"], "connect"),
            (&listed, "db.example.com", 443, &["1.1.1.1"], "rule-not-allowed"),
            (&listed, "9.9.9.9", 443, &[], "allow"),
            (&listed, "9.9.8.9", 443, &[], "rule-not-allowed"),
            // A list of addresses is no reason to look up a name.
            (&listed, "other.example.com", 443, &["9.9.9.9"], "rule-not-allowed"),
            // Neither does being listed make a private address reachable.
            (&listed, "a.example.com", 443, &["192.168.0.1"], "private-address"),
            (&network(true, &["10.0.0.0/8"], &[], &["10.0.0.1:443"]), "10.0.0.1", 443, &[], "private-address"),
            (&denied, "evil.example.com", 443, &["1.1.1.1"], "rule-denied"),
            (&denied, "a.evil.example.com", 443, &["1.1.1.1"], "rule-denied"),
            (&denied, "good.example.com", 443, &["1.1.1.1", "1.2.3.4"], "rule-denied"),
            (&denied, "1.2.3.4", 443, &[], "rule-denied"),
            (&denied, "good.example.com", 443, &["2a00::1"], "rule-denied"),
            (
                &network(true, &["a.example.com"], &["a.example.com"], &["a.example.com:443"]),
                "a.example.com",
                443,
                &["1.1.1.1"],
                "rule-denied",
            ),
            (&network(true, &[], &[], &["a.example.com:25"]), "a.example.com", 25, &["1.1.1.1"], "port-forbidden"),
        ] {
            assert_eq!(verdict(network, host, port, found), expected, "{host}:{port} at {found:?} under {network:?}");
        }
    }

    #[test]
    fn a_refusal_names_its_rule() {
        let network = network(true, &[], &["*.evil.example.com", "1.2.3.0/24"], &[]);
        let refusal = by_name(&network, &to("a.evil.example.com", 443)).unwrap_err();
        assert_eq!(refusal.rule.as_deref(), Some("*.evil.example.com"));
        let found = ["9.9.9.9".parse().unwrap(), "1.2.3.4".parse().unwrap()];
        let refusal = by_addresses(&network, &to("a.example.com", 443), &found, &[]).unwrap_err();
        assert_eq!((refusal.rule.as_deref(), refusal.address), (Some("1.2.3.0/24"), Some(found[1])));
    }

    #[test]
    fn a_connection_says_no_other_name_than_the_judged_one() {
        let host = |text: &str| text.parse::<Host>().unwrap();
        let listed = network(true, &["*.example.com"], &["bad.example.com"], &[]);
        assert!(same_name(&listed, &host("a.example.com"), &host("A.example.com.")).is_ok());
        for (judged, inside, reason) in [
            ("a.example.com", "b.example.com", Reason::NameMismatch),
            ("a.example.com", "1.1.1.1", Reason::NameMismatch),
            ("a.example.com", "bad.example.com", Reason::Denied),
            ("1.1.1.1", "bad.example.com", Reason::Denied),
        ] {
            let refusal = same_name(&listed, &host(judged), &host(inside)).unwrap_err();
            assert_eq!(refusal.reason, reason, "{inside} in {judged}");
        }
        assert!(same_name(&listed, &host("1.1.1.1"), &host("c.example.com")).is_ok());
        assert!(same_name(&Network::open(), &host("a.example.com"), &host("b.example.com")).is_ok());
    }

    fn any_ip() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<u32>().prop_map(|ip| IpAddr::V4(ip.into())),
            any::<u128>().prop_map(|ip| IpAddr::V6(ip.into()))
        ]
    }

    fn any_network() -> impl Strategy<Value = Network> {
        const NAMES: [&str; 7] =
            ["a.example.com", "*.example.com", "b.example.com", "0.0.0.0/1", "::/0", "8.0.0.0/8", "*.b.example.com"];
        let list = proptest::collection::vec(proptest::sample::select(&NAMES[..]), 0..3);
        (any::<bool>(), list.clone(), list, proptest::collection::vec(Just("c.example.com:8080"), 0..2))
            .prop_map(|(internet, allow, deny, connect)| network(internet, &allow, &deny, &connect))
    }

    proptest! {
        /// Whatever the rules: what is dialled is public, not denied, on no forbidden port, and an address that was found.
        #[test]
        fn nothing_passes_that_must_not(
            network in any_network(),
            name in proptest::sample::select(&["a.example.com", "b.example.com", "c.example.com", "x.b.example.com", "example.org"][..]),
            port in prop_oneof![any::<u16>(), proptest::sample::select(FORBIDDEN_PORTS), Just(8080)],
            found in proptest::collection::vec(any_ip(), 0..4),
            literal in proptest::option::of(any_ip()),
        ) {
            let host = literal.map_or_else(|| name.parse().unwrap(), Host::Address);
            let to = Destination { host: host.clone(), port };
            let found = literal.map_or(found, |ip| vec![ip]);
            if let Ok(permit) = by_name(&network, &to)
                && let Ok(dialled) = by_addresses(&network, &to, &found, &[])
            {
                prop_assert!(network.internet);
                prop_assert!(!FORBIDDEN_PORTS.contains(&port));
                prop_assert!(!network.deny.iter().any(|entry| entry.matches(&host)));
                prop_assert!(!dialled.is_empty());
                for socket in &dialled {
                    prop_assert!(found.contains(&socket.ip()) && socket.port() == port);
                    prop_assert!(address::unreachable(socket.ip(), &[]).is_none());
                    prop_assert!(!network.deny.iter().any(|entry| entry.matches_address(socket.ip())));
                }
                let listed = network.allow.iter().any(|entry| entry.matches(&host));
                let reached = network.connect.iter().any(|reach| reach.matches(&host, port));
                prop_assert!(listed || reached || network.allow.is_empty());
                prop_assert_eq!(permit == Permit::Open, !listed && !reached);
            }
        }
    }
}
