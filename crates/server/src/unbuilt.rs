//! What the contract has and this server does not have yet: `501` with a hint, so that a client can tell it from a path
//! that never existed. A line leaves this file when its product arrives.

use axum::http::Method;
use serde_json::json;

use crate::call::PublicPath;
use crate::error::{ApiError, Kind};
use crate::fields::path_decode;
use crate::{AppState, Caller};

/// The first word after `/v1/`.
const PRODUCTS: &[(&str, Kind, &str)] = &[
    ("account", Kind::Unavailable, "Account settings"),
    ("addresses", Kind::NetworkUnavailable, "IP addresses"),
    ("agents", Kind::Unavailable, "Agents"),
    ("apps", Kind::Unavailable, "Apps"),
    ("audit", Kind::Unavailable, "The audit log"),
    ("billing", Kind::Unavailable, "Billing"),
    ("builds", Kind::Unavailable, "Builds"),
    ("ci", Kind::Unavailable, "CI"),
    ("containers", Kind::Unavailable, "Containers"),
    ("domains", Kind::NetworkUnavailable, "Domains"),
    ("egress-secrets", Kind::SecretsUnavailable, "Egress secrets"),
    ("environment", Kind::IdentityUnavailable, "The environment of a sandbox"),
    ("events", Kind::Unavailable, "Events"),
    ("feedback", Kind::Unavailable, "Feedback"),
    ("functions", Kind::Unavailable, "Functions"),
    ("identity", Kind::IdentityUnavailable, "Identity tokens"),
    ("images", Kind::Unavailable, "Images"),
    ("ips", Kind::NetworkUnavailable, "IP addresses"),
    ("job-imports", Kind::Unavailable, "Jobs"),
    ("job-runs", Kind::Unavailable, "Jobs"),
    ("jobs", Kind::Unavailable, "Jobs"),
    ("mcp", Kind::Unavailable, "MCP"),
    ("network", Kind::NetworkUnavailable, "Networks"),
    ("networks", Kind::NetworkUnavailable, "Networks"),
    ("notices", Kind::Unavailable, "Notices"),
    ("otel-exports", Kind::Unavailable, "Telemetry exports"),
    ("plans", Kind::Unavailable, "Plans"),
    ("ports", Kind::NetworkUnavailable, "TCP ports"),
    ("referrals", Kind::Unavailable, "Referrals"),
    ("reservations", Kind::Unavailable, "Reservations"),
    ("secrets", Kind::Unavailable, "Job secrets"),
    ("sso", Kind::Unavailable, "Single sign-on"),
    ("support", Kind::Unavailable, "Support"),
    ("switching", Kind::Unavailable, "Switching"),
    ("tunnel", Kind::NetworkUnavailable, "WireGuard"),
    ("usage", Kind::Unavailable, "Usage"),
    ("volume-backups", Kind::Unavailable, "Volumes"),
    ("volumes", Kind::Unavailable, "Volumes"),
    ("webhook-deliveries", Kind::Unavailable, "Webhooks"),
    ("webhooks", Kind::Unavailable, "Webhooks"),
];

/// The verb, or the words, after a sandbox's id. Longer ones first where one starts with another.
const OF_A_SANDBOX: &[(&str, Kind, &str)] = &[
    (":switch-image", Kind::SwitchImageUnavailable, "Switching images"),
    ("/browser", Kind::Unavailable, "The browser"),
    ("/desktop", Kind::Unavailable, "The desktop"),
    ("/events", Kind::Unavailable, "Events"),
    ("/files:link", Kind::FileLinksUnavailable, "File links"),
    ("/files:revoke-links", Kind::FileLinksUnavailable, "File links"),
    ("/interpreter", Kind::Unavailable, "The interpreter"),
    ("/mcp", Kind::Unavailable, "MCP"),
    ("/metrics", Kind::Unavailable, "Metrics"),
    ("/mounts", Kind::Unavailable, "Bucket mounts"),
    ("/tailscale", Kind::NetworkUnavailable, "Tailscale"),
];

/// The refusal for a path without a route, if the contract knows the path.
pub(crate) async fn refusal(
    app: &AppState,
    method: &Method,
    path: Option<PublicPath>,
    caller: Option<Caller>,
) -> Option<ApiError> {
    let path = path?.0;
    let rest = path.strip_prefix("/v1/")?;
    let first = &rest[..rest.find(['/', ':']).unwrap_or(rest.len())];
    if first == "resources" {
        return Some(
            ApiError::new(Kind::UpgradeRequired, "This path belonged to the 0.1 API, which is gone.")
                .details(json!({ "replacement": "/v1/sandboxes" }))
                .hint("Use /v1/sandboxes, or a newer client."),
        );
    }
    let may = || caller.as_ref().map_or(Ok(()), |caller| caller.may(method));
    if let Some(image) = one_image(method, rest) {
        return Some(may().err().unwrap_or_else(|| {
            ApiError::new(Kind::ImageNotFound, format!("There is no image {image}."))
                .hint("This version of the server has no images but its own, which is used when none is named.")
        }));
    }
    if let Some((_, kind, what)) = PRODUCTS.iter().find(|(name, ..)| *name == first) {
        return Some(may().err().unwrap_or_else(|| off(*kind, what)));
    }
    let rest = rest.strip_prefix("sandboxes/")?;
    // An id holds neither of the two.
    let (id, tail) = rest.split_at(rest.find(['/', ':'])?);
    let (_, kind, what) = *OF_A_SANDBOX.iter().find(|(words, ..)| starts_with_words(tail, words))?;
    if let Err(error) = may() {
        return Some(error);
    }
    // Of a sandbox the caller cannot see, nothing is said.
    let id = path_decode(id).unwrap_or_default();
    Some(app.reach(caller.as_ref()?, &id).await.err().unwrap_or_else(|| off(kind, what)))
}

/// The id in a request for one image's record. That there is none is the answer, as it is for a create that names one:
/// who asks whether an id is an image or a snapshot then asks for the other.
fn one_image(method: &Method, rest: &str) -> Option<uuid::Uuid> {
    let id = rest.strip_prefix("images/").filter(|_| method == Method::GET)?;
    id.parse().ok()
}

fn starts_with_words(tail: &str, words: &str) -> bool {
    tail.strip_prefix(words).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', ':']))
}

fn off(kind: Kind, what: &str) -> ApiError {
    ApiError::new(kind, format!("{what}: not on this server yet."))
        .hint("This version of the server does not have it. /v1/openapi.json lists what it has.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_record_of_an_image_is_asked_for_by_its_id() {
        let id = "0190a1b2-0000-7000-8000-000000000000";
        assert_eq!(one_image(&Method::GET, &format!("images/{id}")).map(|id| id.to_string()).as_deref(), Some(id));
        for (method, rest) in [
            (Method::POST, format!("images/{id}")),
            (Method::GET, format!("images/{id}/logs")),
            (Method::GET, format!("images/{id}:tag")),
            (Method::GET, "images/registries".to_owned()),
            (Method::GET, "images".to_owned()),
        ] {
            assert_eq!(one_image(&method, &rest), None, "{method} {rest}");
        }
    }

    #[test]
    fn words_end_where_they_end() {
        assert!(starts_with_words("/network", "/network"));
        assert!(starts_with_words("/files/archive/uploads", "/files/archive"));
        assert!(starts_with_words("/desktop:start", "/desktop"));
        assert!(!starts_with_words("/networking", "/network"));
        assert!(!starts_with_words("/network-log", "/network"));
    }
}
