//! Making, listing and revoking sessions.

use aws_lc_rs::rand;
use axum::extract::{Path, State as Extract};
use axum::http::Uri;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use runtime_api::error::ErrorBody;
use runtime_api::session::{CreateSession, NewSession, Session, SessionList};
use runtime_model::SessionId;
use runtime_store::{Outcome, Replay, SessionRow};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{PREFIX, ended};
use crate::AppState;
use crate::auth::hash;
use crate::call::Call;
use crate::clock::{now_ms, seconds};
use crate::error::{ApiError, Kind};
use crate::fields::{Checked, Given, int, list as list_of, text};
use crate::idempotency::{Answer, Keep};
use crate::sandboxes::json_response;

/// Seconds.
const DEFAULT_TTL: u32 = 3600;
const MOST_ORIGINS: usize = 16;
/// Live ones of one sandbox.
const MOST_SESSIONS: u32 = 1000;
/// Ended ones are listed for so long.
const SHOWN_MS: i64 = 24 * 60 * 60 * 1000;

pub(super) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(revoke))
}

/// Make a session: what a web page needs to use this sandbox without a key. The token is in this answer only.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/sessions", tag = "sessions", params(("id" = String, Path)),
    request_body = CreateSession, responses(
    (status = 200, body = NewSession), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 429, body = ErrorBody)))]
async fn create(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        let mut fields = call.fields()?;
        let ttl = fields.opt("ttlSeconds", int(60..=86_400_u32)).unwrap_or(DEFAULT_TTL);
        let origins = fields.opt("origins", list_of(0..=MOST_ORIGINS, origin)).unwrap_or_default();
        let name = fields.opt("name", text(1..=128));
        fields.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        let session = SessionId::new_v4();
        let mut secret = [0_u8; 32];
        let random = |_| ApiError::internal("making a token", std::io::Error::other("no random bytes from the kernel"));
        rand::fill(&mut secret).map_err(random)?;
        let token = format!("{PREFIX}{session}_{}", URL_SAFE_NO_PAD.encode(secret));
        let now = now_ms();
        let row = SessionRow {
            id: session,
            sandbox: live.id,
            credential: call.caller.credential,
            name,
            origins,
            hash: hash(&token),
            created_at: now,
            expires_at: now + seconds(ttl),
            revoked_at: None,
        };
        let told =
            |token| NewSession { session: record(&row, now), token, api_url: app.api_url(&call), replayed: None };
        // What is remembered holds no token.
        let repeat = Answer::json(&told(None))?.body;
        let key = app.key_record(&call, Replay::Body(repeat.to_vec()));
        let stored = app.store().create_session(row.clone(), key, MOST_SESSIONS).await;
        match stored.map_err(|error| ApiError::internal(format!("storing a session of {}", live.id), error))? {
            Outcome::Done => Ok(Answer::json(&told(Some(token)))?.keep(Keep::Done)),
            Outcome::KeyUsed(held) => Ok(Answer::ready(app.replay(&held).await?, Keep::Done)),
            Outcome::Moved | Outcome::NameHeld(_) => Err(ApiError::new(
                Kind::QuotaExceeded,
                format!("The sandbox has {MOST_SESSIONS} sessions that have not ended."),
            )
            .hint("Revoke some, or make them shorter.")),
        }
    })
    .await
}

/// Sessions that live, and those that ended within a day, newest first; without their tokens.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/sessions", tag = "sessions", params(("id" = String, Path)), responses(
    (status = 200, body = SessionList), (status = 404, body = ErrorBody)))]
async fn list(Extract(app): Extract<AppState>, Path(id): Path<String>, call: Call) -> Result<Response, ApiError> {
    call.no_query()?;
    let live = app.reach(&call.caller, &id).await?;
    let now = now_ms();
    let rows = app.store().sessions(live.id, now - SHOWN_MS).await;
    let rows = rows.map_err(|error| ApiError::internal(format!("listing the sessions of {}", live.id), error))?;
    let data = rows.iter().map(|row| record(row, now)).collect();
    Ok(json_response(Answer::json(&SessionList { data, next_cursor: None })?))
}

/// End a session now, and what it has open. Repeatable.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/sessions/{session}/~revoke", tag = "sessions",
    params(("id" = String, Path), ("session" = String, Path)), responses(
    (status = 200, body = Session), (status = 404, body = ErrorBody)))]
async fn revoke(Extract(app): Extract<AppState>, Path((id, session)): Path<(String, String)>, call: Call) -> Response {
    app.answer_once(call, |app, call| async move {
        call.fields()?.finish()?;
        let live = app.reach(&call.caller, &id).await?;
        let unknown = || ApiError::new(Kind::NotFound, "This sandbox has no session with this id.");
        let session: SessionId = session.parse().map_err(|_| unknown())?;
        let failed = |error| ApiError::internal(format!("revoking session {session}"), error);
        let now = now_ms();
        app.store().revoke_session(live.id, session, now).await.map_err(failed)?;
        app.cuts().cut(session);
        let row = app.store().session(live.id, session).await.map_err(failed)?.ok_or_else(unknown)?;
        Answer::json(&record(&row, now))
    })
    .await
}

fn record(row: &SessionRow, now: i64) -> Session {
    let time = crate::clock::time;
    Session {
        id: row.id.to_string(),
        sandbox_id: row.sandbox.to_string(),
        name: row.name.clone(),
        origins: row.origins.clone(),
        created_by: row.credential.to_string(),
        created_at: time(row.created_at),
        expires_at: time(row.expires_at),
        revoked_at: row.revoked_at.map(time),
        state: ended(row, now).unwrap_or("active").to_owned(),
    }
}

/// As browsers write it (RFC 6454, section 6.2): lower case, without a path, without the port that the scheme implies.
fn origin(given: Given<'_>) -> Checked<String> {
    let origin = text(1..=255)(given)?;
    if is_origin(&origin) {
        return Ok(origin);
    }
    Err(vec![crate::error::Issue::new(
        "",
        "must be https://host, https://host:port or http://localhost[:port], as a browser writes it",
    )])
}

fn is_origin(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return false };
    let host = authority.host();
    let implied = match scheme {
        "https" => 443,
        "http" if host == "localhost" => 80,
        _ => return false,
    };
    let whole = match authority.port_u16() {
        None => format!("{scheme}://{host}"),
        Some(port) if port == implied || port == 0 => return false,
        Some(port) => format!("{scheme}://{host}:{port}"),
    };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_:[]".contains(&byte);
    !host.is_empty() && whole == text && host.bytes().all(plain)
}

impl AppState {
    /// Where this API is found: as configured, else as this caller found it.
    fn api_url(&self, call: &Call) -> String {
        let found = || call.host.as_ref().map(|host| format!("http://{host}"));
        self.config().public_url.clone().or_else(found).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_a_browser_sends() {
        for good in [
            "https://app.example.com",
            "https://app.example.com:8443",
            "http://localhost",
            "http://localhost:3000",
            "https://xn--bcher-kva.example",
            "https://[::1]:8443",
        ] {
            assert!(is_origin(good), "{good}");
        }
        for bad in [
            "",
            "*",
            "null",
            "https://*",
            "https://*.example.com",
            "https://app.example.com/",
            "https://app.example.com/path",
            "https://app.example.com:443",
            "http://localhost:80",
            "http://app.example.com",
            "http://localhost.example.com",
            "http://127.0.0.1:3000",
            "https://App.example.com",
            "HTTPS://app.example.com",
            "https://user@app.example.com",
            "https://app.example.com:0",
            "https://app.example.com:",
            "https://a b",
            "ftp://app.example.com",
            "app.example.com",
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
    }
}
