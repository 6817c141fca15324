//! Sandboxes by name and id.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Client, ClientError, Record, Result, path};
use crate::sandbox::ResizeSandbox;

/// How long a change may hold its answer until it has settled.
const SETTLE_SECONDS: u32 = 60;
/// A stop and a start.
const RESIZE_SECONDS: u32 = 120;

/// Which sandboxes to list.
#[derive(Debug, Clone, Default)]
pub struct ListFilter {
    pub states: Vec<String>,
    pub labels: Vec<(String, String)>,
    pub name: Option<String>,
    /// Also those that are stopped for good.
    pub include_stopped: bool,
}

/// Whether a word is an id, which needs no look-up.
#[must_use]
pub fn looks_like_id(word: &str) -> bool {
    word.len() == 36 && uuid::Uuid::try_parse(word).is_ok()
}

impl Client {
    pub async fn me(&self) -> Result<Record> {
        self.get("/v1/me").send().await
    }

    pub async fn limits(&self) -> Result<Record> {
        self.get("/v1/limits").send().await
    }

    /// Creates a sandbox, waiting for room if need be; with `settle`, answers once it runs or has failed to.
    pub async fn create_sandbox(&self, body: &Value, room: Duration, settle: bool) -> Result<Record> {
        let mut call = self.post("/v1/sandboxes", body).wait_for_room(room);
        if settle {
            call = call.prefer_wait(SETTLE_SECONDS);
        }
        call.send().await
    }

    pub async fn sandbox(&self, id: &str) -> Result<Record> {
        self.get(path(&["v1", "sandboxes", id])).send().await
    }

    /// Its record once it is in a state, or when the time is over.
    pub async fn wait_for_state(&self, id: &str, state: &str, seconds: u32) -> Result<Record> {
        self.get(path(&["v1", "sandboxes", id]))
            .query("waitFor", state)
            .query("timeoutSeconds", seconds.to_string())
            .send()
            .await
    }

    /// The id behind a name or an id.
    pub async fn resolve(&self, word: &str) -> Result<String> {
        if looks_like_id(word) {
            return Ok(word.to_ascii_lowercase());
        }
        let page = self.get("/v1/sandboxes").query("name", word).query("limit", "2").send().await?;
        let mut found = page.data();
        match (found.pop(), found.pop()) {
            (Some(one), None) if !one.id().is_empty() => Ok(one.id().to_owned()),
            (Some(_), Some(_)) => {
                Err(ClientError::local("ambiguous_name", format!("more than one sandbox is named {word:?}"))
                    .with_hint("Use its id."))
            }
            _ => Err(ClientError::local("sandbox_not_found", format!("no sandbox is named {word:?}"))
                .with_hint("List them with: runtime sandboxes ls")),
        }
    }

    /// Every sandbox that fits, page after page, oldest first.
    pub async fn list_sandboxes(&self, filter: &ListFilter) -> Result<Vec<Record>> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut call = self.get("/v1/sandboxes").query("limit", "100");
            for state in &filter.states {
                call = call.query("state", state);
            }
            for (key, value) in &filter.labels {
                call = call.query("label", format!("{key}:{value}"));
            }
            if let Some(name) = &filter.name {
                call = call.query("name", name);
            }
            if filter.include_stopped {
                call = call.query("includeStopped", "true");
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
                return Err(ClientError::local("invalid_answer", "the server gave the same page of sandboxes twice"));
            }
            cursor = next;
        }
    }

    pub async fn stop_sandbox(&self, id: &str) -> Result<Record> {
        self.verb(id, "stop", &json!({})).prefer_wait(SETTLE_SECONDS).send().await
    }

    pub async fn restart_sandbox(&self, id: &str, room: Duration) -> Result<Record> {
        self.verb(id, "restart", &json!({})).prefer_wait(SETTLE_SECONDS).wait_for_room(room).send().await
    }

    /// Another size. Where it has to start anew for that, `restart` must be true.
    pub async fn resize_sandbox(&self, id: &str, wanted: &ResizeSandbox, room: Duration) -> Result<Record> {
        self.verb(id, "resize", &json!(wanted)).prefer_wait(RESIZE_SECONDS).wait_for_room(room).send().await
    }

    pub async fn pause_sandbox(&self, id: &str) -> Result<Record> {
        self.verb(id, "pause", &json!({})).prefer_wait(SETTLE_SECONDS).send().await
    }

    /// `seconds`: its time limit from now on.
    pub async fn wake_sandbox(&self, id: &str, seconds: Option<u64>, room: Duration) -> Result<Record> {
        let body = seconds.map_or_else(|| json!({}), |seconds| json!({ "timeoutSeconds": seconds }));
        self.verb(id, "wake", &body).prefer_wait(SETTLE_SECONDS).wait_for_room(room).send().await
    }

    pub async fn extend_sandbox(&self, id: &str, seconds: u64) -> Result<Record> {
        self.verb(id, "extend", &json!({ "seconds": seconds })).send().await
    }

    pub async fn update_sandbox(&self, id: &str, settings: &Value) -> Result<Record> {
        self.verb(id, "update", settings).send().await
    }

    /// What it may reach.
    pub async fn network(&self, id: &str) -> Result<Record> {
        self.get(path(&["v1", "sandboxes", id, "network"])).send().await
    }

    /// Replaces what it may reach; answers once that holds.
    pub async fn set_network(&self, id: &str, rules: &Value) -> Result<Record> {
        self.put(path(&["v1", "sandboxes", id, "network"]), rules).send().await
    }

    /// A page of what was decided about its connections, newest first.
    pub async fn network_decisions(&self, id: &str, cursor: Option<&str>) -> Result<Record> {
        let mut call = self.get(path(&["v1", "sandboxes", id, "network", "decisions"])).query("limit", "200");
        if let Some(cursor) = cursor {
            call = call.query("cursor", cursor);
        }
        call.send().await
    }

    pub async fn delete_sandbox(&self, id: &str) -> Result<Record> {
        self.delete(path(&["v1", "sandboxes", id])).send().await
    }

    fn verb(&self, id: &str, verb: &str, body: &Value) -> super::Call<'_> {
        self.post(format!("{}:{verb}", path(&["v1", "sandboxes", id])), body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_dashed_uuid_is_an_id() {
        assert!(looks_like_id("8a1f9c2e-0d1b-4c3a-9e8f-7a6b5c4d3e2f"));
        assert!(looks_like_id("8A1F9C2E-0D1B-4C3A-9E8F-7A6B5C4D3E2F"));
        for word in ["8a1f9c2e0d1b4c3a9e8f7a6b5c4d3e2f", "{8a1f9c2e-0d1b-4c3a-9e8f-7a6b5c4d3e}", "worker", ""] {
            assert!(!looks_like_id(word), "{word}");
        }
    }
}
