//! `runtime keys`: straight on the data directory's store, so that it works whether or not a server runs.

use std::process::ExitCode;

use anyhow::Result;
use runtime_cli::KeysArgs;
use runtime_server::keys::{self, NewKey};
use serde_json::json;

pub(crate) fn run(args: KeysArgs, json: bool) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return crate::fail(&error.into()),
    };
    match runtime.block_on(carry_out(args, json)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::fail(&error),
    }
}

async fn carry_out(args: KeysArgs, json: bool) -> Result<()> {
    match args {
        KeysArgs::Create { name, read_only, account_wide, data } => {
            let store = keys::open(&data.path()).await?;
            let name = name.unwrap_or_else(|| "key".to_owned());
            let made = keys::create(&store, NewKey { name, read_only, account_wide }).await?;
            if json {
                let row = &made.row;
                println!("{}", json!({"id": row.id.to_string(), "name": row.name, "key": made.reveal()}));
            } else {
                println!("{}", made.reveal());
            }
        }
        KeysArgs::Ls { data } => {
            let keys = keys::listed(&keys::open(&data.path()).await?).await?;
            if json {
                println!("{}", serde_json::to_string(&keys)?);
            } else {
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
                println!("{}", runtime_cli::table(&["id", "name", "access", "created", "state"], &rows));
            }
        }
        KeysArgs::Revoke { id, data } => {
            let row = keys::revoke(&keys::open(&data.path()).await?, &id).await?;
            if json {
                println!("{}", json!({"id": row.id.to_string(), "revoked": true}));
            } else {
                eprintln!("revoked {} ({})", row.id, row.name);
            }
        }
    }
    Ok(())
}
