//! Previews: ports of a sandbox under web addresses.

use serde_json::{Value, json};

use super::{Client, Record, Result, path};

impl Client {
    /// Makes one, or changes who may see the one that is there.
    pub async fn create_preview(&self, sandbox: &str, body: &Value) -> Result<Record> {
        self.post(path(&["v1", "sandboxes", sandbox, "previews"]), body).send().await
    }

    /// By port.
    pub async fn previews(&self, sandbox: &str) -> Result<Vec<Record>> {
        let answer: Record = self.get(path(&["v1", "sandboxes", sandbox, "previews"])).send().await?;
        let list = answer.0.get("data").and_then(Value::as_array).into_iter().flatten();
        Ok(list.cloned().map(Record).collect())
    }

    /// Every token of before ends, and what is open by one.
    pub async fn rotate_preview(&self, sandbox: &str, port: u16) -> Result<Record> {
        let route = format!("{}:rotate", one(sandbox, port));
        self.post(route, &json!({})).send().await
    }

    pub async fn delete_preview(&self, sandbox: &str, port: u16) -> Result<Record> {
        self.delete(one(sandbox, port)).send().await
    }
}

fn one(sandbox: &str, port: u16) -> String {
    path(&["v1", "sandboxes", sandbox, "previews", &port.to_string()])
}
