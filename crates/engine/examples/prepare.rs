//! Prepares this host by hand: `prepare setup|check|doctor|open DIR`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use runtime_engine::doctor;
use runtime_engine::prepare::{self, EngineChoice, Progress, SetupOptions};

struct Print(Instant);

impl Progress for Print {
    fn step(&self, name: &str, why: &str) {
        println!("{:6.1}s {name}: {why}", self.0.elapsed().as_secs_f32());
    }
    fn note(&self, text: &str) {
        println!("{:6.1}s   {text}", self.0.elapsed().as_secs_f32());
    }
    fn done(&self, name: &str, result: &str) {
        println!("{:6.1}s {name}: {result}", self.0.elapsed().as_secs_f32());
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let data_dir = PathBuf::from(arguments.next().unwrap_or_else(|| "/var/lib/runtime".into()));
    match what.as_str() {
        "setup" | "check" => {
            let options = SetupOptions { data_dir, engine: EngineChoice::Auto, check_only: what == "check" };
            match prepare::setup(options, &Print(Instant::now())).await {
                Ok(report) => println!("changed: {}, ready: {}", report.changed(), report.ready()),
                Err(e) => return failed(&e),
            }
        }
        "doctor" => {
            let report =
                doctor::run(&doctor::Options { data_dir, engine: EngineChoice::Auto, listen: "127.0.0.1:8787".into() });
            for check in &report.checks {
                println!("{check}");
            }
            return if report.healthy() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        "open" => match prepare::open(&data_dir) {
            Ok(host) => println!("{host:#?}"),
            Err(e) => return failed(&e),
        },
        _ => {
            eprintln!("usage: prepare setup|check|doctor|open [DIR]");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}
