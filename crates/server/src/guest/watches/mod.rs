//! Watches of a sandbox's files: start, list, read, stop. They live in its agent; reading one neither wakes the sandbox
//! nor counts as use of it.

mod follow;

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use runtime_api::watch::{
    ChangeType, FileChange, OverflowReason, WatchEndReason, WatchInfo, WatchLine, WatchList, WatchPoll, WatchRequest,
    WatchState, WatchStopped,
};
use runtime_proto::guest::{
    Ask, Change, ChangeKind, FollowWatch, MAX_WATCHES, Nothing, RETAINED_RECORDS, StartWatch, Tell, Watch, WatchEnd,
    WatchRecord, WatchRef,
};
use runtime_proto::node::AskError;
use tokio::time::{Instant, timeout_at};

use super::exec::process_key;
use super::files::AS;
use super::gateway::{Guest, asked_with, from_ask};
use crate::error::{ApiError, Issue, Kind};
use crate::fields::{Checked, Given, absolute_path, boolean, int, list as list_of, one_of, text};
use crate::idempotency::{Answer, Keep};
use crate::{AppState, Call};
use follow::Follower;

const LONGEST_POLL_MS: u64 = 8_000;
const DEFAULT_BATCH_MS: u32 = 100;
const DEFAULT_TIMEOUT_MS: u64 = 3_600_000;
const LONGEST_MS: u64 = 86_400_000;
const MOST_PATTERNS: usize = 100;
/// Cursors stay whole numbers in every client.
const MOST_BYTES: u64 = 1 << 53;
/// What one poll may answer: what is held, and what came while it was read. A guest that tells more is not heard out.
const MOST_POLLED: usize = 2 * RETAINED_RECORDS;

const KINDS: &[(&str, ChangeKind)] = &[
    ("create", ChangeKind::Create),
    ("write", ChangeKind::Write),
    ("remove", ChangeKind::Remove),
    ("rename", ChangeKind::Rename),
    ("chmod", ChangeKind::Chmod),
    ("access", ChangeKind::Access),
];

/// Watch the files below a path. What changes after the answer is seen.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/files/watches",
    tag = "watches",
    params(("id" = String, Path, description = "A sandbox")),
    request_body = WatchRequest,
    responses((status = 200, body = WatchInfo))
)]
pub(in crate::guest) async fn start(State(app): State<AppState>, Path(id): Path<String>, call: Call) -> Response {
    let wanted = match read(&call) {
        Ok(wanted) => wanted,
        Err(error) => return error.into_response(),
    };
    app.answer_once(call, move |app, call| async move {
        let guest = Guest::reach(&app, &call.caller, &id).await?;
        let path = wanted.path.clone();
        let ask = Ask::StartWatch(StartWatch { key: process_key(&call), ..wanted });
        match guest.again(ask).await.map_err(|error| error.about(&path))? {
            Tell::Watch(watch) => Ok(Answer::json(&info(watch))?.keep(Keep::Later)),
            _ => Err(from_ask(AskError::Unexpected)),
        }
    })
    .await
}

fn read(call: &Call) -> Result<StartWatch, ApiError> {
    let mut fields = call.fields()?;
    let webhook = fields.opt("webhook", boolean).unwrap_or(false);
    if webhook && call.caller.session.is_some() {
        return Err(ApiError::new(Kind::Forbidden, "A session may not start a watch that calls a webhook.")
            .hint("Start it with a key, or read the watch's events."));
    }
    let patterns = |given: Given<'_>| list_of(0..=MOST_PATTERNS, text(1..=4096))(given);
    let wanted = StartWatch {
        path: fields.need("path", absolute_path()),
        recursive: fields.opt("recursive", boolean).unwrap_or(false),
        kinds: fields
            .opt("events", list_of(1..=KINDS.len(), one_of(KINDS)))
            .unwrap_or_default()
            .into_iter()
            .map(|kind| kind as i32)
            .collect(),
        include: fields.opt("include", patterns).unwrap_or_default(),
        exclude: fields.opt("exclude", patterns).unwrap_or_default(),
        batch_ms: fields.opt("batchMs", int(0..=60_000_u32)).unwrap_or(DEFAULT_BATCH_MS),
        timeout_ms: fields.opt("timeoutMs", int(0..=LONGEST_MS)).unwrap_or(DEFAULT_TIMEOUT_MS),
        max_watches: fields.opt("maxWatches", int(1..=1_000_000_u32)).unwrap_or(0),
        watch_id: fields.opt("id", watch_name).unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
        key: String::new(),
        user: AS,
    };
    fields.finish()?;
    if webhook {
        return Err(ApiError::new(Kind::Unavailable, "Webhooks of watches: not on this server yet.")
            .hint("Read the watch's events instead."));
    }
    Ok(wanted)
}

fn watch_name(given: Given<'_>) -> Checked<String> {
    let name = text(1..=40)(given)?;
    if name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
        Ok(name)
    } else {
        Err(vec![Issue::new("", "must be of small letters, digits and dashes")])
    }
}

/// Watches that go on.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/files/watches",
    tag = "watches",
    params(("id" = String, Path, description = "A sandbox")),
    responses((status = 200, body = WatchList))
)]
pub(in crate::guest) async fn list(
    State(app): State<AppState>,
    Path(id): Path<String>,
    call: Call,
) -> Result<Json<WatchList>, ApiError> {
    call.no_query()?;
    let guest = Guest::glance(&app, &call.caller, &id).await?;
    if guest.is_away() {
        return Err(paused());
    }
    tokio::select! {
        biased;
        data = list_all(&guest) => Ok(Json(WatchList { data: data? })),
        () = guest.away() => Err(paused()),
    }
}

async fn list_all(guest: &Guest) -> Result<Vec<WatchInfo>, ApiError> {
    let mut stream = guest.open(Ask::ListWatches(Nothing {})).await?;
    let mut data = Vec::new();
    while let Some(told) = stream.next().await.map_err(from_ask)? {
        match told {
            Tell::Watch(watch) if data.len() < MAX_WATCHES => data.push(info(watch)),
            _ => return Err(from_ask(AskError::Unexpected)),
        }
    }
    Ok(data)
}

fn paused() -> ApiError {
    ApiError::new(Kind::SandboxPaused, "The sandbox is paused, and looking at its watches does not wake it.")
        .hint("Wake it first.")
}

/// What a watch saw from a cursor on: what there is (`waitMs` to wait for more), or with `follow` all that comes.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/files/watches/{watch}/events",
    tag = "watches",
    params(
        ("id" = String, Path, description = "A sandbox"),
        ("watch" = String, Path, description = "A watch"),
        ("cursor" = Option<u64>, Query, description = "Where to begin; 0, all that is held, if left out"),
        ("waitMs" = Option<u64>, Query, description = "How long a poll waits for something, at most 8000"),
        ("follow" = Option<bool>, Query, description = "Answer a line for each thing until the watch ends"),
    ),
    responses((status = 200, content((WatchPoll = "application/json"), (WatchLine = "application/x-ndjson"))))
)]
pub(in crate::guest) async fn events(
    State(app): State<AppState>,
    Path((id, watch)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let mut query = call.query()?;
    let cursor = query.opt("cursor", int(0..=MOST_BYTES)).unwrap_or(0);
    let wait_ms = query.opt("waitMs", int(0..=LONGEST_POLL_MS)).unwrap_or(0);
    let follow = query.opt("follow", boolean).unwrap_or(false);
    query.finish()?;
    let watch_id = watch_id(&watch)?;
    let guest = Guest::glance(&app, &call.caller, &id).await?;
    let stopping = app.sandboxes().stopping();
    if !follow {
        let polled = tokio::select! {
            polled = poll(&guest, &watch_id, cursor, wait_ms) => polled?,
            // The server stops: what there is.
            () = stopping.cancelled() => poll(&guest, &watch_id, cursor, 0).await?,
        };
        return Ok(Json(polled).into_response());
    }
    if !guest.is_away() {
        // A watch or a cursor that is not there is refused as such.
        poll(&guest, &watch_id, cursor, 0).await?;
    }
    let follower = Follower::new(guest, watch_id, call.request_id.0.to_string(), cursor, stopping.clone());
    let mut response = Body::from_stream(follower.into_stream()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

async fn poll(guest: &Guest, watch_id: &str, cursor: u64, wait_ms: u64) -> Result<WatchPoll, ApiError> {
    let mut polled =
        WatchPoll { events: Vec::new(), notices: Vec::new(), next_cursor: cursor, lost_bytes: 0, ended: false };
    let until = Instant::now() + Duration::from_millis(wait_ms);
    // Whoever asks again and again while it is paused is not answered the faster for it.
    if guest.is_away()
        && let Ok(back) = timeout_at(until, guest.back()).await
    {
        back?;
    }
    if !guest.is_away() {
        let left = until.saturating_duration_since(Instant::now()).as_millis() as u64;
        let ask = Ask::FollowWatch(FollowWatch { watch_id: watch_id.to_owned(), cursor, wait_ms: left, once: true });
        let asked = tokio::select! {
            biased;
            asked = take_poll(guest, ask, &mut polled) => Some(asked),
            // It says nothing while it stands still.
            () = guest.away() => None,
        };
        match asked {
            Some(Err(error)) if !guest.is_away() => return Err(error),
            Some(Ok(())) => return Ok(polled),
            // It fell asleep meanwhile: what was read stands.
            Some(Err(_)) | None => {}
        }
    }
    polled.notices.push(WatchLine::Paused { cursor: polled.next_cursor });
    Ok(polled)
}

async fn take_poll(guest: &Guest, ask: Ask, polled: &mut WatchPoll) -> Result<(), ApiError> {
    let mut stream = guest.open(ask).await?;
    let mut bytes = 0;
    loop {
        match stream.only().await.map_err(asked_with("cursor"))? {
            Tell::Watch(watch) => {
                polled.ended = watch.ended;
                return Ok(());
            }
            Tell::WatchRecord(record) => {
                bytes += prost_len(&record);
                if bytes > MOST_POLLED {
                    return Err(from_ask(AskError::Unexpected));
                }
                polled.next_cursor = record.cursor;
                match line(record) {
                    Some(WatchLine::Events { events, .. }) => polled.events.extend(events),
                    Some(WatchLine::Lost { bytes, .. }) => polled.lost_bytes += bytes,
                    Some(notice) => polled.notices.push(notice),
                    None => {}
                }
            }
            _ => return Err(from_ask(AskError::Unexpected)),
        }
    }
}

/// What a record takes, in the order of its encoding.
fn prost_len(record: &WatchRecord) -> usize {
    64 + record
        .changes
        .iter()
        .map(|change| 16 + change.path.len() + change.old_path.as_ref().map_or(0, String::len))
        .sum::<usize>()
}

/// Stop a watch. What it saw can be read for a while.
#[utoipa::path(
    delete,
    path = "/v1/sandboxes/{id}/files/watches/{watch}",
    tag = "watches",
    params(("id" = String, Path, description = "A sandbox"), ("watch" = String, Path, description = "A watch")),
    responses((status = 200, body = WatchStopped))
)]
pub(in crate::guest) async fn stop(
    State(app): State<AppState>,
    Path((id, watch)): Path<(String, String)>,
    call: Call,
) -> Response {
    app.answer_once(call, move |app, call| async move {
        call.no_query()?;
        let watch_id = watch_id(&watch)?;
        let guest = Guest::reach(&app, &call.caller, &id).await?;
        match guest.again(Ask::StopWatch(WatchRef { watch_id })).await? {
            Tell::Removed(removed) => Ok(Answer::json(&WatchStopped { stopped: removed.removed })?.keep(Keep::Later)),
            _ => Err(from_ask(AskError::Unexpected)),
        }
    })
    .await
}

fn watch_id(text: &str) -> Result<String, ApiError> {
    if text.is_empty() || text.len() > 64 || text.contains('\0') {
        return Err(ApiError::new(Kind::NotFound, "There is no watch with this id in the sandbox."));
    }
    Ok(text.to_owned())
}

fn info(watch: Watch) -> WatchInfo {
    WatchInfo {
        process_id: watch.id.clone(),
        id: watch.id,
        path: watch.path,
        cursor: watch.cursor.min(MOST_BYTES),
        state: if watch.ended { WatchState::Ended } else { WatchState::Running },
        started_at: watch.started_at_ms,
    }
}

/// As the API says it; nothing of a record that says nothing known.
fn line(record: WatchRecord) -> Option<WatchLine> {
    let cursor = record.cursor;
    if !record.changes.is_empty() {
        return Some(WatchLine::Events { events: record.changes.into_iter().filter_map(change).collect(), cursor });
    }
    if let Some(overflow) = record.overflow {
        let reason = if overflow.dropped.is_some() { OverflowReason::Rate } else { OverflowReason::Kernel };
        return Some(WatchLine::Overflow { dropped: overflow.dropped, reason, cursor });
    }
    if let Some(watches) = record.limit {
        return Some(WatchLine::Limit { watches, cursor });
    }
    if let Some(bytes) = record.lost {
        return Some(WatchLine::Lost { bytes, cursor });
    }
    let end = record.end.map(|end| WatchEnd::try_from(end).unwrap_or(WatchEnd::Unknown))?;
    let reason = match end {
        WatchEnd::Unknown | WatchEnd::Stopped => WatchEndReason::Stopped,
        WatchEnd::TimedOut => WatchEndReason::Timeout,
        WatchEnd::RootRemoved => WatchEndReason::RootRemoved,
    };
    Some(WatchLine::End { reason, cursor })
}

fn change(change: Change) -> Option<FileChange> {
    let kind = match ChangeKind::try_from(change.kind).ok()? {
        ChangeKind::Create => ChangeType::Create,
        ChangeKind::Write => ChangeType::Write,
        ChangeKind::Remove => ChangeType::Remove,
        ChangeKind::Rename => ChangeType::Rename,
        ChangeKind::Chmod => ChangeType::Chmod,
        ChangeKind::Access => ChangeType::Access,
    };
    Some(FileChange {
        kind,
        path: change.path,
        is_dir: change.is_dir,
        old_path: change.old_path,
        count: (change.count > 1).then_some(change.count),
    })
}
