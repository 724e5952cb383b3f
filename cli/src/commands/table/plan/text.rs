//! Curves of tables as tables of text.

use zillion_trainer::PlanReport;

use super::{Planned, advice};
use crate::text::{self, bytes, grouped, percent};

/// The number of points of the growth that are shown besides the end.
const GROWTH: usize = 4;

#[expect(clippy::print_stdout, reason = "the result of a command")]
pub(super) fn show(title: &str, report: &PlanReport, tables: &[Planned<'_>]) {
    println!("{title}, in steps of {} rows", grouped(report.batch_size));
    if report.rejected > 0 {
        println!("{} bad rows were left out", grouped(report.rejected));
    }
    for table in tables {
        println!("\n{}", of_table(table));
    }
    if !report.buckets.is_empty() {
        println!(
            "not planned, because their rows are the buckets of numbers: {}",
            report.buckets.join(", ")
        );
    }
    println!(
        "* what the job has now. found: values whose key had a row before their step; late: values that came back when \
         their row was gone; rows go up to as many steps late as the limit says, 4,096 at most; lookups: different \
         keys of a step, that a cache answers: LRU, or one that holds what is looked up most often of all"
    );
}

fn of_table(table: &Planned<'_>) -> String {
    let usage = &table.plan.usage;
    let mut text = format!(
        "table {}: {} keys in {} values and {} lookups, {} ({} bytes a row)\n",
        table.plan.table,
        grouped(usage.keys),
        grouped(usage.values),
        grouped(usage.lookups),
        bytes(table.bytes(usage.keys)),
        table.spec.bytes_per_row()
    );
    if usage.one_in > 1 {
        text.push_str(&format!(
            "  one key in {} was followed, {} in the end: numbers of keys within {} (95 of 100 times)\n",
            grouped(usage.one_in),
            grouped(usage.followed),
            percent(usage.keys_error)
        ));
    }
    if !table.plan.undivided.is_empty() {
        text.push_str(&format!(
            "  the quantile buckets of {} were taken as two\n",
            table.plan.undivided.join(", ")
        ));
    }
    for lines in [growth(table), admission(table), eviction(table), cache(table), sizes(table)] {
        // A section that has only a heading is left out.
        if lines.len() > 1 {
            text.push_str(&indented(&text::table(&lines, 0)));
            text.push('\n');
        }
    }
    for sentence in advice::of(table) {
        text.push_str(&format!("  {sentence}\n"));
    }
    text
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

fn head(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|&cell| cell.to_owned()).collect()
}

/// Formats a share with its possible error.
fn within(share: f64, error: f64) -> String {
    match error {
        0.0 => percent(share),
        error => format!("{} ± {:.1}", percent(share), 100.0 * error),
    }
}

fn star(is_own: bool) -> String {
    if is_own { "*".to_owned() } else { String::new() }
}

/// Lists the number of rows at the end of the sample and at multiples of its size.
fn growth(table: &Planned<'_>) -> Vec<Vec<String>> {
    let usage = &table.plan.usage;
    let mut lines = vec![head(&["rows of data", "keys", "in memory", ""])];
    let points = &usage.growth;
    let every = points.len().div_ceil(GROWTH).max(1);
    let shown = points.iter().enumerate();
    let shown = shown.filter(|(at, _)| (at + 1) % every == 0 || at + 1 == points.len());
    for (_, point) in shown {
        lines.push(vec![
            grouped(point.rows),
            grouped(point.keys),
            bytes(table.bytes(point.keys)),
            "seen".to_owned(),
        ]);
    }
    for more in &table.plan.more {
        lines.push(vec![
            grouped(more.rows),
            grouped(more.keys),
            bytes(more.bytes),
            "by Heaps' law".to_owned(),
        ]);
    }
    lines
}

fn admission(table: &Planned<'_>) -> Vec<Vec<String>> {
    if table.spec.dense {
        return Vec::new();
    }
    let usage = &table.plan.usage;
    let mut lines = vec![head(&["admission", "rows", "of all", "found", "in memory", ""])];
    for point in &usage.admission {
        lines.push(vec![
            grouped(point.at_least.into()),
            grouped(point.rows),
            percent(point.rows as f64 / usage.keys.max(1) as f64),
            within(point.found, point.found_error),
            bytes(table.admitted_bytes(point)),
            star(point.at_least == table.own_threshold()),
        ]);
    }
    lines
}

fn eviction(table: &Planned<'_>) -> Vec<Vec<String>> {
    if table.spec.dense {
        return Vec::new();
    }
    let usage = &table.plan.usage;
    let heads = ["unseen steps", "rows at peak", "in the end", "late", "in memory", ""];
    let mut lines = vec![head(&heads)];
    for point in &usage.eviction {
        lines.push(vec![
            grouped(point.unseen),
            grouped(point.rows_peak),
            grouped(point.rows_end),
            within(point.lost, point.lost_error),
            bytes(table.bytes(point.rows_peak)),
            star(Some(point.unseen) == table.own_limit()),
        ]);
    }
    lines
}

fn cache(table: &Planned<'_>) -> Vec<Vec<String>> {
    let usage = &table.plan.usage;
    let mut lines = vec![head(&["cached rows", "of all", "LRU", "frequent", "in memory"])];
    for point in &usage.cache {
        let rows = point.rows.min(usage.keys);
        lines.push(vec![
            grouped(rows),
            percent(rows as f64 / usage.keys.max(1) as f64),
            within(point.lru, point.error),
            within(point.ideal, point.error),
            bytes(table.bytes(rows)),
        ]);
    }
    lines
}

fn sizes(table: &Planned<'_>) -> Vec<Vec<String>> {
    let mut lines = vec![head(&["dim", "f32", "f16, bf16", ""])];
    for size in &table.plan.sizes {
        lines.push(vec![
            size.dim.map_or_else(|| "-".to_owned(), |dim| dim.to_string()),
            bytes(size.f32),
            bytes(size.half),
            star(size.is_own),
        ]);
    }
    lines
}
