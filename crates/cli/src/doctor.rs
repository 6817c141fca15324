//! What the doctor found, as lines or as JSON.

use std::process::ExitCode;

use serde::Serialize;

use crate::failure::Failure;
use crate::printer::{Printer, plain};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    /// Works without it, but not as well.
    Note,
    /// Sandboxes cannot run until it is fixed.
    Problem,
}

/// One prerequisite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: String,
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// What to do about it, as exactly as can be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Prints every check; the exit code says whether there is a problem.
#[must_use]
pub fn print_doctor(checks: &[Check], json: bool) -> ExitCode {
    let printer = Printer { json };
    let text = if json {
        serde_json::to_string(checks).map_err(|error| Failure::from(anyhow::Error::new(error)))
    } else {
        Ok(lines(checks))
    };
    if let Err(failure) = text.and_then(|text| Ok(printer.line(&text)?)) {
        return failure.tell(printer).into();
    }
    if has_problem(checks) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn has_problem(checks: &[Check]) -> bool {
    checks.iter().any(|check| check.status == Status::Problem)
}

fn lines(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let mut out = Vec::new();
    for check in checks {
        let status = match check.status {
            Status::Ok => "ok",
            Status::Note => "note",
            Status::Problem => "problem",
        };
        out.push(
            format!("{status:<7}  {:<width$}  {}", plain(&check.name), plain(&check.detail)).trim_end().to_owned(),
        );
        if let Some(fix) = &check.fix {
            out.extend(fix.lines().enumerate().map(|(at, line)| {
                format!("{:9}{:width$}  {} {}", "", "", if at == 0 { "fix:" } else { "    " }, plain(line))
            }));
        }
    }
    let problems = checks.iter().filter(|check| check.status == Status::Problem).count();
    out.push(match problems {
        0 => "Everything the server needs is here.".into(),
        1 => "1 problem.".into(),
        many => format!("{many} problems."),
    });
    out.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_per_check_and_the_fix_below_it() {
        let check = |name: &str, status, detail: &str, fix: Option<&str>| Check {
            name: name.into(),
            status,
            detail: detail.into(),
            fix: fix.map(Into::into),
        };
        let checks = [
            check("root", Status::Ok, "uid 0", None),
            check("runsc", Status::Problem, "not found", Some("apt-get install runsc\nruntime setup")),
            check("kvm", Status::Note, "no /dev/kvm", None),
        ];
        insta::assert_snapshot!(lines(&checks), @r"
        ok       root   uid 0
        problem  runsc  not found
                        fix: apt-get install runsc
                             runtime setup
        note     kvm    no /dev/kvm
        1 problem.
        ");
        assert!(has_problem(&checks) && !has_problem(&checks[..1]));
    }
}
