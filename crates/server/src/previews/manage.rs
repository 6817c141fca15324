//! Making, listing, reading, rotating and deleting previews.

use aws_lc_rs::rand;
use axum::extract::{Path, State as Extract};
use axum::response::Response;
use chrono::{DateTime, Utc};
use runtime_api::error::ErrorBody;
use runtime_api::preview::{CreatePreview, DeletedPreview, Preview, PreviewList, PreviewToken};
use runtime_model::SandboxId;
use runtime_store::PreviewRow;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::address::{self, RESERVED};
use super::token::{self, Claims};
use crate::AppState;
use crate::call::Call;
use crate::clock::{now_ms, time};
use crate::error::{ApiError, Issue, Kind};
use crate::fields::{Checked, Fields, Given, int, list as list_of, one_of, text};
use crate::idempotency::Answer;
use crate::sandboxes::json_response;
use crate::sessions::is_origin;

/// Seconds.
const DEFAULT_LIFETIME: i64 = 86_400;
const LONGEST: i64 = 604_800;
const SHORTEST: i64 = 60;
const MOST_SITES: usize = 16;
/// Of one sandbox.
const MOST_PREVIEWS: usize = 100;

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(get, delete)).routes(routes!(rotate))
}

/// How long the caller wants its token to last, in seconds.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    lifetime: i64,
    /// Never after this second.
    last: Option<i64>,
}

impl Wanted {
    fn read(fields: &mut Fields) -> Self {
        let lifetime = fields.opt("ttlSeconds", int(SHORTEST..=LONGEST));
        let last = fields.opt("expiresAt", deadline);
        // With a deadline alone, all the time there is until then.
        let otherwise = if last.is_some() { LONGEST } else { DEFAULT_LIFETIME };
        Self { lifetime: lifetime.unwrap_or(otherwise), last }
    }
}

/// A time with its zone, in whole seconds since 1970, rounded down.
fn deadline(given: Given<'_>) -> Checked<i64> {
    let wrong = |message: &str| Err(vec![Issue::new("", message)]);
    let said = text(1..=64)(given)?;
    let Ok(when) = DateTime::parse_from_rfc3339(&said) else {
        return wrong("must be a time with its zone, such as 2027-01-31T12:00:00Z");
    };
    let ahead = when.timestamp() - Utc::now().timestamp();
    if (SHORTEST..=LONGEST).contains(&ahead) {
        Ok(when.timestamp())
    } else {
        wrong("must be 60 seconds to 7 days ahead")
    }
}

fn port(given: Given<'_>) -> Checked<u16> {
    let port = int(1..=65_535_u16)(given)?;
    if RESERVED.contains(&port) {
        return Err(vec![Issue::new("", "is a port of the sandbox's own relay")]);
    }
    Ok(port)
}

/// An origin, or every name below one.
fn site(given: Given<'_>) -> Checked<String> {
    let site = text(1..=255)(given)?;
    if is_origin(&site) || is_origin(&site.replacen("https://*.", "https://", 1)) {
        return Ok(site);
    }
    Err(vec![Issue::new("", "must be https://host, https://*.host or http://localhost[:port]")])
}

/// Put a port of the sandbox under an address of its own, or change who may see the one that is there.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/previews", tag = "previews", params(("id" = String, Path)),
    request_body = CreatePreview, responses(
    (status = 200, body = Preview), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn create(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        let mut fields = call.fields()?;
        let port = fields.need("port", port);
        let public = fields.opt("visibility", one_of(&[("private", false), ("public", true)])).unwrap_or(false);
        let sites = fields.nullable("embedOrigins", list_of(0..=MOST_SITES, site));
        let wanted = Wanted::read(&mut fields);
        fields.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        let _one_at_a_time = app.visits().changing.lock().await;
        let before = app.preview_row(live.id, port).await?;
        if before.is_none() && app.preview_rows(live.id).await?.len() >= MOST_PREVIEWS {
            return Err(ApiError::new(Kind::QuotaExceeded, format!("The sandbox has {MOST_PREVIEWS} previews."))
                .hint("Delete some."));
        }
        let fresh = PreviewRow {
            sandbox: live.id,
            port,
            id: uuid::Uuid::new_v4(),
            public,
            embed_origins: None,
            secret: secret()?,
            created_at: now_ms(),
        };
        let mut row = PreviewRow { public, ..before.clone().unwrap_or(fresh) };
        if let Some(sites) = sites {
            row.embed_origins = sites.filter(|sites| !sites.is_empty());
        }
        if before.as_ref() != Some(&row) {
            app.put_preview(&row).await?;
        }
        let mut told = app.preview_record(&call, &row, wanted).await;
        let mut hint = if public {
            "Everybody who has the address sees it.".to_owned()
        } else {
            "Open urlWithToken in a browser, or send the token as X-Runtime-Preview-Token.".to_owned()
        };
        if app.config().preview_domain.is_none() {
            hint.push_str(
                " The address is for browsers on the server's own machine: others need serve --preview-domain.",
            );
        }
        told.hint = Some(hint);
        Answer::json(&told)
    })
    .await
}

/// The previews of a sandbox, by port; each private one with a token that lasts a day.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/previews", tag = "previews", params(("id" = String, Path)), responses(
    (status = 200, body = PreviewList), (status = 404, body = ErrorBody)))]
async fn list(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Result<Response, ApiError> {
    call.no_query()?;
    let live = app.reach(&call.caller, &id).await?;
    let wanted = Wanted { lifetime: DEFAULT_LIFETIME, last: None };
    let mut data = Vec::new();
    for row in app.preview_rows(live.id).await? {
        data.push(app.preview_record(&call, &row, wanted).await);
    }
    Ok(json_response(Answer::json(&PreviewList { data })?))
}

/// One preview; a private one with a token that lasts as asked.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/previews/{port}", tag = "previews",
    params(("id" = String, Path), ("port" = u16, Path), PreviewToken), responses(
    (status = 200, body = Preview), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn get(
    Extract(app): Extract<AppState>,
    Path((id, port)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let mut query = call.query()?;
    let wanted = Wanted::read(&mut query);
    query.finish()?;
    let live = app.reach(&call.caller, &id).await?;
    let row = app.known_preview(live.id, &port).await?;
    Ok(json_response(Answer::json(&app.preview_record(&call, &row, wanted).await)?))
}

/// End every token of a preview, and what is open by them; the answer has a new one.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/previews/{port}/~rotate", tag = "previews",
    params(("id" = String, Path), ("port" = u16, Path)), responses(
    (status = 200, body = Preview), (status = 404, body = ErrorBody)))]
async fn rotate(Extract(app): Extract<AppState>, Path((id, port)): Path<(String, String)>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        call.fields()?.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        let _one_at_a_time = app.visits().changing.lock().await;
        let row = PreviewRow { secret: secret()?, ..app.known_preview(live.id, &port).await? };
        app.put_preview(&row).await?;
        let wanted = Wanted { lifetime: DEFAULT_LIFETIME, last: None };
        Answer::json(&app.preview_record(&call, &row, wanted).await)
    })
    .await
}

/// Take the port's address away, and cut what is open there.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/previews/{port}", tag = "previews",
    params(("id" = String, Path), ("port" = u16, Path)), responses(
    (status = 200, body = DeletedPreview), (status = 404, body = ErrorBody)))]
async fn delete(Extract(app): Extract<AppState>, Path((id, port)): Path<(String, String)>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        call.fields()?.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        let _one_at_a_time = app.visits().changing.lock().await;
        let row = app.known_preview(live.id, &port).await?;
        let failed = |error| ApiError::internal(format!("deleting {row:?}"), error);
        app.store().delete_preview(row.sandbox, row.port).await.map_err(failed)?;
        app.visits().cut(row.sandbox, row.port);
        Answer::json(&DeletedPreview {
            id: row.id.to_string(),
            sandbox_id: row.sandbox.to_string(),
            port: row.port,
            deleted: true,
        })
    })
    .await
}

fn secret() -> Result<[u8; 32], ApiError> {
    let mut secret = [0; 32];
    rand::fill(&mut secret).map_err(|_| {
        ApiError::internal("making a preview's key", std::io::Error::other("no random bytes from the kernel"))
    })?;
    Ok(secret)
}

impl AppState {
    pub(super) async fn preview_row(&self, sandbox: SandboxId, port: u16) -> Result<Option<PreviewRow>, ApiError> {
        let row = self.store().preview(sandbox, port).await;
        row.map_err(|error| ApiError::internal(format!("reading the preview of port {port} of {sandbox}"), error))
    }

    async fn preview_rows(&self, sandbox: SandboxId) -> Result<Vec<PreviewRow>, ApiError> {
        let rows = self.store().previews(sandbox).await;
        rows.map_err(|error| ApiError::internal(format!("listing the previews of {sandbox}"), error))
    }

    async fn known_preview(&self, sandbox: SandboxId, port: &str) -> Result<PreviewRow, ApiError> {
        let unknown = || ApiError::new(Kind::NotFound, "This sandbox has no preview of this port.");
        let number: u16 = port.parse().ok().filter(|number: &u16| number.to_string() == port).ok_or_else(unknown)?;
        self.preview_row(sandbox, number).await?.ok_or_else(unknown)
    }

    /// From the answer on nobody is served as before.
    async fn put_preview(&self, row: &PreviewRow) -> Result<(), ApiError> {
        let failed = |error| ApiError::internal(format!("storing {row:?}"), error);
        self.store().save_preview(row.clone()).await.map_err(failed)?;
        self.visits().cut(row.sandbox, row.port);
        Ok(())
    }

    async fn preview_record(&self, call: &Call, row: &PreviewRow, wanted: Wanted) -> Preview {
        let url = address::url(self.config(), &self.api_url(call), row.sandbox, row.port);
        let claims = self.claims(call, row, wanted);
        let token = claims.map(|claims| token::make(row, claims));
        Preview {
            id: row.id.to_string(),
            sandbox_id: row.sandbox.to_string(),
            port: row.port,
            visibility: if row.public { "public" } else { "private" }.to_owned(),
            url_with_token: token.as_ref().map(|token| format!("{url}?{}={token}", super::visit::TOKEN_PARAMETER)),
            url,
            token,
            token_expires_at: claims.map(|claims| time(claims.ends_at * 1000)),
            disabled: false,
            embed_origins: row.embed_origins.clone(),
            created_at: time(row.created_at),
            hint: None,
            replayed: None,
        }
    }

    /// `None`: there is no token for this caller.
    fn claims(&self, call: &Call, row: &PreviewRow, wanted: Wanted) -> Option<Claims> {
        if row.public || call.caller.read_only {
            return None;
        }
        let now = now_ms() / 1000;
        let session = call.caller.session.as_ref();
        let last = [wanted.last, session.map(|access| access.expires_at / 1000)].into_iter().flatten().min();
        let ends_at = token::end(now, wanted.lifetime, last);
        // With so little of its session left a page gets none.
        (ends_at - now >= SHORTEST || session.is_none())
            .then_some(Claims { ends_at, session: session.map(|access| access.session) })
    }
}
