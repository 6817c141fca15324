//! What the commands of this machine promise to programs: one JSON value or one JSON error, and an exit code of 0 or 1.
//! Nothing here needs a prepared host.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn runtime(words: &[&str], data_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_runtime"));
    command.args(words).arg("--data-dir").arg(data_dir).stdin(Stdio::null());
    command
}

fn ended(mut command: Command) -> Output {
    command.output().expect("the program")
}

/// All of it is one value.
fn only(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(bytes)))
}

/// A place where no server can keep anything: it lies below a file.
fn no_place(dir: &Path) -> std::path::PathBuf {
    let file = dir.join("file");
    std::fs::write(&file, "").expect("a file");
    file.join("data")
}

#[test]
fn every_failure_is_one_json_error_on_stderr() {
    let dir = tempfile::tempdir().expect("a directory");
    let nowhere = no_place(dir.path());
    for words in [
        &["keys", "create", "--json"][..],
        &["keys", "ls", "--json"],
        &["keys", "revoke", "x", "--json"],
        &["serve", "--json", "--listen", "127.0.0.1:0"],
        &["setup", "--json"],
    ] {
        let output = ended(runtime(words, &nowhere));
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        let error = only(&output.stderr);
        assert_eq!(error["error"]["code"], "cli_error", "{words:?}: {error}");
        assert!(error["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{words:?}: {error}");
    }
}

#[test]
fn for_a_person_it_is_a_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = ended(runtime(&["keys", "ls"], dir.path()));
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(said.starts_with("Error: there is no database ") && said.lines().count() == 1, "{said}");
}

#[test]
fn what_a_look_found_is_one_json_value() {
    let dir = tempfile::tempdir().expect("a directory");
    let report = ended(runtime(&["setup", "--check", "--json", "--engine", "gvisor"], dir.path()));
    let value = only(&report.stdout);
    let steps = value["steps"].as_array().expect("steps");
    assert!(steps.len() > 1, "{value}");
    for step in steps {
        assert!(step["name"].is_string() && step["outcome"].is_string() && step["detail"].is_string(), "{step}");
    }
    // An empty directory holds no pool yet.
    assert_eq!((&value["ready"], report.status.code()), (&Value::Bool(false), Some(1)), "{value}");
    assert!(report.stderr.is_empty(), "{}", String::from_utf8_lossy(&report.stderr));

    let checks = ended(runtime(&["doctor", "--json"], dir.path()));
    assert!(only(&checks.stdout).is_array());
}

#[test]
fn a_reader_that_left_is_no_crash() {
    let dir = tempfile::tempdir().expect("a directory");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = runtime(&["doctor"], dir.path());
    assert_eq!(command.stdout(writer).status().expect("the program").code(), Some(141));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut document = Command::new(env!("CARGO_BIN_EXE_runtime"));
    assert_eq!(document.arg("openapi").stdout(writer).status().expect("the program").code(), Some(141));
}
