//! Snapshots and forks.

use serde_json::{Value, json};

use super::sandboxes::looks_like_id;
use super::{Client, ClientError, Record, Result, path};

/// How long a change may hold its answer.
const SETTLE_SECONDS: u32 = 110;

impl Client {
    pub async fn take_snapshot(&self, sandbox: &str, body: &Value) -> Result<Record> {
        let route = format!("{}:snapshot", path(&["v1", "sandboxes", sandbox]));
        self.post(route, body).prefer_wait(SETTLE_SECONDS).send().await
    }

    pub async fn fork_sandbox(&self, sandbox: &str, body: &Value) -> Result<Record> {
        let route = format!("{}:fork", path(&["v1", "sandboxes", sandbox]));
        self.post(route, body).prefer_wait(SETTLE_SECONDS).send().await
    }

    pub async fn snapshot(&self, id: &str) -> Result<Record> {
        self.get(path(&["v1", "snapshots", id])).send().await
    }

    /// The id behind a name or an id.
    pub async fn resolve_snapshot(&self, word: &str) -> Result<String> {
        if looks_like_id(word) {
            return Ok(word.to_ascii_lowercase());
        }
        let mut found = self.list_snapshots(None, Some(word)).await?;
        match (found.pop(), found.pop()) {
            (Some(one), None) if !one.id().is_empty() => Ok(one.id().to_owned()),
            (Some(_), Some(_)) => {
                Err(ClientError::local("ambiguous_name", format!("more than one snapshot is named {word:?}"))
                    .with_hint("Use its id."))
            }
            _ => Err(ClientError::local("snapshot_not_found", format!("no snapshot is named {word:?}"))
                .with_hint("List them with: runtime snapshots ls")),
        }
    }

    /// Every snapshot that fits, page after page, oldest first.
    pub async fn list_snapshots(&self, sandbox: Option<&str>, name: Option<&str>) -> Result<Vec<Record>> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut call = self.get("/v1/snapshots").query("limit", "100");
            if let Some(sandbox) = sandbox {
                call = call.query("sandboxId", sandbox);
            }
            if let Some(name) = name {
                call = call.query("name", name);
            }
            if let Some(cursor) = &cursor {
                call = call.query("cursor", cursor);
            }
            let page = call.send().await?;
            let next = page.text("nextCursor").filter(|next| !next.is_empty()).map(str::to_owned);
            all.extend(page.data());
            if next.is_none() {
                return Ok(all);
            }
            if next == cursor {
                return Err(ClientError::local("invalid_answer", "the server gave the same page of snapshots twice"));
            }
            cursor = next;
        }
    }

    pub async fn extend_snapshot(&self, id: &str, body: &Value) -> Result<Record> {
        self.post(format!("{}:extend", path(&["v1", "snapshots", id])), body).send().await
    }

    pub async fn delete_snapshot(&self, id: &str) -> Result<Record> {
        self.post(format!("{}:delete", path(&["v1", "snapshots", id])), &json!({})).send().await
    }
}
