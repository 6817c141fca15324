//! Sandboxes on record without machines: copies of a stopped one's row, put beside a running server and taken away again.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use runtime_store::{ListFilter, Outcome, SandboxRow, SqliteStore, Store};

/// The copies; dropped without [`Records::remove`] they stay.
pub struct Records {
    runtime: tokio::runtime::Runtime,
    store: SqliteStore,
    copies: Vec<SandboxRow>,
}

impl Records {
    /// Adds `count` copies of the newest stopped sandbox of the data directory.
    pub fn add(data_dir: &Path, count: usize) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (store, copies) = runtime.block_on(async {
            let store = SqliteStore::open(&data_dir.join("runtime.db")).await?;
            let mut filter = ListFilter { limit: 1, ..ListFilter::default() };
            filter.states = vec![runtime_model::State::Stopped];
            let model = store.list(filter).await?.pop().context("no stopped sandbox to copy")?;
            let copies: Vec<SandboxRow> = (0..count)
                .map(|_| SandboxRow { id: runtime_model::SandboxId::new_v4(), name: None, ..model.clone() })
                .collect();
            // Together: the writer puts what waits into one transaction.
            for part in copies.chunks(500) {
                let writes = part.iter().map(|row| store.create_sandbox(row.clone(), None));
                for outcome in futures_util::future::join_all(writes).await {
                    ensure!(matches!(outcome?, Outcome::Done), "a copy was not taken");
                }
            }
            anyhow::Ok((store, copies))
        })?;
        Ok(Self { runtime, store, copies })
    }

    pub fn remove(self) -> Result<()> {
        self.runtime.block_on(async {
            for part in self.copies.chunks(500) {
                let removals = part.iter().map(|row| self.store.uncreate_sandbox(row.id, None));
                for done in futures_util::future::join_all(removals).await {
                    done?;
                }
            }
            self.store.close().await;
            Ok(())
        })
    }
}
