//! Reading and writing files as a model does it: text by lines, whole where it fits.

use axum::http::Method;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde_json::{Value, json};

use super::api::{Api, Ask, Refusal, encode};
use super::args::Args;
use super::cut::CONTENT;
use crate::error::{ApiError, Kind};

/// How far into a file lines are looked for.
const FARTHEST: usize = 32 * 1024 * 1024;

pub(super) async fn read(api: &Api, args: &Args) -> Result<Value, Refusal> {
    let path = args.path();
    let start = args.number("startLine").unwrap_or(1);
    let end = args.number("endLine");
    if end.is_some_and(|end| end < start) {
        return Err(api.refuse(&ApiError::wrong("endLine", format!("must not be before startLine, {start}"))));
    }
    let ask = Ask::get(content_path(args)).query("path", &path);
    let response = api.open(ask).await?;
    let size = response.headers().get("x-content-length").and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let mut pieces = response.into_body().into_data_stream();
    let mut wanted =
        Lines { skip: start - 1, take: end.map(|end| end - start + 1), line: start, kept: BytesMut::new() };
    let (mut seen, mut ended) = (0, false);
    while !wanted.is_full() {
        let Some(piece) = pieces.next().await else {
            ended = true;
            break;
        };
        let piece = piece.map_err(|error| api.refuse(&ApiError::fault(Kind::GuestFailed, "reading a file", &error)))?;
        seen += piece.len();
        wanted.push(&piece);
        if seen > FARTHEST {
            let far = ApiError::new(Kind::FileTooLarge, "The lines are too far into the file to be read this way.")
                .hint("Cut them out with runtime_sandboxes_exec, for example by sed -n '10,20p'.");
            return Err(api.refuse(&far));
        }
    }
    Ok(wanted.answer(path, size, ended))
}

/// The lines wanted, out of pieces.
struct Lines {
    skip: u64,
    take: Option<u64>,
    /// The number of the first line kept.
    line: u64,
    kept: BytesMut,
}

impl Lines {
    /// More can only be cut off: a character is at most four bytes.
    fn is_full(&self) -> bool {
        self.take == Some(0) || self.kept.len() > CONTENT * 4
    }

    fn push(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() && self.take != Some(0) {
            let end = piece.iter().position(|byte| *byte == b'\n');
            let (line, rest) = piece.split_at(end.map_or(piece.len(), |end| end + 1));
            piece = rest;
            if self.skip == 0 {
                self.kept.extend_from_slice(line);
            }
            if end.is_some() {
                match (self.skip, &mut self.take) {
                    (0, Some(left)) => *left -= 1,
                    (0, None) => {}
                    (skip, _) => self.skip = skip - 1,
                }
            }
            if self.kept.len() > CONTENT * 4 {
                return;
            }
        }
    }

    fn answer(self, path: String, size: Option<u64>, ended: bool) -> Value {
        let whole = (ended || self.take == Some(0)) && self.kept.len() <= CONTENT * 4;
        let bytes = self.kept.freeze();
        let mut answer = json!({ "path": path });
        if let Some(size) = size {
            answer["size"] = json!(size);
        }
        match std::str::from_utf8(&bytes) {
            Ok(text) => self::text(&mut answer, text, self.line),
            // Cut within a character.
            Err(error) if !whole && error.error_len().is_none() => {
                self::text(
                    &mut answer,
                    std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
                    self.line,
                );
            }
            Err(_) => {
                let most = CONTENT / 4 * 3;
                let shown = &bytes[..bytes.len().min(most)];
                answer["encoding"] = json!("base64");
                answer["contentBase64"] = json!(STANDARD.encode(shown));
                if shown.len() < bytes.len() || !whole {
                    answer["contentCut"] = json!(true);
                }
            }
        }
        answer
    }
}

fn text(answer: &mut Value, text: &str, first: u64) {
    answer["encoding"] = json!("utf8");
    answer["startLine"] = json!(first);
    let Some((limit, _)) = text.char_indices().nth(CONTENT) else {
        answer["content"] = json!(text);
        return;
    };
    // At a line end, unless one line alone is too long.
    let end = text[..limit].rfind('\n').map_or(limit, |end| end + 1);
    let shown = &text[..end];
    answer["content"] = json!(shown);
    answer["contentCut"] = json!(true);
    answer["nextLine"] = json!(first + shown.matches('\n').count().max(1) as u64);
}

pub(super) async fn write(api: &Api, args: &Args, key: &str) -> Result<Value, Refusal> {
    let path = args.path();
    let bytes: Bytes = match (args.text("content"), args.text("contentBase64")) {
        (Some(text), None) => text.to_owned().into(),
        (None, Some(encoded)) => STANDARD
            .decode(encoded)
            .map_err(|_| api.refuse(&ApiError::wrong("contentBase64", "must be base64, with padding")))?
            .into(),
        (None, None) => return Err(api.refuse(&ApiError::wrong("content", "is required, or contentBase64"))),
        (Some(_), Some(_)) => {
            return Err(api.refuse(&ApiError::wrong("contentBase64", "must not be given together with content")));
        }
    };
    let ask = |key: String| {
        let ask = Ask::new(Method::PUT, content_path(args)).query("path", &path).bytes(bytes.clone()).key(key);
        match args.text("mode") {
            Some(mode) => ask.query("mode", mode),
            None => ask,
        }
    };
    let length = bytes.len();
    let mut answer = match api.json(ask(key.to_owned())).await {
        // Outside the workspace folders are not made by themselves.
        Err(refusal) if refusal.code() == "file_not_found" => {
            let folder = path.rsplit_once('/').map_or("/", |(folder, _)| folder);
            let body = json!({ "path": folder, "parents": true });
            let sandbox = encode(args.text("id").unwrap_or_default());
            let make = Ask::new(Method::POST, format!("/v1/sandboxes/{sandbox}/files:mkdir"));
            api.json(make.json(&body).key(suffixed(key, "mkdir"))).await?;
            api.json(ask(suffixed(key, "again"))).await?
        }
        answer => answer?,
    };
    answer["path"] = json!(path);
    answer["size"] = json!(length);
    Ok(answer)
}

fn content_path(args: &Args) -> String {
    format!("/v1/sandboxes/{}/files/content", encode(args.text("id").unwrap_or_default()))
}

/// A key for a part of a call, which is the same for the same call.
fn suffixed(key: &str, part: &str) -> String {
    let short: String = key.chars().take(120).collect();
    format!("{short}:{part}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, start: u64, end: Option<u64>, size: usize) -> Value {
        let mut lines =
            Lines { skip: start - 1, take: end.map(|end| end - start + 1), line: start, kept: BytesMut::new() };
        for piece in text.as_bytes().chunks(size) {
            lines.push(piece);
        }
        let full = lines.is_full();
        lines.answer("/f".into(), None, !full)
    }

    #[test]
    fn lines_are_found_however_the_file_arrives() {
        for size in [1, 2, 3, 100] {
            assert_eq!(cut("a\nbü\nc\nd", 2, Some(3), size)["content"], "bü\nc\n", "{size}");
            assert_eq!(cut("a\nb\nc", 3, None, size)["content"], "c", "{size}");
            assert_eq!(cut("a\nb\n", 9, None, size)["content"], "", "{size}");
        }
    }

    #[test]
    fn a_long_file_says_where_to_go_on() {
        let text = "0123456789\n".repeat(10_000);
        let first = cut(&text, 1, None, 4096);
        let next = first["nextLine"].as_u64().expect("a line to go on from");
        assert_eq!(first["content"].as_str().unwrap().lines().count() as u64, next - 1);
        let second = cut(&text, next, None, 4096);
        assert!(second["content"].as_str().unwrap().starts_with("0123456789\n"));
        assert_eq!(second.get("contentCut"), None, "{}", second["nextLine"]);
        let one = cut(&"x".repeat(300_000), 1, None, 4096);
        assert_eq!((one["contentCut"].as_bool(), one["nextLine"].as_u64()), (Some(true), Some(2)));
    }

    #[test]
    fn bytes_are_answered_as_base64() {
        let mut lines = Lines { skip: 0, take: None, line: 1, kept: BytesMut::new() };
        lines.push(&[0xff, 0, 1]);
        let answer = lines.answer("/f".into(), Some(3), true);
        assert_eq!((answer["contentBase64"].as_str(), answer["encoding"].as_str()), (Some("/wAB"), Some("base64")));
    }
}
