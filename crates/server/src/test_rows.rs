//! A row to start from.

use runtime_model::network::Network;
use runtime_model::{CredentialId, SandboxId, Shape, State};
use runtime_store::{Env, OnLimit, Operation, SandboxRow, UserKind};

pub(crate) fn row() -> SandboxRow {
    SandboxRow {
        id: SandboxId::new_v4(),
        credential: CredentialId::new_v4(),
        name: Some("n".to_owned()),
        labels: [("a".to_owned(), "b".to_owned())].into(),
        env: Env([("PASSWORD".to_owned(), "hunter2".to_owned())].into()),
        user: UserKind::Sandbox,
        region: "us-east".to_owned(),
        shape: Shape::default(),
        cpu_reserved: false,
        timeout_seconds: 0,
        on_limit: OnLimit::Pause,
        idle_seconds: 300,
        auto_wake: true,
        persistent: false,
        max_total_cost_micros: None,
        image: None,
        snapshot: None,
        secrets: None,
        network: Network::open(),
        network_version: 1,
        network_updated_at: None,
        engine: "memory".to_owned(),
        state: State::Starting,
        reason: None,
        operation: Some(Operation::StartNew),
        generation: 1,
        created_at: 1,
        ready_at: None,
        last_active_at: Some(1),
        ends_at: None,
        ended_at: None,
        paused_at: None,
        retention_days: None,
        disk_kept: false,
        memory_restored: None,
        charged_micros: 0,
        held_micros: 0,
    }
}
