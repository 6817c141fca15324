//! `…/{id}:verb` for a router that matches whole segments only.
//!
//! The last segment is cut at its last raw `:`, and the verb becomes a segment of its own behind a `~`. A `~` that came
//! from outside is encoded first, so that nobody reaches a verb by another spelling.

use std::borrow::Cow;

/// The path to route by.
#[must_use]
pub(crate) fn to_route(path: &str) -> Cow<'_, str> {
    let path: Cow<'_, str> =
        if path.contains("/~") { Cow::Owned(path.replace("/~", "/%7E")) } else { Cow::Borrowed(path) };
    let last = path.rfind('/').map_or(0, |slash| slash + 1);
    match path[last..].rfind(':') {
        None => path,
        Some(colon) => {
            let (before, verb) = path.split_at(last + colon);
            Cow::Owned(format!("{before}/~{}", &verb[1..]))
        }
    }
}

/// The path as documented.
#[must_use]
pub(crate) fn to_public(route: &str) -> String {
    route.replace("/~", ":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_become_segments() {
        for (public, route) in [
            ("/v1/sandboxes/a:stop", "/v1/sandboxes/a/~stop"),
            ("/v1/sandboxes/a/files:mkdir", "/v1/sandboxes/a/files/~mkdir"),
            ("/v1/sandboxes/a:b:stop", "/v1/sandboxes/a:b/~stop"),
            ("/v1/sandboxes/a%3Astop", "/v1/sandboxes/a%3Astop"),
            ("/v1/sandboxes/a:b/files", "/v1/sandboxes/a:b/files"),
            ("/v1/sandboxes/a/~stop", "/v1/sandboxes/a/%7Estop"),
            ("/v1/sandboxes", "/v1/sandboxes"),
            ("/", "/"),
            ("*", "*"),
        ] {
            assert_eq!(to_route(public), route, "{public}");
        }
        assert_eq!(to_public("/v1/sandboxes/{id}/~stop"), "/v1/sandboxes/{id}:stop");
    }
}
