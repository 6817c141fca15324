use std::path::Path;

use super::*;

fn options(data_dir: &Path, engine: EngineChoice) -> Options {
    Options { data_dir: data_dir.into(), engine, listen: "127.0.0.1:0".into(), preview_domain: None }
}

fn status(report: &Report, name: &str) -> Status {
    report.checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no check {name}")).status
}

#[test]
fn an_unprepared_directory_has_problems_each_with_its_fix() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("not/yet/there");
    let report = run(&options(&data_dir, EngineChoice::Auto));
    assert!(!report.healthy());
    assert!(!dir.path().join("not").exists(), "a doctor only looks");
    for name in ["disk pool", "base image"] {
        assert_eq!(status(&report, name), Status::Problem, "{name}");
    }
    for check in &report.checks {
        assert!(!check.detail.is_empty(), "{}", check.name);
        assert_eq!(check.fix.is_some(), check.status == Status::Problem, "{}", check.name);
    }
    let pool = report.checks.iter().find(|check| check.name == "disk pool").unwrap();
    assert_eq!(pool.fix.as_deref(), Some(format!("runtime setup --data-dir {}", data_dir.display()).as_str()));
    assert!(pool.to_string().starts_with("problem disk pool: "));
}

#[test]
fn the_machine_under_test_is_fit() {
    let dir = tempfile::tempdir().unwrap();
    let report = run(&options(dir.path(), EngineChoice::Auto));
    for name in ["rights", "kernel", "clock", "memory", "control groups", "ptrace", "engine", "loop devices", "address"]
    {
        assert_eq!(status(&report, name), Status::Ok, "{name}");
    }
    assert_eq!(status(&report, "kvm"), Status::Note);
}

#[test]
fn a_program_that_is_missing_is_a_problem_only_for_its_engine() {
    let dir = tempfile::tempdir().unwrap();
    if crate::prepare::Firecracker::find().is_err() {
        let report = run(&options(dir.path(), EngineChoice::Firecracker));
        let program = report.checks.iter().find(|check| check.name == "firecracker").unwrap();
        assert_eq!(program.status, Status::Problem, "{program}");
        assert!(program.fix.as_deref().is_some_and(|fix| fix.contains("/usr/local/bin")), "{program}");
    }
    let report = run(&options(dir.path(), EngineChoice::Gvisor));
    assert_eq!(status(&report, "engine"), Status::Ok);
    assert_ne!(status(&report, "firecracker"), Status::Problem);
}
