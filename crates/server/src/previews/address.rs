//! The addresses of previews: `<port>-<sandbox>.<domain>`.

use axum::http::HeaderMap;
use axum::http::header::HOST;
use runtime_model::SandboxId;

use crate::Config;

/// What the sandbox's own relay listens on.
pub(super) const RESERVED: [u16; 3] = [10800, 10802, 10853];
/// Browsers and most resolvers take every name below it for this machine (RFC 6761, section 6.3).
const LOCAL: &str = "localhost";

/// What a request's `Host` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(super) sandbox: SandboxId,
    pub(super) port: u16,
    /// Its visitors come by TLS, which ends in front of this server.
    pub(super) secure: bool,
}

/// `None`: it is not for a preview.
pub(crate) fn asked(config: &Config, headers: &HeaderMap) -> Option<Address> {
    let host = headers.get(HOST)?.to_str().ok()?;
    let name = without_port(host);
    let below = |domain: &str| {
        let cut = name.len().checked_sub(domain.len() + 1)?;
        let (label, rest) = (name.get(..cut)?, name.get(cut + 1..)?);
        (name.as_bytes()[cut] == b'.' && rest.eq_ignore_ascii_case(domain)).then_some(label)
    };
    let (scheme, domain) = config.preview_domain.as_deref().and_then(|domain| domain.split_once("://")).unzip();
    let configured = domain.map(without_port).and_then(below);
    let secure = configured.is_some() && scheme == Some("https");
    let (port, sandbox) = configured.or_else(|| below(LOCAL))?.split_once('-')?;
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(Address {
        sandbox: sandbox.to_ascii_lowercase().parse().ok()?,
        port: port.parse().ok().filter(|port| *port > 0)?,
        secure,
    })
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// The address of a port, with a slash at the end. Without a domain of its own it is below `localhost`, at the port where
/// the caller found this server, if previews have none of their own.
pub(super) fn url(config: &Config, api: &str, sandbox: SandboxId, port: u16) -> String {
    if let Some((scheme, domain)) = config.preview_domain.as_deref().and_then(|domain| domain.split_once("://")) {
        return format!("{scheme}://{port}-{sandbox}.{domain}/");
    }
    let caller = api.rsplit_once(':').and_then(|(_, there)| there.parse().ok());
    let there = config.preview_port.or(caller).map(|there| format!(":{there}")).unwrap_or_default();
    format!("http://{port}-{sandbox}.{LOCAL}{there}/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_preview_or_none() {
        let id = SandboxId::new_v4();
        let config = Config { preview_domain: Some("https://box.example:8443".to_owned()), ..Config::default() };
        let of = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            asked(&config, &headers)
        };
        let local = Some(Address { sandbox: id, port: 3000, secure: false });
        assert_eq!(of(&format!("3000-{id}.localhost:8787")), local);
        assert_eq!(of(&format!("3000-{id}.localhost")), local);
        let found = Some(Address { sandbox: id, port: 3000, secure: true });
        assert_eq!(of(&format!("3000-{id}.BOX.example:8443")), found);
        assert_eq!(of(&format!("3000-{}.box.example", id.to_string().to_uppercase())), found);
        for host in [
            "localhost:8787".to_owned(),
            "127.0.0.1:8787".to_owned(),
            "box.example".to_owned(),
            format!("3000-{id}.other.example"),
            format!("3000-{id}.notlocalhost"),
            format!("0-{id}.localhost"),
            format!("65536-{id}.localhost"),
            format!("+80-{id}.localhost"),
            format!("{id}.localhost"),
            "3000-x.localhost".to_owned(),
            format!("a.3000-{id}.localhost"),
            ".localhost".to_owned(),
            "\u{e9}.localhost".to_owned(),
        ] {
            assert_eq!(host.parse::<axum::http::HeaderValue>().ok().and_then(|_| of(&host)), None, "{host}");
        }
    }

    #[test]
    fn a_url_leads_to_where_the_caller_was() {
        let id = SandboxId::from_bytes([1; 16]);
        let of = |config: &Config, api: &str| url(config, api, id, 80);
        let name = format!("80-{id}");
        let plain = Config::default();
        assert_eq!(of(&plain, "http://127.0.0.1:8787"), format!("http://{name}.localhost:8787/"));
        assert_eq!(of(&plain, "http://[::1]:8787"), format!("http://{name}.localhost:8787/"));
        assert_eq!(of(&plain, "http://runtime"), format!("http://{name}.localhost/"));
        let aside = Config { preview_port: Some(81), ..Config::default() };
        assert_eq!(of(&aside, "https://api.example"), format!("http://{name}.localhost:81/"));
        for (domain, there) in [("https://box.example", "https"), ("http://box.example", "http")] {
            let own = Config { preview_domain: Some(domain.to_owned()), ..aside.clone() };
            assert_eq!(of(&own, "http://127.0.0.1:8787"), format!("{there}://{name}.box.example/"));
        }
    }
}
