//! `runtime mcp`: the server's tools over stdin and stdout, for hosts that start a program.
//!
//! A bridge and nothing more: each line is a message that goes to the server's `/mcp`, each answer is a line. What the
//! tools are is the server's to say. A connection that is lost on the way is made again, under the same key, so that
//! what was begun is not done twice; a server that cannot be reached is said in the answer, where a person sees it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use runtime_api::client::{Client, ClientError, McpMessage};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};

use super::{Context, Outcome};
use crate::failure::{Failure, error_json};

/// The longest line; the server takes no longer message.
const MAX_LINE: usize = 8 * 1024 * 1024;
/// Requests under way at once.
const AT_ONCE: usize = 32;
const PER_REQUEST: &str = "/params/_meta/io.modelcontextprotocol~1protocolVersion";

pub(super) async fn mcp(context: &Context) -> Outcome {
    let (lines, told) = mpsc::channel(64);
    let writer = tokio::spawn(write(told));
    let bridge = Bridge {
        client: context.client.clone(),
        lines,
        agreed: Arc::default(),
        places: Arc::new(Semaphore::new(AT_ONCE)),
    };
    let host = bridge.serve().await;
    // What was asked for is answered, also to a host that asks no more.
    drop(bridge);
    let written = writer.await.map_err(|error| Failure::from(anyhow::Error::new(error)))?;
    host.and(written).map_err(Failure::from)?;
    Ok(0)
}

async fn write(mut told: mpsc::Receiver<Value>) -> std::io::Result<()> {
    let mut out = tokio::io::stdout();
    while let Some(message) = told.recv().await {
        let mut line = message.to_string();
        line.push('\n');
        out.write_all(line.as_bytes()).await?;
        out.flush().await?;
    }
    Ok(())
}

/// What client and server agreed on with `initialize`, in the versions that have it.
#[derive(Debug, Clone)]
struct Agreed {
    version: Option<String>,
    /// Tells the requests of this program from those of others; its own word until the server gives one.
    session: String,
}

impl Default for Agreed {
    fn default() -> Self {
        Self { version: None, session: Client::new_key() }
    }
}

struct Bridge {
    client: Client,
    lines: mpsc::Sender<Value>,
    agreed: Arc<Mutex<Agreed>>,
    places: Arc<Semaphore>,
}

impl Bridge {
    /// Until the host closes its side, and what it asked for is answered.
    async fn serve(&self) -> std::io::Result<()> {
        let mut input = BufReader::new(tokio::io::stdin());
        let mut tasks = JoinSet::new();
        let mut under_way: HashMap<String, AbortHandle> = HashMap::new();
        loop {
            let line = tokio::select! {
                line = read_line(&mut input) => line?,
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Ok(id) = ended {
                        under_way.remove(&id);
                    }
                    continue;
                }
            };
            let body = match line {
                Line::End => break,
                Line::Long => {
                    self.tell(refused(&Value::Null, -32600, "The message is longer than 8 MiB.")).await;
                    continue;
                }
                Line::Whole(line) if line.trim_ascii().is_empty() => continue,
                Line::Whole(line) => match serde_json::from_slice::<Value>(&line) {
                    Ok(body) if body.is_object() => body,
                    Ok(_) => {
                        self.tell(refused(&Value::Null, -32600, "A message is one JSON object.")).await;
                        continue;
                    }
                    Err(error) => {
                        let text = format!("The line is not JSON: {error}.");
                        self.tell(refused(&Value::Null, -32700, &text)).await;
                        continue;
                    }
                },
            };
            if body["method"] == "notifications/cancelled" {
                let cancelled = under_way.remove(&body["params"]["requestId"].to_string());
                self.cancel(body, cancelled).await;
                continue;
            }
            let id = body.get("id").map(Value::to_string).unwrap_or_default();
            let asking = self.asking(self.message(body));
            let name = id.clone();
            let handle = tasks.spawn(async move {
                asking.await;
                name
            });
            if !id.is_empty() {
                under_way.insert(id, handle);
            }
        }
        while tasks.join_next().await.is_some() {}
        Ok(())
    }

    async fn tell(&self, message: Value) {
        // Nobody reads any more: the writer has said why.
        let _ = self.lines.send(message).await;
    }

    fn agreed(&self) -> std::sync::MutexGuard<'_, Agreed> {
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn message(&self, body: Value) -> McpMessage {
        let agreed = self.agreed().clone();
        let own = body.pointer(PER_REQUEST).and_then(Value::as_str).map(str::to_owned);
        let version = match own {
            None if body["method"] == "initialize" => None,
            own => own.or(agreed.version),
        };
        McpMessage { body, version, session: Some(agreed.session) }
    }

    /// One message on its way, as a task of its own.
    fn asking(&self, message: McpMessage) -> impl Future<Output = ()> + Send + 'static {
        let (client, lines) = (self.client.clone(), self.lines.clone());
        let (agreed, places) = (self.agreed.clone(), self.places.clone());
        async move {
            let Ok(_place) = places.acquire().await else { return };
            let initialize = message.body["method"] == "initialize";
            let is_request = message.body.get("id").is_some_and(|id| !id.is_null());
            let (each, mut told) = mpsc::channel(1);
            let send = async {
                // It ends with the sending, and the passing on with it.
                let each = each;
                client.mcp(&message, &each).await
            };
            let pass_on = async {
                let mut held = Vec::new();
                while let Some(value) = told.recv().await {
                    if initialize {
                        held.push(value);
                    } else {
                        let _ = lines.send(value).await;
                    }
                }
                held
            };
            let (sent, held) = tokio::join!(send, pass_on);
            if let (true, Ok(session)) = (initialize, &sent) {
                let version = held.iter().find_map(|value| value["result"]["protocolVersion"].as_str());
                let mut agreed = agreed.lock().unwrap_or_else(PoisonError::into_inner);
                agreed.version = version.map(str::to_owned);
                agreed.session = session.clone().unwrap_or_else(|| agreed.session.clone());
            }
            // Not before it is known here what was agreed: the host's next message builds on it.
            for value in held {
                let _ = lines.send(value).await;
            }
            if let (true, Err(error)) = (is_request, &sent) {
                let _ = lines.send(failed(&message.body, error)).await;
            }
        }
    }

    /// By its name, and not by hanging up: a connection may be lost without anybody meaning it.
    async fn cancel(&self, body: Value, request: Option<AbortHandle>) {
        let Some(request) = request else { return };
        // If the server cannot be told, the request ends when its work does.
        let (each, _nothing) = mpsc::channel(1);
        let _ = self.client.mcp(&self.message(body), &each).await;
        request.abort();
    }
}

/// A failure on the way. A model reads the results of tools and not the errors of the protocol.
fn failed(request: &Value, error: &ClientError) -> Value {
    let told = error_json(error);
    if request["method"] == "tools/call" {
        let text = told.to_string();
        let result =
            json!({ "content": [{ "type": "text", "text": text }], "structuredContent": told, "isError": true });
        return json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
    }
    let word = |name: &str| told["error"][name].as_str().unwrap_or_default();
    let text = format!("{}. {}", word("message"), word("hint"));
    let mut answer = refused(&request["id"], -32000, text.trim());
    answer["error"]["data"] = told["error"].clone();
    answer
}

fn refused(id: &Value, code: i32, text: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": text } })
}

enum Line {
    Whole(Vec<u8>),
    /// Too long, and dropped.
    Long,
    End,
}

async fn read_line(input: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> std::io::Result<Line> {
    let mut line = Vec::new();
    let mut long = false;
    loop {
        let held = input.fill_buf().await?;
        if held.is_empty() {
            return Ok(match (long, line.is_empty()) {
                (true, _) => Line::Long,
                (false, true) => Line::End,
                (false, false) => Line::Whole(line),
            });
        }
        let end = held.iter().position(|byte| *byte == b'\n');
        let length = end.unwrap_or(held.len());
        if line.len() + length > MAX_LINE {
            long = true;
            line = Vec::new();
        } else if !long {
            line.extend_from_slice(&held[..length]);
        }
        let taken = end.map_or(length, |end| end + 1);
        input.consume(taken);
        if end.is_some() {
            return Ok(if long { Line::Long } else { Line::Whole(line) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_is_too_long_costs_no_memory_and_not_the_next_one() {
        let mut text = vec![b'x'; MAX_LINE + 10];
        text.extend_from_slice(b"\n{}\nlast");
        let mut input = BufReader::new(&text[..]);
        assert!(matches!(read_line(&mut input).await.expect("a line"), Line::Long));
        assert!(matches!(read_line(&mut input).await.expect("a line"), Line::Whole(line) if line == b"{}"));
        assert!(matches!(read_line(&mut input).await.expect("a line"), Line::Whole(line) if line == b"last"));
        assert!(matches!(read_line(&mut input).await.expect("the end"), Line::End));
    }

    #[test]
    fn a_tool_that_cannot_be_called_says_so_to_the_model() {
        let error = ClientError::local("connection_error", "cannot connect").with_hint("Start it.");
        let told = failed(&json!({"id": 7, "method": "tools/call"}), &error);
        assert_eq!((told["id"].as_i64(), told["result"]["isError"].as_bool()), (Some(7), Some(true)));
        assert_eq!(told["result"]["structuredContent"]["error"]["hint"], "Start it.");
        let told = failed(&json!({"id": "a", "method": "tools/list"}), &error);
        assert_eq!(told["error"]["message"], "cannot connect. Start it.");
    }
}
