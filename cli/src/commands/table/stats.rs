//! `zillion table stats`: summarises the contents of a checkpoint's tables.

use anyhow::Result;
use zillion_console::print_result;
use zillion_embedding::{Bin, TableSurvey};

use super::source::{Report, read_tables};
use crate::args::TablesArgs;
use crate::text::{self, bytes, grouped};

pub(crate) fn run(args: &TablesArgs) -> Result<()> {
    let report = read_tables(args, |view, workers, step| view.survey(workers, step))?;
    print_result(args.json, &report, show)
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(report: &Report<TableSurvey>) {
    println!("{} (step {})\n", report.checkpoint.display(), report.step);
    let heads = ["table", "rows", "waiting", "weights", "state", "index", "counts", "on disk"];
    let row = |t: &TableSurvey| {
        let parts =
            [t.payload_bytes, t.state_bytes, t.index_bytes, t.candidate_bytes, t.file_bytes];
        let cells = [t.table.clone(), grouped(t.rows), grouped(t.candidates)];
        cells.into_iter().chain(parts.map(bytes)).collect()
    };
    println!("{}", text::table(&heads, report.tables.iter().map(row), 1));
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
    let range = |bin: &Bin| match bin.from == bin.to {
        true => grouped(bin.from),
        false => format!("{} to {}", grouped(bin.from), grouped(bin.to)),
    };
    text::bar_chart("    ", bins.iter().map(|bin| (range(bin), bin.rows)))
}
