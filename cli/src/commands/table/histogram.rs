//! `zillion table histogram`: shows the distribution of one measure over the rows of a checkpoint's
//! tables.

use std::path::Path;

use anyhow::Result;
use zillion_console::{durable_files, print_result};
use zillion_embedding::{Histogram, Measure, Range};

use super::source::{Report, read_tables};
use crate::args::{HistogramOf, TableHistogramArgs};
use crate::text::{self, grouped};
use zillion_console::svg::{self, Axis, Panel, Scale, Shapes, Unit};

/// The number of panels in one row of a plot.
const PANELS: usize = 3;

pub(crate) fn run(args: &TableHistogramArgs) -> Result<()> {
    let of = match args.of {
        HistogramOf::Count => Measure::Count,
        HistogramOf::LastStep => Measure::LastStep,
        HistogramOf::Norm => Measure::Norm,
        HistogramOf::Age => Measure::Age,
    };
    let report = read_tables(&args.source, |view, workers, step| {
        view.histogram(workers, of, args.bins.into(), step)
    })?;
    if let Some(path) = &args.svg {
        write_plot(path, &report, of)?;
    }
    print_result(args.source.json, &report, |report| show(report, of))
}

/// Returns the name of a measure for an axis or a heading.
fn measure_name(of: Measure) -> &'static str {
    match of {
        Measure::Count => "pushes a row",
        Measure::LastStep => "step of the last push",
        Measure::Norm => "L2 norm of the row",
        Measure::Age => "steps since the last push",
    }
}

/// Formats the bound of a histogram bin.
fn format_bound(value: f64, of: Measure) -> String {
    match of {
        Measure::Norm => format!("{value:.4}"),
        Measure::Count | Measure::LastStep | Measure::Age => grouped(value as u64),
    }
}

fn format_range(bin: &Range, of: Measure) -> String {
    match bin.from == bin.to {
        true => format_bound(bin.from, of),
        false => format!("{} to {}", format_bound(bin.from, of), format_bound(bin.to, of)),
    }
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(report: &Report<Histogram>, of: Measure) {
    println!("{} (step {}): {}\n", report.checkpoint.display(), report.step, measure_name(of));
    for table in &report.tables {
        println!("table {}, {} rows", table.table, grouped(table.rows));
        let bins = table.bins.iter().map(|bin| (format_range(bin, of), bin.rows));
        println!("{}", text::bar_chart("  ", bins));
    }
}

fn write_plot(path: &Path, report: &Report<Histogram>, of: Measure) -> Result<()> {
    let bar = |bin: &Range| (format_bound(bin.from, of), bin.rows as f64);
    let panel = |table: &Histogram| Panel {
        title: format!("{} ({} rows)", table.table, grouped(table.rows)),
        x: Axis::new(measure_name(of), Scale::Linear, Unit::Number),
        y: Axis::new("rows", Scale::Linear, Unit::Number),
        shapes: Shapes::Bars(table.bins.iter().map(bar).collect()),
    };
    let panels: Vec<Panel> = report.tables.iter().map(panel).collect();
    let rows: Vec<(String, Vec<Panel>)> =
        panels.chunks(PANELS).map(|panels| (String::new(), panels.to_vec())).collect();
    let title = format!("{} at step {}", measure_name(of), report.step);
    durable_files()?.write_bytes(path, svg::page(&title, &rows).as_bytes())?;
    Ok(())
}
