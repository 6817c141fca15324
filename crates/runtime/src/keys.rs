//! `runtime keys`: straight on the data directory's store, so that it works whether or not a server runs.

use std::process::ExitCode;

use anyhow::Result;
use runtime_cli::KeysArgs;
use runtime_server::keys::{self, KeyRecord, NewKey};

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
            let new = NewKey { name: name.unwrap_or_else(|| "key".to_owned()), read_only, account_wide };
            let (record, key) = keys::create_shown(&store, new).await?;
            if json {
                println!("{}", serde_json::json!({"id": record.id, "name": record.name, "key": key}));
            } else {
                println!("{key}");
            }
        }
        KeysArgs::Ls { data } => {
            let records = keys::records(&keys::open(&data.path()).await?).await?;
            if json {
                println!("{}", serde_json::to_string(&records)?);
            } else {
                println!("{}", runtime_cli::table(&KeyRecord::HEADER, &records.iter().map(KeyRecord::row).collect::<Vec<_>>()));
            }
        }
        KeysArgs::Revoke { key, data } => {
            let record = keys::revoke_shown(&keys::open(&data.path()).await?, &key).await?;
            if json {
                println!("{}", serde_json::to_string(&record)?);
            } else {
                println!("revoked {}", record.id);
            }
        }
    }
    Ok(())
}
