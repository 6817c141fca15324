//! Names and attributes of files: list, stat, mkdir, remove, rename, chmod. Content is in [`super::content`].

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;
use runtime_api::file::{
    ChmodRequest, Empty, FileEntry, FileListing, FileMissing, FileStat, MakeDirRequest, RemoveAnswer, RemoveRequest,
    RenameRequest,
};
use runtime_proto::guest::{Ask, Chmod, ErrorCode, ListFiles, MakeDir, PathRef, Remove, Rename, Tell, User};
use runtime_proto::node::AskError;
use serde_json::Value;

use super::convert;
use super::gateway::{Asked, Guest, from_ask};
use crate::error::{ApiError, Issue};
use crate::fields::{Checked, Fields, Given, absolute_path, boolean, int, text};
use crate::idempotency::{Answer, Keep};
use crate::{AppState, Call};

/// Entries of one listing, if the caller does not ask for fewer.
const MOST_ENTRIES: u32 = 10_000;
const DEEPEST: u32 = 1_000;

/// File calls act as the sandbox user.
pub(super) const AS: i32 = User::Sandbox as i32;

/// Octal digits, like `644` or `0755`.
pub(super) fn mode(given: Given<'_>) -> Checked<u32> {
    let read = match given.value {
        Value::String(text) if (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b)) => {
            u32::from_str_radix(text, 8).ok()
        }
        _ => None,
    };
    read.ok_or_else(|| vec![Issue::new("", "must be three octal digits in text, like \"644\"")])
}

/// List a directory, links not followed, sorted by path.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/files/list",
    tag = "files",
    params(
        ("id" = String, Path, description = "A sandbox"),
        ("path" = String, Query, description = "A directory"),
        ("depth" = Option<u32>, Query, description = "Levels below it; 1 if left out, all with a glob"),
        ("glob" = Option<String>, Query, description = "Matched against the path relative to the directory"),
        ("hidden" = Option<bool>, Query, description = "Names that begin with a dot too"),
        ("limit" = Option<u32>, Query, description = "Most entries, up to 10,000"),
    ),
    responses((status = 200, body = FileListing))
)]
pub(super) async fn list(
    State(app): State<AppState>,
    Path(id): Path<String>,
    call: Call,
) -> Result<Json<FileListing>, ApiError> {
    let mut query = call.query()?;
    let path = query.need("path", absolute_path());
    let depth = query.opt("depth", int(1..=DEEPEST));
    let glob = query.opt("glob", text(0..=4096)).unwrap_or_default();
    let hidden = query.opt("hidden", boolean).unwrap_or(false);
    let limit = query.opt("limit", int(1..=MOST_ENTRIES)).unwrap_or(MOST_ENTRIES);
    query.finish()?;
    let depth = depth.unwrap_or(if glob.is_empty() { 1 } else { 0 });
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    let ask = Ask::ListFiles(ListFiles { path: path.clone(), depth, glob, hidden, limit, user: AS });
    let mut stream = guest.open(ask).await?;
    let mut data: Vec<FileEntry> = Vec::new();
    loop {
        match stream.next().await.map_err(|error| Asked::from(error).about(&path))? {
            None => break,
            Some(Tell::Files(files)) => {
                let room = (limit as usize).saturating_sub(data.len());
                data.extend(files.files.into_iter().take(room).map(convert::file));
            }
            Some(_) => return Err(from_ask(AskError::Unexpected)),
        }
        if data.len() >= limit as usize {
            break;
        }
    }
    data.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Json(FileListing { data }))
}

/// What is at a path; nothing there is an answer, not an error.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/files/stat",
    tag = "files",
    params(("id" = String, Path, description = "A sandbox"), ("path" = String, Query, description = "Absolute")),
    responses((status = 200, body = FileStat))
)]
pub(super) async fn stat(
    State(app): State<AppState>,
    Path(id): Path<String>,
    call: Call,
) -> Result<Json<FileStat>, ApiError> {
    let mut query = call.query()?;
    let path = query.need("path", absolute_path());
    query.finish()?;
    let guest = Guest::reach(&app, &call.caller, &id).await?;
    match guest.again(Ask::Stat(PathRef { path: path.clone(), user: AS })).await {
        Ok(Tell::File(file)) => Ok(Json(convert::file(file).into())),
        Ok(_) => Err(from_ask(AskError::Unexpected)),
        // A part of the path that is a file leaves nothing there either.
        Err(error) if matches!(error.guest_code(), Some(ErrorCode::FileNotFound | ErrorCode::NotADirectory)) => {
            Ok(Json(FileStat::Missing(FileMissing { exists: false, path })))
        }
        Err(error) => Err(error.about(&path)),
    }
}

/// Make a directory.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/files/~mkdir",
    tag = "files",
    params(("id" = String, Path, description = "A sandbox")),
    request_body = MakeDirRequest,
    responses((status = 200, body = Empty))
)]
pub(super) async fn mkdir(State(app): State<AppState>, Path(id): Path<String>, call: Call) -> Response {
    let read =
        |fields: &mut Fields| (fields.need("path", absolute_path()), fields.opt("parents", boolean).unwrap_or(false));
    change(app, id, call, read, |guest, (path, parents)| async move {
        let told = guest.once(Ask::MakeDir(MakeDir { path: path.clone(), parents, user: AS })).await;
        done(told, &path)
    })
    .await
}

/// Remove a file, a link, or a directory.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/files/~remove",
    tag = "files",
    params(("id" = String, Path, description = "A sandbox")),
    request_body = RemoveRequest,
    responses((status = 200, body = RemoveAnswer))
)]
pub(super) async fn remove(State(app): State<AppState>, Path(id): Path<String>, call: Call) -> Response {
    let read =
        |fields: &mut Fields| (fields.need("path", absolute_path()), fields.opt("recursive", boolean).unwrap_or(false));
    change(app, id, call, read, |guest, (path, recursive)| async move {
        let removed = match guest.once(Ask::Remove(Remove { path: path.clone(), recursive, user: AS })).await {
            Ok(Tell::Removed(removed)) => removed.removed,
            Ok(_) => return Err(from_ask(AskError::Unexpected)),
            Err(error) if error.guest_code() == Some(ErrorCode::FileNotFound) => false,
            Err(error) => return Err(error.about(&path)),
        };
        Ok(Answer::json(&RemoveAnswer { removed })?.keep(Keep::Later))
    })
    .await
}

/// Give a file another name.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/files/~rename",
    tag = "files",
    params(("id" = String, Path, description = "A sandbox")),
    request_body = RenameRequest,
    responses((status = 200, body = Empty))
)]
pub(super) async fn rename(State(app): State<AppState>, Path(id): Path<String>, call: Call) -> Response {
    let read = |fields: &mut Fields| {
        let from = fields.need("from", absolute_path());
        (from, fields.need("to", absolute_path()), fields.opt("overwrite", boolean).unwrap_or(false))
    };
    change(app, id, call, read, |guest, (from, to, overwrite)| async move {
        let ask = Ask::Rename(Rename { from: from.clone(), to: to.clone(), overwrite, user: AS });
        let told = guest.once(ask).await;
        // The agent names the path it was about where it knows; both stand in for it.
        let about = match told.as_ref().err().and_then(Asked::guest_code) {
            Some(ErrorCode::AlreadyExists) => to,
            Some(ErrorCode::FileNotFound) => from,
            _ => format!("{from} to {to}"),
        };
        done(told, &about)
    })
    .await
}

/// Change the mode of a file.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/files/~chmod",
    tag = "files",
    params(("id" = String, Path, description = "A sandbox")),
    request_body = ChmodRequest,
    responses((status = 200, body = Empty))
)]
pub(super) async fn chmod(State(app): State<AppState>, Path(id): Path<String>, call: Call) -> Response {
    let read = |fields: &mut Fields| (fields.need("path", absolute_path()), fields.need("mode", mode));
    change(app, id, call, read, |guest, (path, mode)| async move {
        let told = guest.again(Ask::Chmod(Chmod { path: path.clone(), mode, user: AS })).await;
        done(told, &path)
    })
    .await
}

/// What every change of names and attributes has in common: its fields are read whole before the sandbox is reached, and
/// it is done once for its key.
async fn change<T, F>(
    app: AppState,
    id: String,
    call: Call,
    read: impl FnOnce(&mut Fields) -> T + Send + 'static,
    work: impl FnOnce(Guest, T) -> F + Send + 'static,
) -> Response
where
    T: Send + 'static,
    F: Future<Output = Result<Answer, ApiError>> + Send + 'static,
{
    app.answer_once(call, move |app, call| async move {
        let mut fields = call.fields()?;
        let wanted = read(&mut fields);
        fields.finish()?;
        let guest = Guest::reach(&app, &call.caller, &id).await?;
        work(guest, wanted).await
    })
    .await
}

fn done(told: Result<Tell, Asked>, about: &str) -> Result<Answer, ApiError> {
    match told {
        Ok(Tell::Done(_)) => Ok(Answer::json(&Empty {})?.keep(Keep::Later)),
        Ok(_) => Err(from_ask(AskError::Unexpected)),
        Err(error) => Err(error.about(about)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_text() {
        let read = |value: Value| mode(Given { value: &value, text: false }).ok();
        assert_eq!(read("644".into()), Some(0o644));
        assert_eq!(read("0755".into()), Some(0o755));
        assert_eq!(read("4755".into()), Some(0o4755));
        for wrong in ["", "6", "64", "888", "0o644", "rw-", "64444", "-644", "+644", " 644"] {
            assert_eq!(read(wrong.into()), None, "{wrong:?}");
        }
        assert_eq!(read(644.into()), None);
    }
}
