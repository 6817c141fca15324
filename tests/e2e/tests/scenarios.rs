//! The table that all clients share, played by the Rust client against the built program.

use runtime_api::client::{Client, ClientOptions, Origin};
use runtime_e2e::scenario;
use runtime_test_kit::Stack;

/// A test for each table; the name of the test is that of the file.
macro_rules! tables {
    ($($name:ident)+) => {
        $(#[test]
        fn $name() {
            play(stringify!($name));
        })+

        const PLAYED: &[&str] = &[$(stringify!($name)),+];
    };
}

tables! { account commands files sandboxes }

#[test]
fn every_table_is_played() {
    let mut found: Vec<String> = std::fs::read_dir(scenario::tables())
        .expect("the tables")
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    found.sort();
    assert_eq!(found, PLAYED);
}

fn play(table: &str) {
    let stack = Stack::start();
    let options = ClientOptions {
        origin: Origin::parse(&stack.url()).expect("the server's address"),
        key: Some(stack.owner_key().to_owned()),
        caller: "runtime-e2e/0".to_owned(),
        on_room_wait: None,
    };
    let client = Client::new(options, runtime_service::tls::no_roots().expect("TLS")).expect("a client");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let scenarios = scenario::read(table);
    assert!(!scenarios.is_empty(), "{table} has scenarios");
    for scenario in scenarios {
        match runtime.block_on(scenario::play(&client, &scenario)) {
            Ok(()) => println!("ok {}", scenario.name),
            Err(unserved) => println!("skipped {}: {} is not served", scenario.name, unserved.0),
        }
    }
}
