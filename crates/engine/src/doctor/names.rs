//! Do names below the domain of previews lead anywhere?

use std::net::{IpAddr, ToSocketAddrs};

use super::Check;

const NAME: &str = "preview domain";

pub(super) fn below(domain: &str) -> Check {
    let domain = domain.split_once("://").map_or(domain, |(_, domain)| domain);
    let name = domain.rsplit_once(':').map_or(domain, |(name, _)| name);
    // As long as the name of a preview, and no preview's.
    let some = format!("1-00000000-0000-0000-0000-000000000000.{name}");
    let found: Result<Vec<IpAddr>, _> =
        (some.as_str(), 0).to_socket_addrs().map(|found| found.map(|address| address.ip()).collect());
    match found.as_deref() {
        Ok([first, ..]) => {
            Check::ok(NAME, format!("names below {name} lead to {first}; is that where browsers reach this server?"))
        }
        Ok([]) => missing(name, "no address".to_owned()),
        Err(error) => missing(name, error.to_string()),
    }
}

fn missing(name: &str, why: String) -> Check {
    Check::problem(
        NAME,
        format!("names below {name} do not resolve here: {why}"),
        format!("add a DNS record for *.{name} with this server's address"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn a_domain_without_names_is_a_problem() {
        let check = below("https://box.invalid:8443");
        assert_eq!(check.status, Status::Problem);
        assert!(check.fix.is_some_and(|fix| fix.contains("*.box.invalid ")));
    }
}
