//! `runtime keys`: straight on the data directory's store, so that it works whether or not a server runs.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use runtime_cli::{Answer, KeysArgs};
use runtime_server::keys::{self, NewKey};
use serde_json::json;

pub(crate) fn run(args: KeysArgs, json: bool) -> ExitCode {
    let carried_out = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
        .and_then(|runtime| runtime.block_on(carry_out(args)));
    match carried_out {
        Ok(answer) => answer.finish(json),
        Err(error) => runtime_cli::fail(error, json),
    }
}

async fn carry_out(args: KeysArgs) -> Result<Answer> {
    match args {
        KeysArgs::Create { name, read_only, account_wide, data } => {
            let store = keys::open(&data.path()).await?;
            let name = name.unwrap_or_else(|| "key".to_owned());
            let made = keys::create(&store, NewKey { name, read_only, account_wide }).await?;
            let row = &made.row;
            let value = json!({"id": row.id.to_string(), "name": row.name, "key": made.reveal()});
            Ok(Answer::new(made.reveal(), value))
        }
        KeysArgs::Ls { data } => {
            let keys = keys::listed(&keys::open(&data.path()).await?).await?;
            let value = serde_json::to_value(&keys)?;
            let rows: Vec<Vec<String>> = keys
                .into_iter()
                .map(|key| {
                    let revoked = key.revoked_at.map_or_else(|| "active".to_owned(), |at| format!("revoked {at}"));
                    vec![
                        key.id,
                        key.name,
                        key.access.to_owned(),
                        key.created_at.map_or_else(String::new, |at| at.to_string()),
                        revoked,
                    ]
                })
                .collect();
            Ok(Answer::new(runtime_cli::table(&["id", "name", "access", "created", "state"], &rows), value))
        }
        KeysArgs::Revoke { id, data } => {
            let row = keys::revoke(&keys::open(&data.path()).await?, &id).await?;
            let value = json!({"id": row.id.to_string(), "revoked": true});
            Ok(Answer::new(format!("{} revoked", row.id), value))
        }
    }
}
