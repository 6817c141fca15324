//! What a session's token reaches: a list of what is allowed, so that a new route is closed to it until it is put here.

use axum::http::Method;
use runtime_model::SandboxId;

use crate::error::{ApiError, Kind};

/// Words after the sandbox's id, with everything below and every verb of them.
const BELOW: [&str; 4] = ["/processes", "/files", "/uploads", "/interpreter"];

/// The path is compared as it was written: one that is written in another way is another path.
pub(super) fn check(sandbox: SandboxId, method: &Method, path: &str) -> Result<(), ApiError> {
    let tail = path.strip_prefix("/v1/sandboxes/").and_then(|rest| rest.strip_prefix(&sandbox.to_string()));
    if tail.is_some_and(|tail| is_open(method, tail)) {
        return Ok(());
    }
    Err(ApiError::new(Kind::Forbidden, "A session does not reach this path.").hint(
        "It reaches its own sandbox: the record, :exec, processes, files, uploads, the interpreter, and the list of previews.",
    ))
}

fn is_open(method: &Method, tail: &str) -> bool {
    match tail {
        "" | "/previews" => method == Method::GET,
        ":exec" => method == Method::POST,
        _ => BELOW.iter().any(|word| {
            tail.strip_prefix(word)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest.starts_with(':'))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_open() {
        let id = SandboxId::new_v4();
        let open = |method: &Method, tail: &str| check(id, method, &format!("/v1/sandboxes/{id}{tail}")).is_ok();
        for (method, tail) in [
            (Method::GET, ""),
            (Method::POST, ":exec"),
            (Method::GET, "/processes"),
            (Method::POST, "/processes/p1:write"),
            (Method::GET, "/files"),
            (Method::PUT, "/files/content"),
            (Method::POST, "/files:rename"),
            (Method::POST, "/uploads/u1:commit"),
            (Method::POST, "/interpreter"),
            (Method::GET, "/previews"),
        ] {
            assert!(open(&method, tail), "{method} {tail}");
        }
        for (method, tail) in [
            (Method::DELETE, ""),
            (Method::PATCH, ""),
            (Method::POST, ":stop"),
            (Method::POST, ":fork"),
            (Method::POST, ":execute"),
            (Method::GET, "/terminal"),
            (Method::GET, "/tunnel"),
            (Method::POST, "/previews"),
            (Method::GET, "/previews/80"),
            (Method::POST, "/sessions"),
            (Method::GET, "/sessions"),
            (Method::GET, "/filesystem"),
            (Method::GET, "/network"),
            (Method::POST, "/mcp"),
        ] {
            assert!(!open(&method, tail), "{method} {tail}");
        }
        let other = SandboxId::new_v4();
        for path in [
            "/v1/sandboxes".to_owned(),
            "/v1/me".to_owned(),
            "/mcp".to_owned(),
            format!("/v1/sandboxes/{other}"),
            format!("/v1/sandboxes/{other}/files"),
            format!("/v1/sandboxes/{id}0/files"),
            format!("/v1/sandboxes/../sandboxes/{id}/files"),
            format!("/v1//sandboxes/{id}/files"),
            format!("/v1/snapshots/{id}"),
        ] {
            assert!(check(id, &Method::GET, &path).is_err(), "{path}");
        }
    }
}
