//! `runtime setup`: the engine's steps, told on the terminal as they happen, or as one report.

use std::process::ExitCode;

use anyhow::{Context, Result};
use runtime_cli::{Answer, Progress as _, SetupArgs, StderrProgress};
use runtime_engine::prepare::{self, EngineChoice, Outcome, SetupOptions, SetupReport, Silent};
use serde_json::{Value, json};

pub(crate) fn run(args: &SetupArgs, json: bool) -> ExitCode {
    let prepared = if json {
        // The report says it all, and an error is then alone on stderr.
        prepare_host(args, &Silent)
    } else {
        let told = Told(StderrProgress::new());
        prepare_host(args, &told).inspect_err(|_| told.0.failed("failed"))
    };
    match prepared {
        Ok(report) => Answer::new("", value(&report)).and_fails(!report.ready()).finish(json),
        Err(error) => runtime_cli::fail(error, json),
    }
}

fn prepare_host(args: &SetupArgs, progress: &dyn prepare::Progress) -> Result<SetupReport> {
    let engine: EngineChoice = args.engine.as_str().parse().context("engine")?;
    let options = SetupOptions { data_dir: args.data.path(), engine, check_only: args.check };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(prepare::setup(options, progress))?)
}

fn value(report: &SetupReport) -> Value {
    let steps: Vec<Value> = report
        .steps
        .iter()
        .map(|step| {
            let outcome = match &step.outcome {
                Outcome::Already(_) => "already",
                Outcome::Changed(_) => "changed",
                Outcome::Would(_) => "would change",
                Outcome::Blocked(_) => "blocked",
            };
            json!({"name": step.name, "outcome": outcome, "detail": step.outcome.text()})
        })
        .collect();
    json!({
        "engine": report.engine,
        "dataDir": report.data_dir.display().to_string(),
        "ready": report.ready(),
        "steps": steps,
    })
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
