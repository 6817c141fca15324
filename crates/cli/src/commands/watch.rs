//! What happens to files, a line for each change, until the watch ends or Ctrl-C.

use anyhow::Context as _;
use runtime_api::client::Client;
use runtime_api::watch::{ChangeType, FileChange, WatchEndReason, WatchLine};
use runtime_service::signals::Signals;
use serde_json::json;

use super::{Context, Outcome};
use crate::args::files::WatchArgs;
use crate::failure::Failure;
use crate::printer::{Printer, plain};

pub(super) async fn watch(context: &Context, args: WatchArgs) -> Outcome {
    let mut body = json!({ "path": args.path, "recursive": args.recursive, "timeoutMs": 0 });
    for (name, list) in [("include", args.include), ("exclude", args.exclude), ("events", args.events)] {
        if !list.is_empty() {
            body[name] = list.into();
        }
    }
    let sandbox = context.client.resolve(&args.sandbox).await?;
    let mut signals = Signals::catch().context("cannot watch for Ctrl-C")?;
    let watch = context.client.start_watch(&sandbox, &body).await?;
    // Also for a program: what changes from here on is told.
    context.printer.talk(&format!("Watching {}; Ctrl-C ends it.", plain(&args.path)));
    let told = tokio::select! {
        biased;
        _ = signals.next() => Ok(()),
        told = tell(&context.client, context.printer, &sandbox, watch.id()) => told,
    };
    // One that has ended, or whose sandbox has, needs no stop.
    let _ = context.client.stop_watch(&sandbox, watch.id()).await;
    told.map(|()| 0)
}

async fn tell(client: &Client, printer: Printer, sandbox: &str, watch: &str) -> Result<(), Failure> {
    let mut stream = client.follow_watch(sandbox, watch, 0);
    while let Some(line) = stream.next().await? {
        match line {
            WatchLine::Events { events, .. } => {
                for event in &events {
                    if printer.json {
                        printer.value(&serde_json::to_value(event).context("a change is no JSON")?)?;
                    } else {
                        printer.line(&shown(event))?;
                    }
                }
            }
            WatchLine::Overflow { dropped: Some(count), .. } => {
                printer.talk(&format!("{count} changes came too fast and are not told; look at the files."));
            }
            WatchLine::Overflow { dropped: None, .. } => {
                printer.talk("Changes came too fast and some are not told; look at the files.");
            }
            WatchLine::Lost { .. } => printer.talk("What was seen earlier is no longer held; look at the files."),
            WatchLine::Limit { watches, .. } => {
                printer.talk(&format!("Only {watches} directories are watched; there are more."));
            }
            WatchLine::Paused { .. } => printer.talk("The sandbox is paused; the watch goes on when it wakes."),
            WatchLine::End { reason, .. } => printer.talk(match reason {
                WatchEndReason::Stopped => "The watch was stopped.",
                WatchEndReason::Timeout => "The watch's time is up.",
                WatchEndReason::RootRemoved => "What was watched is gone, or has another name.",
            }),
            WatchLine::Continue { .. } | WatchLine::Failure { .. } => {}
        }
    }
    Ok(())
}

fn shown(event: &FileChange) -> String {
    let kind = match event.kind {
        ChangeType::Create => "create",
        ChangeType::Write => "write",
        ChangeType::Remove => "remove",
        ChangeType::Rename => "rename",
        ChangeType::Chmod => "chmod",
        ChangeType::Access => "access",
    };
    let slash = if event.is_dir { "/" } else { "" };
    let path = plain(&event.path);
    match &event.old_path {
        Some(old) => format!("{kind:<6} {}{slash} -> {path}{slash}", plain(old)),
        None => format!("{kind:<6} {path}{slash}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_change() {
        let event = |kind, path: &str, is_dir, old_path: Option<&str>| FileChange {
            kind,
            path: path.to_owned(),
            is_dir,
            old_path: old_path.map(str::to_owned),
            count: None,
        };
        assert_eq!(shown(&event(ChangeType::Create, "/w/a\u{1b}", false, None)), "create /w/a\\u{1b}");
        assert_eq!(shown(&event(ChangeType::Rename, "/w/b", true, Some("/w/a"))), "rename /w/a/ -> /w/b/");
    }
}
