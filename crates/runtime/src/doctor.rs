//! `runtime doctor`: the engine's checks, printed by the command line.

use std::process::ExitCode;

use runtime_cli::{Check, DoctorArgs, Listen, Status};
use runtime_engine::doctor;

pub(crate) fn run(args: &DoctorArgs, json: bool) -> ExitCode {
    let options = doctor::Options { data_dir: args.data.path(), listen: Listen::default().to_string() };
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
