//! `runtime setup`: the engine's steps, told on the terminal.

use std::process::ExitCode;

use anyhow::{Context, Result};
use runtime_cli::{Progress as _, SetupArgs, StderrProgress};
use runtime_engine::prepare::{self, EngineChoice, SetupOptions};

pub(crate) fn run(args: &SetupArgs, json: bool) -> ExitCode {
    let progress = Told(StderrProgress::new());
    match prepare_host(args, &progress) {
        Ok(report) => {
            for step in report.steps.iter().filter(|_| json) {
                println!("{}", serde_json::json!({"step": step.name, "outcome": step.outcome.text()}));
            }
            if report.ready() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            progress.0.failed("failed");
            crate::fail(&error)
        }
    }
}

fn prepare_host(args: &SetupArgs, progress: &Told) -> Result<prepare::SetupReport> {
    let engine: EngineChoice = args.engine.as_str().parse().context("engine")?;
    let options = SetupOptions { data_dir: args.data.path(), engine, check_only: args.check };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(prepare::setup(options, progress))?)
}

struct Told(StderrProgress);

impl prepare::Progress for Told {
    fn step(&self, name: &str, why: &str) {
        self.0.step(name, why);
    }
    fn note(&self, text: &str) {
        self.0.note(text);
    }
    fn done(&self, _name: &str, result: &str) {
        self.0.done(result);
    }
}
