//! Sessions: a browser's way into one sandbox.

use serde_json::{Value, json};

use super::{Client, ClientError, Record, Result, path};

impl Client {
    /// A session with its token. A repeat of a lost answer has none: that one is revoked, and another is made.
    pub async fn create_session(&self, sandbox: &str, body: &Value) -> Result<Record> {
        let route = path(&["v1", "sandboxes", sandbox, "sessions"]);
        for _ in 0..2 {
            let session: Record = self.post(route.clone(), body).send().await?;
            if session.text("token").is_some() {
                return Ok(session);
            }
            self.revoke_session(sandbox, session.id()).await?;
        }
        Err(ClientError::local("session_token_lost", "the server made the session twice without telling its token")
            .with_hint("Ask again; the lost ones were revoked."))
    }

    /// Those that live and those that ended within a day, newest first.
    pub async fn sessions(&self, sandbox: &str) -> Result<Vec<Record>> {
        let answer: Record = self.get(path(&["v1", "sandboxes", sandbox, "sessions"])).send().await?;
        let list = answer.0.get("data").and_then(Value::as_array).into_iter().flatten();
        Ok(list.cloned().map(Record).collect())
    }

    pub async fn revoke_session(&self, sandbox: &str, session: &str) -> Result<Record> {
        let route = format!("{}:revoke", path(&["v1", "sandboxes", sandbox, "sessions", session]));
        self.post(route, &json!({})).send().await
    }
}
