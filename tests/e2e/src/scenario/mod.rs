//! The table of scenarios that all clients share (`sdk/scenarios`), played by the Rust client: so that what the command
//! line is built on cannot drift from the others.
//!
//! [`player`] knows the names of the table, and which calls of the client each is; [`expect`] what is to come of it.

mod expect;
mod player;

use std::path::{Path, PathBuf};

use runtime_api::client::Client;
use serde_json::Value;

pub use player::Unserved;

/// A scenario, by the name it is told under.
#[derive(Debug)]
pub struct Scenario {
    pub name: String,
    steps: Vec<Value>,
}

/// Where the tables lie.
#[must_use]
pub fn tables() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/scenarios")
}

/// The scenarios of a table.
///
/// # Panics
/// When it cannot be read.
#[must_use]
pub fn read(table: &str) -> Vec<Scenario> {
    let path = tables().join(table).with_extension("json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    let read: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    let scenarios = read["scenarios"].as_array().expect("a list of scenarios");
    scenarios
        .iter()
        .map(|scenario| Scenario {
            name: format!("{table}: {}", scenario["name"].as_str().expect("a name")),
            steps: scenario["steps"].as_array().expect("steps").clone(),
        })
        .collect()
}

/// Plays one, and deletes the sandboxes that it made.
///
/// # Errors
/// What the server lacks for it.
///
/// # Panics
/// When something comes out otherwise than the table says.
pub async fn play(client: &Client, scenario: &Scenario) -> Result<(), Unserved> {
    let mut player = player::Player::new(client);
    for (number, step) in scenario.steps.iter().enumerate() {
        let place = format!("{}, step {} ({})", scenario.name, number + 1, step["call"].as_str().unwrap_or_default());
        if let Err(unserved) = player.play(step, &place).await {
            player.clean().await;
            return Err(unserved);
        }
    }
    player.clean().await;
    Ok(())
}
