//! The forecasts for tables, as tables of text.

use zillion_embedding::capacity::{AdmissionPoint, CachePoint, EvictionPoint};
use zillion_trainer::PlanReport;

use super::{Planned, advice};
use crate::text::{self, bytes, grouped, percent};

/// The number of points of the growth that are shown in addition to the last point.
const GROWTH: usize = 4;

#[expect(clippy::print_stdout, reason = "the result of a command")]
pub(super) fn show(title: &str, report: &PlanReport, tables: &[Planned<'_>]) {
    println!("{title}, in steps of {} rows", grouped(report.batch_size));
    if report.rejected > 0 {
        println!("{} bad rows were left out", grouped(report.rejected));
    }
    for table in tables {
        println!("\n{}", format_table(table));
    }
    if !report.buckets.is_empty() {
        println!(
            "not planned, because their rows are the buckets of numbers: {}",
            report.buckets.join(", ")
        );
    }
    println!(
        "* the present setting of the job. found: values whose key had a row before their step; late: values that came \
         back after their row was evicted (rows are evicted with a delay of at most the limit in steps, and at most \
         4,096 steps); LRU, frequent: lookups (the unique keys of a step) that an LRU cache answers, or a cache of the \
         keys that are looked up most often"
    );
}

fn format_table(table: &Planned<'_>) -> String {
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
            "  one key in {} was followed, {} keys in all: the numbers of keys have an error of at most {} (in 95 of \
             100 cases)\n",
            grouped(usage.one_in),
            grouped(usage.followed),
            percent(usage.keys_error)
        ));
    }
    if !table.plan.undivided.is_empty() {
        text.push_str(&format!(
            "  the quantile buckets of {} were counted as two buckets each\n",
            table.plan.undivided.join(", ")
        ));
    }
    text += &growth(table);
    if !table.spec.dense {
        text += &admission(table);
        text += &eviction(table);
    }
    text += &cache(table);
    text += &sizes(table);
    for sentence in advice::advise(table) {
        text.push_str(&format!("  {sentence}\n"));
    }
    text
}

/// Formats a section with its column heads, and with an empty line at its end. Without lines, the
/// result is empty.
fn section(heads: &[&str], lines: impl Iterator<Item = Vec<String>>) -> String {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return String::new();
    }
    let table = text::table(heads, lines, 0);
    table.lines().map(|line| format!("  {line}\n")).chain(["\n".to_owned()]).collect()
}

/// Formats a share with its maximum error.
fn within(share: f64, error: f64) -> String {
    match error {
        0.0 => percent(share),
        error => format!("{} ± {:.1}", percent(share), 100.0 * error),
    }
}

fn star(is_own: bool) -> String {
    if is_own { "*".to_owned() } else { String::new() }
}

/// Lists the number of keys and their memory at some points of the sample. If the sample gives a
/// law of growth, also lists them for more rows than the sample has.
fn growth(table: &Planned<'_>) -> String {
    let points = &table.plan.usage.growth;
    let every = points.len().div_ceil(GROWTH).max(1);
    let is_shown = |at: usize| (at + 1).is_multiple_of(every) || at + 1 == points.len();
    let line = |rows, keys, memory, source: &str| {
        vec![grouped(rows), grouped(keys), bytes(memory), source.to_owned()]
    };
    let seen = points.iter().enumerate().filter(|(at, _)| is_shown(*at));
    let seen = seen.map(|(_, p)| line(p.rows, p.keys, table.bytes(p.keys), "seen"));
    let more = table.plan.more.iter().map(|p| line(p.rows, p.keys, p.bytes, "by Heaps' law"));
    section(&["rows of data", "keys", "in memory", ""], seen.chain(more))
}

fn admission(table: &Planned<'_>) -> String {
    let usage = &table.plan.usage;
    let line = |point: &AdmissionPoint| {
        vec![
            grouped(point.at_least.into()),
            grouped(point.rows),
            percent(point.rows as f64 / usage.keys.max(1) as f64),
            within(point.found, point.found_error),
            bytes(table.admitted_bytes(point)),
            star(point.at_least == table.own_threshold()),
        ]
    };
    let heads = ["admission", "rows", "of all", "found", "in memory", ""];
    section(&heads, usage.admission.iter().map(line))
}

fn eviction(table: &Planned<'_>) -> String {
    let line = |point: &EvictionPoint| {
        vec![
            grouped(point.unseen),
            grouped(point.rows_peak),
            grouped(point.rows_end),
            within(point.lost, point.lost_error),
            bytes(table.bytes(point.rows_peak)),
            star(Some(point.unseen) == table.own_limit()),
        ]
    };
    let heads = ["unseen steps", "rows at peak", "in the end", "late", "in memory", ""];
    section(&heads, table.plan.usage.eviction.iter().map(line))
}

fn cache(table: &Planned<'_>) -> String {
    let usage = &table.plan.usage;
    let line = |point: &CachePoint| {
        let rows = point.rows.min(usage.keys);
        vec![
            grouped(rows),
            percent(rows as f64 / usage.keys.max(1) as f64),
            within(point.lru, point.error),
            within(point.ideal, point.error),
            bytes(table.bytes(rows)),
        ]
    };
    let heads = ["cached rows", "of all", "LRU", "frequent", "in memory"];
    section(&heads, usage.cache.iter().map(line))
}

fn sizes(table: &Planned<'_>) -> String {
    let lines = table.plan.sizes.iter().map(|size| {
        let dim = size.dim.map_or_else(|| "-".to_owned(), |dim| dim.to_string());
        vec![dim, bytes(size.f32), bytes(size.half), star(size.is_own)]
    });
    section(&["dim", "f32", "f16, bf16", ""], lines)
}
