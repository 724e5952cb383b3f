//! `zillion check`: finds the problems of a job before it runs.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use zillion_console::{compute_pool, exit, job_file, print_result};
use zillion_trainer::{
    CheckReport, DataCheck, FeatureCheck, GradientCheck, Job, MemoryCheck, Severity, TableCheck,
};

use crate::args::CheckArgs;
use crate::text::{self, bytes, grouped, percent};

/// The number of rows whose gradients are compared. It is small, so that each row has a measurable
/// share of the loss.
const GRADIENT_ROWS: usize = 32;

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let (report, job) = report(args)?;
    let mut gradients = None;
    // If the job cannot run, it has no gradients to compare.
    if let Some(job) = job.filter(|_| args.gradients && report.worst() != Some(Severity::Error)) {
        let workers = compute_pool(job.run.threads)?;
        gradients = Some(zillion_trainer::gradients(&job, GRADIENT_ROWS, &workers)?);
    }
    print_result(args.json, &Outcome { report: &report, gradients: gradients.as_ref() }, |_| {
        show(&report);
        gradients.iter().for_each(show_gradients);
    })?;
    Ok(match report.worst() {
        Some(Severity::Error) => exit::failed(),
        _ if gradients.is_some_and(|g| !g.passed()) => exit::failed(),
        Some(Severity::Stop) => exit::refused(),
        _ => ExitCode::SUCCESS,
    })
}

#[derive(Serialize)]
struct Outcome<'a> {
    #[serde(flatten)]
    report: &'a CheckReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    gradients: Option<&'a GradientCheck>,
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show_gradients(check: &GradientCheck) {
    println!(
        "\ngradients against finite differences on {} rows, loss {:.4}",
        check.rows, check.loss
    );
    let heads = ["", "floats", "norm", "worst error", ""];
    let rows = check.groups.iter().map(|group| {
        let kind = if group.is_table { "table" } else { "parameter" };
        vec![
            format!("{kind} {}", group.name),
            grouped(group.elements as u64),
            format!("{:.2e}", group.norm),
            format!("{:.2e}", group.worst),
            if group.worst > check.tolerance { "WRONG".to_owned() } else { String::new() },
        ]
    });
    print!("{}", text::table(&heads, rows, 1));
    match check.passed() {
        true => println!("the gradients agree to {}", percent(check.tolerance)),
        false => println!("the gradients differ by more than {}", percent(check.tolerance)),
    }
}

/// Checks the job that the command line names. If the job cannot be read, the report contains this
/// as a finding, and the job is `None`.
fn report(args: &CheckArgs) -> Result<(CheckReport, Option<Job>)> {
    let path = &args.job.job;
    let value = match job_file::load(path, std::env::vars(), &args.job.set) {
        Ok(value) => value,
        Err(error) => return Ok((CheckReport::of_error("job", format!("{error:#}")), None)),
    };
    let job = match Job::from_value(value) {
        Ok(job) => job,
        Err(error) => return Ok((CheckReport::of_error("job", error), None)),
    };
    let report = zillion_trainer::check(&job, args.sample, &compute_pool(job.run.threads)?)?;
    Ok((report, Some(job)))
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(report: &CheckReport) {
    if let Some(data) = &report.data {
        println!("{}", rows_line(data));
        for label in &data.labels {
            if let Some(rate) = label.base_rate {
                println!(
                    "label {}: {} of {} examined rows",
                    label.name,
                    percent(rate),
                    grouped(label.rows)
                );
            }
        }
        println!("\n{}", features(data));
    }
    if !report.tables.is_empty() {
        println!("{}", tables(&report.tables));
    }
    // Without data, the memory of the tables is not known. A reader would take the memory of the
    // other parts for the memory of the whole job.
    if let (Some(memory), Some(_)) = (&report.memory, &report.data) {
        println!("{}\n", memory_line(memory));
    }
    for finding in &report.findings {
        let word = match finding.severity {
            Severity::Error => "error",
            Severity::Stop => "stop",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        // The text of an error in the job file begins with the word "job", which the line already
        // shows.
        let text = finding.text.strip_prefix("job: ").unwrap_or(&finding.text);
        // The trainer names the setting; this command line adds the flag that sets it.
        let holds_checkpoints = finding.about == "run.output" && finding.severity == Severity::Note;
        let flag =
            if holds_checkpoints { " (`--resume` resumes, `--overwrite` replaces)" } else { "" };
        println!("{word}: {}: {text}{flag}", finding.about);
    }
    println!(
        "{}",
        match report.worst() {
            Some(Severity::Error) => "the job cannot run",
            Some(Severity::Stop) => "the job could run, but should not",
            _ => "the job can run",
        }
    );
}

fn rows_line(data: &DataCheck) -> String {
    let rows = match data.rows {
        Some(n) if data.rows_are_exact => format!("{} rows to train", grouped(n)),
        Some(n) => format!("about {} rows to train", grouped(n)),
        None => "an unknown number of rows to train".to_owned(),
    };
    let examined = match data.rows == Some(data.sampled + data.rejected) {
        true => "all examined".to_owned(),
        false if !data.is_spread => {
            format!("the first {} of them examined", grouped(data.sampled))
        }
        false if data.places == 1 => format!("{} of them examined", grouped(data.sampled)),
        false => format!(
            "{} of them examined, from {} places spread over the files",
            grouped(data.sampled),
            data.places
        ),
    };
    match data.rejected {
        0 => format!("{rows}, {examined}"),
        bad => format!("{rows}, {examined}, {} bad rows left out", grouped(bad)),
    }
}

fn features(data: &DataCheck) -> String {
    let heads = ["feature", "kind", "missing", "distinct in the sample", "values"];
    let row = |feature: &FeatureCheck| {
        let values = match (feature.numbers, feature.values_per_row) {
            (Some([min, mean, max]), _) => format!("{min:.4} to {max:.4}, mean {mean:.4}"),
            (None, Some(n)) => format!("{n:.2} a row"),
            (None, None) => String::new(),
        };
        let distinct = feature.distinct.map_or_else(String::new, grouped);
        let missing = percent(feature.missing_share);
        vec![feature.name.clone(), feature.kind.to_owned(), missing, distinct, values]
    };
    text::table(&heads, data.features.iter().map(row), 2)
}

fn tables(tables: &[TableCheck]) -> String {
    let heads = ["table", "rows", "between", "bytes a row", "memory", "checkpoint"];
    let row = |t: &TableCheck| {
        let between = match t.rows_low == t.rows_high {
            true => "exact".to_owned(),
            false => format!("{} and {}", grouped(t.rows_low), grouped(t.rows_high)),
        };
        vec![
            t.name.clone(),
            grouped(t.rows),
            between,
            t.bytes_per_row.to_string(),
            bytes(t.bytes),
            bytes(t.checkpoint_bytes),
        ]
    };
    let sum = |figure: fn(&TableCheck) -> u64| tables.iter().map(figure).sum();
    let (memory, checkpoint) = (bytes(sum(|t| t.bytes)), bytes(sum(|t| t.checkpoint_bytes)));
    let total = ["all", &grouped(sum(|t| t.rows)), "", "", &memory, &checkpoint];
    let rows = tables.iter().map(row).chain([total.map(str::to_owned).to_vec()]);
    format!(
        "{}rows: the geometric mean of Chao's lower bound and Heaps' power law, extrapolated from the ids of the \
         sample; between: the two bounds\n",
        text::table(&heads, rows, 1)
    )
}

fn memory_line(memory: &MemoryCheck) -> String {
    let MemoryCheck { tables, tables_high, arenas, windows, dense, available, total } = *memory;
    let all = tables + arenas + windows + dense;
    let machine = match (available, total) {
        (Some(available), Some(total)) => {
            format!("; {} of {} are free", bytes(available), bytes(total))
        }
        _ => String::new(),
    };
    format!(
        "memory: about {} (tables {}, at most {}; buffers of a step {}; rows being shuffled {}; dense \
         parameters {}){machine}",
        bytes(all),
        bytes(tables),
        bytes(tables_high),
        bytes(arenas),
        bytes(windows),
        bytes(dense)
    )
}
