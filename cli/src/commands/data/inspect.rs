//! `zillion data inspect`: describes the columns of files.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::Serialize;
use zillion_console::{compute_pool, job_file, print_result};
use zillion_datatools::{
    ColumnProfile, Count, Drift, Numbers, Profile, ProfileSpec, drift, profile,
};
use zillion_reader::{DataConfig, Paths};

use crate::args::InspectArgs;
use crate::raw_files::guess_config;
use crate::text::{self, figure, grouped, percent};

/// The minimum population stability index at which the report recommends a look at the column. The
/// next constant is the minimum index at which the report calls the column changed.
const WORTH_A_LOOK: f64 = 0.1;
const CHANGED: f64 = 0.25;

#[derive(Serialize)]
struct Report {
    rows: u64,
    /// Whether all rows of the files were read for the report.
    complete: bool,
    columns: Vec<Column>,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Against>,
}

#[derive(Serialize)]
struct Column {
    name: String,
    kind: String,
    data_type: String,
    missing_share: f64,
    distinct: u64,
    distinct_is_exact: bool,
    /// The number of distinct values divided by the number of present values. It is 1 if no value
    /// occurs twice.
    coverage: f64,
    top: Vec<Count>,
    /// The largest number by which a count may be too low.
    count_error: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    numbers: Option<Numbers>,
}

#[derive(Serialize)]
struct Against {
    rows: u64,
    columns: Vec<Drifted>,
    only_in_first: Vec<String>,
    only_in_second: Vec<String>,
}

#[derive(Serialize)]
struct Drifted {
    name: String,
    #[serde(flatten)]
    drift: Drift,
}

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let workers = compute_pool(None)?;
    let files = expand(&args.files)?;
    let second = expand(&args.against)?;
    let config = match &args.job {
        Some(path) => job_file::load_data(path)?.1,
        None => match files.first() {
            Some(file) => guess_config(file, &workers)?,
            None => bail!("no files are given; name at least one"),
        },
    };
    let wanted = ProfileSpec { rows: args.rows, ..ProfileSpec::default() };
    let first = profile(&config, &files, &wanted, &workers)?;
    let second = match second.is_empty() {
        true => None,
        false => {
            // The other set may be in another file format (its ending tells which), but its columns
            // have the same meaning.
            let config = match args.job {
                Some(_) => config,
                None => guess_config(&second[0], &workers)?,
            };
            Some(profile(&config, &second, &wanted, &workers)?)
        }
    };
    let report = Report {
        rows: first.rows,
        complete: first.complete,
        columns: first.columns.iter().map(|c| describe_column(c, args.top)).collect(),
        against: second.as_ref().map(|second| compare(&first, second)),
    };
    print_result(args.json, &report, show)
}

fn expand(files: &[String]) -> Result<Vec<PathBuf>> {
    match files.is_empty() {
        true => Ok(Vec::new()),
        false => Ok(DataConfig::default().files(&Paths(files.to_vec()))?),
    }
}

fn describe_column(column: &ColumnProfile, top: usize) -> Column {
    let (distinct, distinct_is_exact) = column.distinct();
    Column {
        name: column.name.clone(),
        kind: column.kind().to_owned(),
        data_type: column.data_type.clone(),
        missing_share: column.missing_share(),
        distinct,
        distinct_is_exact,
        coverage: distinct as f64 / column.present().max(1) as f64,
        top: column.top(top),
        count_error: column.count_error(),
        numbers: column.numbers(),
    }
}

fn compare(first: &Profile, second: &Profile) -> Against {
    let missing_in = |a: &Profile, b: &Profile| {
        let names = a.columns.iter().filter(|c| b.column(&c.name).is_none());
        names.map(|c| c.name.clone()).collect()
    };
    let both = first.columns.iter().filter_map(|a| Some((a, second.column(&a.name)?)));
    Against {
        rows: second.rows,
        columns: both.map(|(a, b)| Drifted { name: a.name.clone(), drift: drift(a, b) }).collect(),
        only_in_first: missing_in(first, second),
        only_in_second: missing_in(second, first),
    }
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(report: &Report) {
    let part = if report.complete { "" } else { ", the first ones" };
    println!("{} rows{part}\n", grouped(report.rows));
    let row = |column: &Column| {
        let distinct = match column.distinct_is_exact {
            true => grouped(column.distinct),
            false => format!("~{}", grouped(column.distinct)),
        };
        let number = |f: fn(&Numbers) -> f64| {
            column.numbers.as_ref().map_or_else(String::new, |n| format_number(f(n)))
        };
        let top: Vec<String> =
            column.top.iter().map(|c| format!("{} ({})", c.value, grouped(c.count))).collect();
        vec![
            column.name.clone(),
            column.kind.clone(),
            percent(column.missing_share),
            distinct,
            number(|n| n.min),
            number(|n| n.p50),
            number(|n| n.max),
            top.join(" "),
        ]
    };
    let heads = ["column", "kind", "missing", "distinct", "min", "median", "max", "most frequent"];
    print!("{}", text::table(&heads, report.columns.iter().map(row), 2));
    if report.columns.iter().any(|c| !c.distinct_is_exact) {
        println!("~ estimated by HyperLogLog (within 2 %); counts may then be a little too low");
    }
    if let Some(against) = &report.against {
        show_drift(against);
    }
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show_drift(against: &Against) {
    println!("\nagainst {} rows of the second set\n", grouped(against.rows));
    let heads = ["column", "psi of numbers", "psi of values", "unseen", "missing", ""];
    let row = |Drifted { name, drift }: &Drifted| {
        let psi = drift.numeric.into_iter().chain(drift.values).fold(0.0, f64::max);
        let verdict = match psi {
            p if p >= CHANGED => "changed",
            p if p >= WORTH_A_LOOK => "worth a look",
            _ => "",
        };
        vec![
            name.clone(),
            figure(drift.numeric, 4),
            figure(drift.values, 4),
            drift.unseen.map_or_else(|| "?".to_owned(), percent),
            format!("{:+.1} %", 100.0 * drift.missing),
            verdict.to_owned(),
        ]
    };
    print!("{}", text::table(&heads, against.columns.iter().map(row), 1));
    println!(
        "psi: population stability index, by deciles of the first set and by its frequent values; \
         {WORTH_A_LOOK} is worth a look, {CHANGED} a change\nunseen: share of the second set's values \
         that the first does not have"
    );
    for (names, which) in [(&against.only_in_first, "first"), (&against.only_in_second, "second")] {
        if !names.is_empty() {
            println!("only in the {which} set: {}", names.join(", "));
        }
    }
}

/// Formats a number with about four digits.
fn format_number(x: f64) -> String {
    match x.abs() {
        a if a == 0.0 || (1e-3..1e7).contains(&a) => {
            let digits = if x.fract() == 0.0 { 0 } else { 3 };
            format!("{x:.digits$}")
        }
        _ => format!("{x:.3e}"),
    }
}
