//! Which addresses are on the internet, and what the others are.
//!
//! Everything that is not plainly public is refused, whatever the rules say: a rule of a sandbox must not be a way into
//! the networks around its host. Addresses that carry another one inside (mapped, translated, tunnelled) are refused for
//! what they are, whatever they carry.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use runtime_model::network::Cidr;

/// Why an address is not public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Unspecified,
    Loopback,
    LinkLocal,
    Private,
    CarrierNat,
    Multicast,
    Documentation,
    Benchmarking,
    Reserved,
    /// An IPv4 address, or a tunnel to one, inside an IPv6 address.
    Translated,
}

impl Kind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Private => "private",
            Self::CarrierNat => "carrier-grade NAT",
            Self::Multicast => "multicast",
            Self::Documentation => "documentation",
            Self::Benchmarking => "benchmarking",
            Self::Reserved => "reserved",
            Self::Translated => "translated",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `None`: public. `also` are ranges that the operator has declared public; no range makes loopback, link-local or an
/// address inside an address public.
#[must_use]
pub fn unreachable(ip: IpAddr, also: &[Cidr]) -> Option<Kind> {
    let kind = match ip {
        IpAddr::V4(ip) => v4(ip),
        IpAddr::V6(ip) => v6(ip),
    }?;
    let fixed = matches!(
        kind,
        Kind::Unspecified | Kind::Loopback | Kind::LinkLocal | Kind::Multicast | Kind::Reserved | Kind::Translated
    );
    let declared = !fixed && also.iter().any(|range| range.contains(ip));
    (!declared).then_some(kind)
}

fn v4(ip: Ipv4Addr) -> Option<Kind> {
    let [a, b, c, _] = ip.octets();
    Some(match (a, b, c) {
        (0, ..) => Kind::Unspecified,
        (127, ..) => Kind::Loopback,
        (169, 254, _) => Kind::LinkLocal,
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => Kind::Private,
        (100, 64..=127, _) => Kind::CarrierNat,
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => Kind::Documentation,
        (198, 18..=19, _) => Kind::Benchmarking,
        // Protocol assignments; what was once the entrance to 6to4.
        (192, 0, 0) | (192, 88, 99) => Kind::Reserved,
        (224..=239, ..) => Kind::Multicast,
        (240.., ..) => Kind::Reserved,
        _ => return None,
    })
}

fn v6(ip: Ipv6Addr) -> Option<Kind> {
    let part = ip.segments();
    Some(match part {
        [0, 0, 0, 0, 0, 0, 0, 0] => Kind::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => Kind::Loopback,
        // Compatible, mapped and translated IPv4, and NAT64 in both of its ranges.
        [0, 0, 0, 0, ..] | [0x64, 0xff9b, ..] => Kind::Translated,
        [0xfe80..=0xfebf, ..] => Kind::LinkLocal,
        // Site-local is no longer given out and still routed somewhere.
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Kind::Private,
        [0xff00..=0xffff, ..] => Kind::Multicast,
        // 6to4, and Teredo.
        [0x2002, ..] | [0x2001, 0, ..] => Kind::Translated,
        [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => Kind::Documentation,
        [0x2001, 2, 0, ..] => Kind::Benchmarking,
        // Protocol assignments.
        [0x2001, 0..=0x01ff, ..] => Kind::Reserved,
        // Made by routers and hosts that tunnel IPv4 to each other.
        [.., 0x5efe, _, _] if part[4] & 0xfcff == 0 => Kind::Translated,
        [0x2000..=0x3fff, ..] => return None,
        _ => Kind::Reserved,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kind(text: &str) -> Option<Kind> {
        unreachable(text.parse().unwrap(), &[])
    }

    #[test]
    fn every_range_that_is_not_the_internet() {
        use Kind::*;
        for (kinds, addresses) in [
            (Unspecified, &["0.0.0.0", "0.1.2.3", "::"][..]),
            (Loopback, &["127.0.0.1", "127.255.255.254", "::1"]),
            (LinkLocal, &["169.254.169.254", "169.254.0.1", "fe80::1", "febf::1"]),
            (
                Private,
                &["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd00:ec2::254", "fec0::1"],
            ),
            (CarrierNat, &["100.64.0.1", "100.100.100.200", "100.127.255.255"]),
            (Multicast, &["224.0.0.1", "239.255.255.250", "ff02::1", "ff0e::1"]),
            (Documentation, &["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1", "3fff:fff::1"]),
            (Benchmarking, &["198.18.0.1", "198.19.255.255", "2001:2::1"]),
            (
                Reserved,
                &[
                    "240.0.0.1",
                    "255.255.255.255",
                    "192.0.0.1",
                    "192.88.99.1",
                    "2001:20::1",
                    "2001:1ff::1",
                    "100::1",
                    "4000::1",
                    "5f00::1",
                    "64:ff9a::1",
                ],
            ),
            (
                Translated,
                &[
                    "::ffff:127.0.0.1",
                    "::ffff:8.8.8.8",
                    "::127.0.0.1",
                    "::8.8.8.8",
                    "::ffff:0:8.8.8.8",
                    "64:ff9b::8.8.8.8",
                    "64:ff9b::a9fe:a9fe",
                    "64:ff9b:1::1",
                    "2002:7f00:1::1",
                    "2002:808:808::1",
                    "2001:0:1::1",
                    "2a00:1:2:3:0:5efe:7f00:1",
                    "2a00:1:2:3:200:5efe:808:808",
                ],
            ),
        ] {
            for address in addresses {
                assert_eq!(kind(address), Some(kinds), "{address}");
            }
        }
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:200::1",
            "2001:4860::8888",
            "3ffe::1",
        ] {
            assert_eq!(kind(address), None, "{address}");
        }
    }

    #[test]
    fn an_operator_declares_some_ranges_public_and_never_the_host_itself() {
        let also: Vec<Cidr> = ["0.0.0.0/0", "::/0"].map(|range| range.parse().unwrap()).into();
        for (address, public) in [
            ("198.51.100.1", true),
            ("2001:db8::1", true),
            ("10.1.2.3", true),
            ("100.64.0.1", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("0.0.0.0", false),
            ("169.254.169.254", false),
            ("fe80::1", false),
            ("::ffff:198.51.100.1", false),
            ("2002:c633:6401::1", false),
            ("64:ff9b::198.51.100.1", false),
            ("224.0.0.1", false),
        ] {
            assert_eq!(unreachable(address.parse().unwrap(), &also).is_none(), public, "{address}");
        }
    }

    proptest! {
        #[test]
        fn an_address_inside_an_address_never_passes(ip in any::<u32>(), low in any::<u64>()) {
            let [a, b, c, d] = ip.to_be_bytes();
            let (high, rest) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            let inside = [
                Ipv4Addr::from(ip).to_ipv6_mapped(),
                Ipv4Addr::from(ip).to_ipv6_compatible(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, rest),
                Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, rest),
                Ipv6Addr::from(u128::from(u16::from_be_bytes([0x20, 2])) << 112 | u128::from(ip) << 80 | u128::from(low)),
                Ipv6Addr::from(0x2001_0000_u128 << 96 | u128::from(low)),
            ];
            for address in inside {
                prop_assert!(unreachable(address.into(), &[]).is_some(), "{address}");
            }
        }

        #[test]
        fn only_global_unicast_is_public(ip in any::<u128>()) {
            let address = Ipv6Addr::from(ip);
            if unreachable(address.into(), &[]).is_none() {
                prop_assert_eq!(ip >> 125, 1, "{}", address);
            }
        }
    }
}
