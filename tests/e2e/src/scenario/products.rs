//! The calls of the table that are about more than commands and small files: snapshots, forks, the network, terminals,
//! sessions, archives.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use runtime_api::client::{Client, ClientError, ClientOptions, Frame, MAX_WHOLE_FILE, path, refusal};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

type Answer = Result<Value, ClientError>;

pub(super) async fn on_account(client: &Client, call: &str, given: &Map<String, Value>) -> Answer {
    let id = given.get("id").and_then(Value::as_str).unwrap_or_default();
    match call {
        "snapshots.get" => Ok(client.snapshot(id).await?.0),
        "snapshots.delete" => client.delete_snapshot(id).await.map(|_| Value::Null),
        "snapshots.list" => {
            let sandbox = given.get("sandboxId").and_then(Value::as_str);
            let found = client.list_snapshots(sandbox, None).await?;
            Ok(json!({ "data": found.into_iter().map(|record| record.0).collect::<Vec<_>>() }))
        }
        _ => panic!("there is no call {call}"),
    }
}

pub(super) async fn on_sandbox(client: &Client, id: &str, call: &str, given: Map<String, Value>) -> Answer {
    match call {
        "snapshot" => Ok(client.take_snapshot(id, &given.into()).await?.0),
        "network.get" => Ok(client.network(id).await?.0),
        "network.set" => Ok(client.set_network(id, &given.into()).await?.0),
        "terminal" => terminal(client, id, given).await,
        "sessions.create" => Ok(client.create_session(id, &given.into()).await?.0),
        "sessions.list" => {
            let found = client.sessions(id).await?;
            Ok(json!({ "data": found.into_iter().map(|record| record.0).collect::<Vec<_>>() }))
        }
        "sessions.revoke" => {
            Ok(client.revoke_session(id, given.get("id").and_then(Value::as_str).expect("an id")).await?.0)
        }
        _ => panic!("a sandbox has no call {call}"),
    }
}

/// A client that has the token of a session and no key.
pub(super) fn inside(client: &Client, token: &str) -> Client {
    let options = ClientOptions {
        origin: client.origin().clone(),
        key: Some(token.to_owned()),
        caller: "runtime-e2e/0".to_owned(),
        on_room_wait: None,
    };
    Client::new(options, runtime_service::tls::no_roots().expect("TLS")).expect("a client")
}

/// A terminal until its program has ended.
async fn terminal(client: &Client, id: &str, mut given: Map<String, Value>) -> Answer {
    let typed = given.remove("typed");
    let query: Vec<(&str, String)> = given
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
        .collect();
    let route = path(&["v1", "sandboxes", id, "terminal"]);
    let (ready, mut sink, mut stream) = client.socket(&route, &query).await?;
    if let Some(typed) = typed.as_ref().and_then(Value::as_str) {
        sink.bytes(Bytes::copy_from_slice(typed.as_bytes())).await?;
    }
    let (mut output, mut exit_code) = (Vec::new(), Value::Null);
    while let Some(frame) = stream.next().await? {
        match frame {
            Frame::Bytes(bytes) => output.extend_from_slice(&bytes),
            Frame::Text(frame) if frame["type"] == "exit" => exit_code = frame["exitCode"].clone(),
            Frame::Text(frame) if frame["type"] == "error" => return Err(refusal(&frame)),
            Frame::Text(_) => {}
        }
    }
    Ok(json!({ "output": String::from_utf8_lossy(&output), "exitCode": exit_code, "processId": ready["processId"] }))
}

/// A file of any size.
pub(super) async fn write(
    client: &Client,
    id: &str,
    file: &str,
    bytes: Bytes,
    mode: Option<&str>,
) -> Result<(), ClientError> {
    if bytes.len() <= MAX_WHOLE_FILE {
        return client.write_file(id, file, bytes, mode).await.map(drop);
    }
    let digest = base16(&Sha256::digest(&bytes));
    let whole = &bytes;
    let read = |offset: u64, length: usize| async move {
        let from = usize::try_from(offset).expect("it is in memory");
        Ok(whole.slice(from..from + length))
    };
    client.upload_file(id, file, bytes.len() as u64, &digest, mode.unwrap_or("644"), read).await
}

pub(super) async fn archive(client: &Client, id: &str, folder: &str) -> Answer {
    let mut download = client.download_archive(id, folder).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = download.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(json!({ "base64": STANDARD.encode(bytes) }))
}

pub(super) async fn unarchive(client: &Client, id: &str, folder: &str, bytes: &Bytes) -> Answer {
    let mut upload = client.upload_archive(id, folder).await?;
    for from in (0..bytes.len()).step_by(upload.step) {
        let part = bytes.slice(from..bytes.len().min(from + upload.step));
        if let Err(error) = upload.part(part).await {
            upload.abort().await;
            return Err(error);
        }
    }
    upload.commit().await?;
    Ok(Value::Null)
}

fn base16(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
