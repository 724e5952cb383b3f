//! `zillion table stats`: summarizes the contents of a checkpoint's tables.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use zillion_console::{compute_pool, print_json};
use zillion_embedding::{Bin, TableSurvey};
use zillion_rows::TableSpec;
use zillion_trainer::Checkpoint;

use super::named::find_table;
use crate::args::TableStatsArgs;
use crate::text::{self, bytes, grouped, percent};

/// The width of the longest bar, in characters.
const BAR: f64 = 40.0;

#[derive(Serialize)]
struct Report {
    checkpoint: PathBuf,
    step: u64,
    tables: Vec<TableSurvey>,
}

pub(crate) fn run(args: &TableStatsArgs) -> Result<()> {
    let checkpoint = Checkpoint::find(&args.checkpoint)?;
    let job = checkpoint.job()?;
    let specs: Vec<&TableSpec> = match args.table.is_empty() {
        true => job.tables.iter().collect(),
        false => args.table.iter().map(|name| find_table(&job, name)).collect::<Result<_>>()?,
    };
    let workers = compute_pool(args.threads)?;
    let step = checkpoint.manifest.step;
    let mut tables = Vec::with_capacity(specs.len());
    for spec in specs {
        // One table is open at a time: its memory mapping is released before the next table is
        // opened.
        tables.push(checkpoint.table(spec.clone(), &workers)?.survey(&workers, step));
    }
    let report = Report { checkpoint: checkpoint.path().to_owned(), step, tables };
    match args.json {
        true => print_json(&report)?,
        false => show(&report),
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(report: &Report) {
    println!("{} (step {})\n", report.checkpoint.display(), report.step);
    let heads = ["table", "rows", "waiting", "weights", "state", "index", "counts", "on disk"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for t in &report.tables {
        rows.push(vec![
            t.table.clone(),
            grouped(t.rows),
            grouped(t.candidates),
            bytes(t.payload_bytes),
            bytes(t.state_bytes),
            bytes(t.index_bytes),
            bytes(t.candidate_bytes),
            bytes(t.file_bytes),
        ]);
    }
    println!("{}", text::table(&rows, 1));
    for t in &report.tables {
        println!("table {}", t.table);
        if t.narrow_rows > 0 {
            let full = grouped(t.rows - t.narrow_rows);
            println!("  widths {full} full rows, {} narrow ones", grouped(t.narrow_rows));
        }
        if let Some(n) = &t.norms {
            println!(
                "  norms  min {:.4}  p10 {:.4}  p50 {:.4}  p90 {:.4}  p99 {:.4}  max {:.4}  mean {:.4}",
                n.min, n.p10, n.p50, n.p90, n.p99, n.max, n.mean
            );
        }
        let s = &t.slots;
        println!(
            "  slots  {} of 4,096 with rows; {} to {} rows, {:.1} on average",
            grouped(s.used),
            grouped(s.min),
            grouped(s.max),
            s.mean
        );
        for (what, bins) in [
            ("pushes a row", &t.counts),
            ("steps since the last push", &t.ages),
            ("occurrences of waiting keys", &t.waiting),
        ] {
            if !bins.is_empty() {
                print!("  {what}\n{}", histogram(bins));
            }
        }
        println!();
    }
}

fn histogram(bins: &[Bin]) -> String {
    let all: u64 = bins.iter().map(|bin| bin.rows).sum();
    let most = bins.iter().map(|bin| bin.rows).max().unwrap_or(1) as f64;
    let line = |bin: &Bin| {
        let range = match bin.from == bin.to {
            true => grouped(bin.from),
            false => format!("{} to {}", grouped(bin.from), grouped(bin.to)),
        };
        let bar = "#".repeat((bin.rows as f64 / most * BAR).ceil() as usize);
        let share = percent(bin.rows as f64 / all as f64);
        vec![format!("    {range}"), grouped(bin.rows), share, bar]
    };
    text::table(&bins.iter().map(line).collect::<Vec<_>>(), 0)
}
