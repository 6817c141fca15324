//! `runtime doctor`: the engine's checks, printed by the command line.

use std::process::ExitCode;

use anyhow::Context;
use runtime_cli::{Check, DoctorArgs, Status};
use runtime_engine::doctor;
use runtime_engine::prepare::EngineChoice;

pub(crate) fn run(args: &DoctorArgs, json: bool) -> ExitCode {
    let engine: EngineChoice = match args.engine.as_str().parse().context("engine") {
        Ok(engine) => engine,
        Err(error) => return runtime_cli::fail(error, json),
    };
    let options = doctor::Options {
        data_dir: args.data.path(),
        engine,
        listen: args.listen.to_string(),
        preview_domain: args.preview_domain.clone(),
    };
    let checks: Vec<Check> = doctor::run(&options).checks.into_iter().map(shown).collect();
    runtime_cli::print_doctor(&checks, json)
}

fn shown(check: doctor::Check) -> Check {
    let status = match check.status {
        doctor::Status::Ok => Status::Ok,
        doctor::Status::Note => Status::Note,
        doctor::Status::Problem => Status::Problem,
    };
    Check { name: check.name.to_string(), status, detail: check.detail, fix: check.fix }
}
