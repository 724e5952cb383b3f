//! `zillion doctor`: reports the properties of this machine that matter to Zillion, and remedies
//! for bad properties.
//!
//! If a property can be improved, its finding gives the command to type. The doctor itself changes
//! nothing. If the system does not report a property, the finding says so.

mod checks;
mod disk;

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use zillion_console::print_result;

use crate::args::DoctorArgs;

/// The grade of a property of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Grade {
    /// The grade of a property that needs no change.
    Good,
    /// The grade of a property that should be improved by the remedy.
    Improve,
    /// The grade of a property that is neither good nor bad, or that the system does not report.
    Note,
}

/// A property of the machine with its grade and, if it can be improved, its remedy.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    what: &'static str,
    grade: Grade,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, grade: Grade::Good, found: found.into(), advice: None }
    }

    fn note(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, grade: Grade::Note, found: found.into(), advice: None }
    }

    fn improve(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let (found, advice) = (found.into(), Some(advice.into()));
        Self { what, grade: Grade::Improve, found, advice }
    }
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    findings: Vec<Finding>,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let folder = args.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let mut findings = checks::machine();
    findings.extend(disk::disk(&folder, args.disk_mib)?);
    let report = Report { version: env!("CARGO_PKG_VERSION"), findings };
    print_result(args.json, &report, print)
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn print(report: &Report) {
    let width = report.findings.iter().map(|f| f.what.len()).max().unwrap_or(0);
    for finding in &report.findings {
        let mark = match finding.grade {
            Grade::Good => "ok",
            Grade::Improve => "!!",
            Grade::Note => "--",
        };
        println!("{mark}  {:width$}  {}", finding.what, finding.found);
        if let Some(advice) = &finding.advice {
            println!("    {:width$}  -> {advice}", "");
        }
    }
    let could = report.findings.iter().filter(|f| f.grade == Grade::Improve).count();
    match could {
        0 => println!("nothing to improve"),
        1 => println!("one thing could be better"),
        _ => println!("{could} things could be better"),
    }
}
