//! Look at files.

use std::io::Write;

use runtime_api::client::Record;
use serde_json::{Value, json};

use super::{Context, Outcome};
use crate::args::files::FilesArgs;
use crate::args::sandboxes::CatArgs;
use crate::failure::Failure;
use crate::printer::plain;
use crate::scan::UsageError;

/// The most of a file that one JSON value may hold.
const JSON_LIMIT: usize = 16 * 1024 * 1024;

/// The bytes as they are; a file that came short is a failure, though what came is already out.
pub(super) async fn cat(context: &Context, args: CatArgs) -> Outcome {
    let id = context.client.resolve(&args.sandbox).await?;
    if context.printer.json {
        let bytes = context.client.read_file(&id, &args.path, JSON_LIMIT).await?;
        let text = String::from_utf8(bytes).map_err(|_| {
            Failure::from(
                UsageError::new(format!("{} is not text, which --json needs", args.path)).hint("Leave --json out."),
            )
        })?;
        context.printer.value(&json!({ "path": args.path, "text": text }))?;
        return Ok(0);
    }
    let mut download = context.client.download(&id, &args.path).await?;
    let mut out = std::io::stdout().lock();
    while let Some(piece) = download.next().await? {
        out.write_all(&piece)?;
    }
    out.flush()?;
    Ok(0)
}

pub(super) async fn files(context: &Context, args: FilesArgs) -> Outcome {
    let id = context.client.resolve(&args.sandbox).await?;
    let entries = context.client.list_files(&id, &args.path, args.depth, args.glob.as_deref(), args.hidden).await?;
    if context.printer.json {
        context.printer.value(&Value::Array(entries.into_iter().map(|entry| entry.0).collect()))?;
        return Ok(0);
    }
    if entries.is_empty() {
        context.printer.hint(&format!("No files in {}.", plain(&args.path)));
        return Ok(0);
    }
    context.printer.line(&lines(&entries))?;
    Ok(0)
}

fn lines(entries: &[Record]) -> String {
    let size = |entry: &Record| entry.int("size").map_or_else(|| "-".to_owned(), |size| size.to_string());
    let width = entries.iter().map(|entry| size(entry).len()).max().unwrap_or(0);
    let line = |entry: &Record| {
        let kind = match entry.text("type") {
            Some("directory") => 'd',
            Some("symlink") => 'l',
            Some("file") => '-',
            _ => '?',
        };
        let target = entry.text("symlinkTarget").map(|target| format!(" -> {}", plain(target))).unwrap_or_default();
        format!("{kind} {:>width$} {}{target}", size(entry), plain(entry.text("path").unwrap_or("?")))
    };
    entries.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_size_path() {
        let entry = |value| Record(value);
        let entries = [
            entry(json!({"type": "directory", "size": 4096, "path": "/workspace/a"})),
            entry(json!({"type": "symlink", "size": 1, "path": "/workspace/b", "symlinkTarget": "a\u{1b}[0m"})),
            entry(json!({"type": "fifo", "path": "/workspace/c"})),
        ];
        assert_eq!(lines(&entries), "d 4096 /workspace/a\nl    1 /workspace/b -> a\\u{1b}[0m\n?    - /workspace/c");
    }
}
