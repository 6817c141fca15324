//! The TLS configuration of everything that calls out: the system's roots, aws-lc-rs, TLS 1.2 and up.
//!
//! `SSL_CERT_FILE` and `SSL_CERT_DIR` replace the system's roots, as they do for OpenSSL programs.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("found no trusted certificate authority on this system (install ca-certificates, or set SSL_CERT_FILE)")]
    NoRoots(#[source] Option<rustls_native_certs::Error>),
    #[error("cannot set up the TLS versions")]
    Versions(#[source] rustls::Error),
}

/// A configuration that trusts what this system trusts.
pub fn client_config() -> Result<ClientConfig, TlsError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // One broken file in a system's store must not take the other hundred with it.
    roots.add_parsable_certificates(loaded.certs);
    if roots.is_empty() {
        return Err(TlsError::NoRoots(loaded.errors.into_iter().next()));
    }
    with_roots(roots)
}

/// A configuration that trusts nobody: for clients that only speak plain HTTP to this machine, and must not pay for
/// reading the system's roots.
pub fn no_roots() -> Result<ClientConfig, TlsError> {
    with_roots(RootCertStore::empty())
}

fn with_roots(roots: RootCertStore) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Versions)?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_configuration_without_roots_still_builds() {
        super::no_roots().expect("no roots are fine for plain HTTP");
    }
}
