//! What a crash left of snapshots is gone on with, and what nobody wants is swept.

use runtime_model::State;
use runtime_proto::node::NodeError;
use runtime_store::{SnapshotRow, SnapshotState};

use crate::AppState;
use crate::error::ApiError;

impl AppState {
    /// One round. One that resists is told of and keeps none of the others waiting.
    pub(crate) async fn reconcile_snapshots(&self) -> Result<(), ApiError> {
        // Before the rows: one that is on the host by now has its row by then.
        let there = self.node().snapshots().await.map_err(ApiError::from)?;
        let rows = self.store().unfinished_snapshots().await;
        for row in rows.map_err(|error| ApiError::internal("reading the snapshots under way", error))? {
            self.go_on_with(&row).await.unwrap_or_else(|error| report(&error));
        }
        for id in there {
            let row = self.snapshot_row(id).await?;
            match row.map(|row| row.state) {
                None => self.strange(id),
                Some(SnapshotState::Failed | SnapshotState::Deleted) => {
                    self.drop_snapshot(id).await.unwrap_or_else(|error| report(&error));
                }
                Some(SnapshotState::Capturing | SnapshotState::Ready | SnapshotState::Deleting) => {}
            }
        }
        Ok(())
    }

    async fn go_on_with(&self, row: &SnapshotRow) -> Result<(), ApiError> {
        match row.state {
            SnapshotState::Capturing => match self.live(row.source).await? {
                Some(live) => {
                    live.want_captures();
                    self.nudge(&live);
                    Ok(())
                }
                None => self.fail_snapshot(row.id, &NodeError::Busy("it was deleted".to_owned())).await,
            },
            SnapshotState::Deleting => self.finish_deletion(row.id).await,
            SnapshotState::Ready | SnapshotState::Failed if row.passing => self.pass(row).await,
            SnapshotState::Ready | SnapshotState::Failed | SnapshotState::Deleted => Ok(()),
        }
    }

    /// Of a fork that a crash cut short, or that is over.
    async fn pass(&self, row: &SnapshotRow) -> Result<(), ApiError> {
        let name = row.id.to_string();
        let needs = |row: &runtime_store::SandboxRow| {
            row.state == State::Starting && row.snapshot.as_deref() == Some(name.as_str())
        };
        let held = self.snapshots().held().contains(&row.id);
        let needed = self.sandboxes().all().iter().any(|live| live.peek().is_some_and(|row| needs(&row)));
        if held || needed {
            return Ok(());
        }
        self.delete_snapshot(row.id).await.map(drop)
    }

    /// A database that was put back from an older copy must not take with it what it does not know.
    fn strange(&self, id: runtime_model::SnapshotId) {
        let strangers = &self.snapshots().strangers;
        if strangers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(id) {
            tracing::error!(
                snapshot = %id,
                "the database knows no such snapshot; it is kept. If nobody needs it, stop the server and delete it \
                 below pool/snap in the data directory"
            );
        }
    }

    pub(crate) async fn retire_snapshots(&self, now: i64) -> Result<(), ApiError> {
        let over = self.store().expired_snapshots(now).await;
        for id in over.map_err(|error| ApiError::internal("listing snapshots past their time", error))? {
            tracing::info!(snapshot = %id, "deleting it: its time is over");
            self.delete_snapshot(id).await.map(drop).unwrap_or_else(|error| report(&error));
        }
        Ok(())
    }
}

fn report(error: &ApiError) {
    let cause = error.cause().map_or_else(|| error.to_string(), str::to_owned);
    tracing::error!(cause, "reconciling snapshots");
}
