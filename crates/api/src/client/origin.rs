//! Where a server is: a scheme, a host and a port, nothing else.

/// An origin the key may be sent to: HTTPS anywhere, plain HTTP only where the bytes do not leave the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    text: String,
    loopback: bool,
    https: bool,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadOrigin {
    #[error("{0:?} is not a URL")]
    Unreadable(String),
    #[error(
        "{0:?} must start with https:// (http:// only for localhost, 127.0.0.1, [::1] and http://runtime.internal)"
    )]
    Exposed(String),
    #[error("{0:?} must be only a scheme, host and port: no path, query, fragment or credentials")]
    TooMuch(String),
}

impl Origin {
    pub fn parse(text: &str) -> Result<Self, BadOrigin> {
        // The parser would repair such text; an address with blanks in it is a mistake worth naming.
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(BadOrigin::Unreadable(text.to_owned()));
        }
        let url = reqwest::Url::parse(text).map_err(|_| BadOrigin::Unreadable(text.to_owned()))?;
        let host = url.host_str().ok_or_else(|| BadOrigin::Unreadable(text.to_owned()))?;
        let loopback = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        let inside = host == "runtime.internal" && url.port_or_known_default() == Some(80);
        let https = url.scheme() == "https";
        if !(https || (url.scheme() == "http" && (loopback || inside))) {
            return Err(BadOrigin::Exposed(text.to_owned()));
        }
        let credentials = !url.username().is_empty() || url.password().is_some();
        if credentials || !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err(BadOrigin::TooMuch(text.to_owned()));
        }
        Ok(Self { text: url.as_str().trim_end_matches('/').to_owned(), loopback, https })
    }

    /// Without a slash at the end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.loopback
    }

    #[must_use]
    pub fn is_https(&self) -> bool {
        self.https
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_stays_on_the_machine() {
        for good in [
            "http://localhost:8787",
            "http://LOCALHOST",
            "http://127.0.0.1:1/",
            "http://[::1]:8787",
            "http://runtime.internal",
            "http://runtime.internal:80",
            "https://api.example.com",
            "https://10.0.0.1:8443",
        ] {
            Origin::parse(good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for bad in [
            "http://0.0.0.0:8787",
            "http://host.docker.internal",
            "http://10.0.0.1",
            "http://runtime.internal:8080",
            "http://localhost.example.com",
            "ftp://localhost",
            "localhost:8787",
        ] {
            let error = Origin::parse(bad).expect_err(bad);
            assert!(matches!(error, BadOrigin::Exposed(_) | BadOrigin::Unreadable(_)), "{bad}: {error}");
        }
    }

    #[test]
    fn nothing_but_an_origin() {
        for bad in [
            "http://localhost/v1",
            "https://a.example/?x=1",
            "https://a.example/#x",
            "https://me@a.example",
            "https://me:word@a.example",
        ] {
            assert_eq!(Origin::parse(bad), Err(BadOrigin::TooMuch(bad.into())));
        }
        assert_eq!(Origin::parse("http://local host"), Err(BadOrigin::Unreadable("http://local host".into())));
    }

    #[test]
    fn one_spelling() {
        assert_eq!(Origin::parse("HTTP://LocalHost:8787/").expect("fine").as_str(), "http://localhost:8787");
    }
}
