//! Every path there is, and what the others answer.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State as Extract};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, Contact, InfoBuilder, OpenApi, PathItem, Paths};
use utoipa_axum::router::OpenApiRouter;

use crate::call::PublicPath;
use crate::error::{ApiError, Kind};
use crate::http::path;
use crate::{AppState, Caller, account, guest, mcp, sandboxes, sessions, snapshots, unbuilt};

const DOCUMENT: &str = "/v1/openapi.json";

/// All of `/v1`, existing or not, but the document; and the same as tools.
pub(crate) fn needs_key(path: &str) -> bool {
    path == mcp::PATH || (path == "/v1" || path.starts_with("/v1/")) && path != DOCUMENT
}

/// The documented routes. To add some: a `router()` in their module, a line here.
fn documented() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(sandboxes::router())
        .merge(snapshots::router())
        .merge(sessions::router())
        .merge(guest::router())
        .merge(account::router())
}

pub(crate) fn router(app: AppState) -> Router {
    let document = openapi().to_json().map(Bytes::from).map_err(Arc::new);
    let document = get(move || async move {
        match document {
            Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
            Err(error) => ApiError::internal("writing the API document", error).into_response(),
        }
    });
    let (router, _) = documented().split_for_parts();
    let api = router
        .route("/health", get(health))
        .route(DOCUMENT, document)
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .with_state(app.clone());
    // Beside the API, and a client of it.
    api.clone().route(mcp::PATH, mcp::route(app, api)).method_not_allowed_fallback(wrong_method)
}

/// That it serves, and on what: an emulated engine works, and is nothing to run work on.
async fn health(Extract(app): Extract<AppState>) -> Response {
    let facts = app.node().facts();
    axum::Json(serde_json::json!({"status": "ok", "engine": facts.engine, "emulated": facts.emulated})).into_response()
}

async fn wrong_method() -> ApiError {
    ApiError::new(Kind::MethodNotAllowed, "This path does not take this method.")
}

async fn no_route(Extract(app): Extract<AppState>, request: Request) -> Response {
    let path = request.extensions().get::<PublicPath>().cloned();
    let caller = request.extensions().get::<Caller>().cloned();
    match unbuilt::refusal(&app, request.method(), path, caller).await {
        Some(error) => error.into_response(),
        None => ApiError::new(Kind::RouteNotFound, "There is no such path.")
            .hint("The paths are listed in /v1/openapi.json.")
            .into_response(),
    }
}

/// The document, generated from the routes: verbs written as clients write them.
#[must_use]
pub fn openapi() -> OpenApi {
    let mut document = documented().into_openapi();
    document.info = InfoBuilder::new()
        .title("Runtime")
        .version(runtime_api::API_VERSION)
        .description(Some("Sandboxes: make them, run commands in them, move files. Errors are `ErrorBody` everywhere."))
        .contact(None::<Contact>)
        .build();
    let mut paths = Paths::new();
    paths.paths =
        document.paths.paths.into_iter().map(|(route, item)| (path::to_public(&route), named(item))).collect();
    document.paths = paths;
    document
        .components
        .get_or_insert_with(Components::new)
        .add_security_scheme("key", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    document.security = Some(vec![SecurityRequirement::new("key", [] as [&str; 0])]);
    document
}

/// An operation's id is its handler's name, which is told apart from others of its name by the tag.
fn named(mut item: PathItem) -> PathItem {
    let PathItem { get, put, post, delete, patch, head, options, trace, .. } = &mut item;
    for operation in [get, put, post, delete, patch, head, options, trace].into_iter().flatten() {
        let tag = operation.tags.iter().flatten().next().cloned();
        if let (Some(tag), Some(id)) = (tag, &mut operation.operation_id) {
            *id = format!("{tag}_{id}");
        }
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_an_id_of_its_own() {
        let document = serde_json::to_value(openapi()).expect("JSON");
        let paths = document["paths"].as_object().expect("paths");
        let mut ids: Vec<&str> = paths
            .values()
            .flat_map(|item| item.as_object().expect("operations").values())
            .map(|operation| operation["operationId"].as_str().expect("an id"))
            .collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all, "{ids:?}");
        assert!(ids.contains(&"sandboxes_create") && all > 20, "{ids:?}");
    }

    #[test]
    fn the_document_names_paths_as_clients_write_them() {
        let paths: Vec<String> = openapi().paths.paths.into_keys().collect();
        for path in ["/v1/sandboxes", "/v1/sandboxes/{id}", "/v1/sandboxes/{id}:stop", "/v1/me", "/v1/limits"] {
            assert!(paths.iter().any(|have| have == path), "{path} is not among {paths:?}");
        }
        assert!(paths.iter().all(|path| !path.contains('~')), "{paths:?}");
    }

    #[test]
    fn every_v1_path_needs_a_key_but_the_document() {
        for (path, needs) in
            [("/v1", true), ("/v1/nope", true), ("/v1/openapi.json", false), ("/health", false), ("/v10", false)]
        {
            assert_eq!(needs_key(path), needs, "{path}");
        }
    }
}
