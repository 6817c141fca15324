//! The tasks, and `ci`: all of them in the order that finds a mistake soonest.

use std::process::Command;

use anyhow::Result;

use crate::args::Task;
use crate::steps::{Steps, call, cargo};
use crate::workspace::Workspace;
use crate::{edges, openapi, setup};

pub(crate) fn run(task: Task) -> Result<()> {
    let workspace = Workspace::load()?;
    match task {
        Task::Ci => ci(&workspace),
        Task::CheckEdges => edges::check(&workspace),
        Task::Fmt { write } => fmt(&workspace, write),
        Task::Lint => lint(&workspace),
        Task::Test { nextest } => {
            build(&workspace)?;
            test(&workspace, &nextest)
        }
        Task::Deny => deny(&workspace),
        Task::SdkPython => {
            build(&workspace)?;
            sdk_python(&workspace)
        }
        Task::SdkTypescript => {
            build(&workspace)?;
            sdk_typescript(&workspace)
        }
        Task::SetupTests => setup_tests(&workspace),
        Task::Openapi { check } => {
            build(&workspace)?;
            openapi::run(&workspace, check)
        }
    }
}

fn ci(workspace: &Workspace) -> Result<()> {
    let mut steps = Steps::new(12);
    steps.run("packages", "what the build and the tests take from the system", setup::packages)?;
    steps.run("tools", "cargo's own helpers", || setup::tools(workspace))?;
    steps.check("fmt", "formatting", || fmt(workspace, false));
    steps.check("check-edges", "who imports whom", || edges::check(workspace));
    steps.check("lint", "clippy, warnings refused", || lint(workspace));
    steps.run("build", "the product and every test's crate, release", || build(workspace))?;
    steps.run("runtime setup", "sandbox engine, disk pool and base image", || setup::host(workspace))?;
    steps.check("openapi", "the committed API document is the program's", || openapi::run(workspace, true));
    steps.check("test", "all tests, against the built program", || test(workspace, &[]));
    steps.check("sdk-python", "the Python client, against the built program", || sdk_python(workspace));
    steps.check("sdk-typescript", "the TypeScript client, against the built program", || sdk_typescript(workspace));
    steps.check("deny", "licences, forbidden crates, sources", || deny(workspace));
    steps.finish()
}

fn setup_tests(workspace: &Workspace) -> Result<()> {
    let mut steps = Steps::new(4);
    steps.run("packages", "what the build and the tests take from the system", setup::packages)?;
    steps.run("tools", "cargo's own helpers", || setup::tools(workspace))?;
    steps.run("build", "the product, whose own set-up comes next", || build(workspace))?;
    steps.run("runtime setup", "sandbox engine, disk pool and base image", || setup::host(workspace))?;
    steps.finish()
}

fn fmt(workspace: &Workspace, write: bool) -> Result<()> {
    let mut command = cargo(&workspace.root);
    command.args(["fmt", "--all"]);
    if !write {
        command.arg("--check");
    }
    call(&mut command)
}

fn lint(workspace: &Workspace) -> Result<()> {
    let mut command = cargo(&workspace.root);
    command.args(["clippy", "--locked", "--workspace", "--all-targets", "--release", "--", "-D", "warnings"]);
    call(&mut command)
}

/// The whole workspace, so that the program under test has the features that its tests were built with, and nothing
/// is compiled twice.
fn build(workspace: &Workspace) -> Result<()> {
    call(cargo(&workspace.root).args(["build", "--locked", "--workspace", "--release"]))
}

fn test(workspace: &Workspace, nextest: &[std::ffi::OsString]) -> Result<()> {
    let mut command = cargo(&workspace.root);
    command.args(["nextest", "run", "--locked", "--release"]);
    if nextest.is_empty() {
        // What was not run is told by its name.
        command.args(["--workspace", "--final-status-level", "skip"]);
    } else {
        command.args(nextest);
    }
    call(&mut command)
}

/// The client's own script makes its environments; they lie with the rest of what is built.
fn sdk_python(workspace: &Workspace) -> Result<()> {
    let mut check = Command::new(workspace.root.join("sdk/python/check"));
    check.env("RUNTIME_BIN", workspace.runtime_binary());
    check.env("RUNTIME_SDK_VENVS", workspace.target_directory.join("sdk-python"));
    call(&mut check)
}

/// The client's own script installs its packages beside itself, and a newer Node.js where the system's is too old.
fn sdk_typescript(workspace: &Workspace) -> Result<()> {
    let mut check = Command::new(workspace.root.join("sdk/typescript/check"));
    check.env("RUNTIME_BIN", workspace.runtime_binary());
    // Another server must not be taken for the one that was just built.
    check.env_remove("RUNTIME_API_URL").env_remove("RUNTIME_API_KEY");
    // Here a browser is no luxury: `packages` installs it.
    check.env("RUNTIME_BROWSER", "required");
    call(&mut check)
}

fn deny(workspace: &Workspace) -> Result<()> {
    call(cargo(&workspace.root).args(["deny", "--locked", "--workspace", "check", "bans", "licenses", "sources"]))
}
