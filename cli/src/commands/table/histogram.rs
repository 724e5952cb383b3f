//! `zillion table histogram`: shows how one measure is distributed over the rows of a checkpoint's
//! tables.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use zillion_console::{compute_pool, durable_files, print_json};
use zillion_embedding::{Histogram, Measure, Range};
use zillion_rows::TableSpec;
use zillion_trainer::Checkpoint;

use super::named::find_table;
use crate::args::{HistogramOf, TableHistogramArgs};
use crate::svg::{self, Axis, Panel, Scale, Shapes, Unit};
use crate::text::{self, grouped, percent};

/// The width of the longest bar, in characters.
const BAR: f64 = 40.0;
/// The number of panels side by side in a plot.
const PANELS: usize = 3;

#[derive(Serialize)]
struct Report {
    checkpoint: PathBuf,
    step: u64,
    tables: Vec<Histogram>,
}

pub(crate) fn run(args: &TableHistogramArgs) -> Result<()> {
    let checkpoint = Checkpoint::find(&args.checkpoint)?;
    let job = checkpoint.job()?;
    let specs: Vec<&TableSpec> = match args.table.is_empty() {
        true => job.tables.iter().collect(),
        false => args.table.iter().map(|name| find_table(&job, name)).collect::<Result<_>>()?,
    };
    let workers = compute_pool(args.threads)?;
    let step = checkpoint.manifest.step;
    let of = match args.of {
        HistogramOf::Count => Measure::Count,
        HistogramOf::LastStep => Measure::LastStep,
        HistogramOf::Norm => Measure::Norm,
        HistogramOf::Age => Measure::Age,
    };
    let mut tables = Vec::with_capacity(specs.len());
    for spec in specs {
        // One table is open at a time: its memory mapping is released before the next table is
        // opened.
        let view = checkpoint.table(spec.clone(), &workers)?;
        tables.push(view.histogram(&workers, of, args.bins.into(), step));
    }
    let report = Report { checkpoint: checkpoint.path().to_owned(), step, tables };
    if let Some(path) = &args.svg {
        write_plot(path, &report, of)?;
    }
    match args.json {
        true => print_json(&report)?,
        false => show(&report, of),
    }
    Ok(())
}

/// Names the measure that the rows of a table are counted by.
fn words(of: Measure) -> &'static str {
    match of {
        Measure::Count => "pushes a row",
        Measure::LastStep => "step of the last push",
        Measure::Norm => "L2 norm of the row",
        Measure::Age => "steps since the last push",
    }
}

/// Formats a bound of a bin.
fn bound(value: f64, of: Measure) -> String {
    match of {
        Measure::Norm => format!("{value:.4}"),
        Measure::Count | Measure::LastStep | Measure::Age => grouped(value as u64),
    }
}

fn range(bin: &Range, of: Measure) -> String {
    match bin.from == bin.to {
        true => bound(bin.from, of),
        false => format!("{} to {}", bound(bin.from, of), bound(bin.to, of)),
    }
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(report: &Report, of: Measure) {
    println!("{} (step {}): {}\n", report.checkpoint.display(), report.step, words(of));
    for table in &report.tables {
        println!("table {}, {} rows", table.table, grouped(table.rows));
        let most = table.bins.iter().map(|bin| bin.rows).max().unwrap_or(1).max(1) as f64;
        let line = |bin: &Range| {
            let bar = "#".repeat((bin.rows as f64 / most * BAR).ceil() as usize);
            let share = percent(bin.rows as f64 / table.rows.max(1) as f64);
            vec![format!("  {}", range(bin, of)), grouped(bin.rows), share, bar]
        };
        println!("{}", text::table(&table.bins.iter().map(line).collect::<Vec<_>>(), 0));
    }
}

fn write_plot(path: &Path, report: &Report, of: Measure) -> Result<()> {
    let panel = |table: &Histogram| Panel {
        title: format!("{} ({} rows)", table.table, grouped(table.rows)),
        x: Axis::new(words(of), Scale::Linear, Unit::Number),
        y: Axis::new("rows", Scale::Linear, Unit::Number),
        shapes: Shapes::Bars(
            table.bins.iter().map(|bin| (bound(bin.from, of), bin.rows as f64)).collect(),
        ),
    };
    let panels: Vec<Panel> = report.tables.iter().map(panel).collect();
    let rows: Vec<(String, Vec<Panel>)> =
        panels.chunks(PANELS).map(|panels| (String::new(), panels.to_vec())).collect();
    let title = format!("{} at step {}", words(of), report.step);
    durable_files()?.write_bytes(path, svg::page(&title, &rows).as_bytes())?;
    Ok(())
}
