//! `zillion table top`: lists the first rows of a table in a chosen order, or shows one row.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::Serialize;
use zillion_console::print_result;
use zillion_embedding::{Order, RowView, TableView, Waiting};

use super::source::OpenTable;
use crate::args::{TableTopArgs, TopBy};
use crate::ids::hex;
use crate::text::{self, grouped};

/// The number of weights that the list shows for each row.
const SHOWN: usize = 4;

#[derive(Serialize)]
struct Report {
    checkpoint: PathBuf,
    step: u64,
    table: String,
    rows: Vec<Row>,
    /// The name of the unit of the last pushes.
    #[serde(skip)]
    unit: &'static str,
}

#[derive(Serialize)]
struct Row {
    /// The key as `0x` and 16 hexadecimal digits.
    key: String,
    /// The id in the data; absent if it cannot be computed from the key.
    id: Option<String>,
    /// The number of pushes of the row.
    count: u32,
    last_step: u32,
    norm: f32,
    /// The first weights of the row.
    first: Vec<f32>,
}

#[derive(Serialize)]
struct One {
    checkpoint: PathBuf,
    step: u64,
    table: String,
    key: String,
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<WholeRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<Waiting>,
    /// The name of the unit of the last push, and the present time in it.
    #[serde(skip)]
    present: (&'static str, u64),
}

#[derive(Serialize)]
struct WholeRow {
    count: u32,
    last_step: u32,
    /// The decayed number of shows at the last push; absent if the table keeps no such statistics.
    #[serde(skip_serializing_if = "Option::is_none")]
    shows: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clicks: Option<f32>,
    norm: f32,
    /// Whether the row does not have all of its floats yet. The missing floats are shown as zeros.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_narrow: bool,
    segments: Vec<Segment>,
    /// The optimizer state of all segments, one segment after the other.
    state: Vec<f32>,
}

#[derive(Serialize)]
struct Segment {
    name: String,
    weights: Vec<f32>,
}

pub(crate) fn run(args: &TableTopArgs) -> Result<()> {
    let mut table = OpenTable::open(&args.source)?;
    if let Some(id) = &args.key {
        return show_id(args, &table, id);
    }
    let order = match args.by {
        TopBy::Count => Order::Count,
        TopBy::Norm => Order::Norm,
        TopBy::Recent => Order::Recent,
    };
    let top = table.view.top(&table.workers, order, args.n);
    if !args.data.is_empty() {
        let keys = top.iter().map(|row| row.key);
        table.names.find_texts(&table.job, &args.data, keys, &table.workers)?;
    }
    let row = |row: &RowView<'_>| Row {
        key: hex(row.key),
        id: table.names.name(row.key),
        count: row.count,
        last_step: row.last_step,
        norm: row.norm(),
        first: row.weights.iter().take(SHOWN).copied().collect(),
    };
    let report = Report {
        checkpoint: table.checkpoint.path().to_owned(),
        step: table.checkpoint.manifest.step,
        table: args.source.table.clone(),
        rows: top.iter().map(row).collect(),
        unit: table.present().0,
    };
    print_result(args.source.json, &report, show)
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(report: &Report) {
    println!("{} (step {}), table {}\n", report.checkpoint.display(), report.step, report.table);
    let last = format!("last {}", report.unit);
    let heads = ["key", "id", "pushes", &last, "norm", "first weights"];
    let line = |row: &Row| {
        vec![
            row.key.clone(),
            row.id.clone().unwrap_or_default(),
            grouped(row.count.into()),
            grouped(row.last_step.into()),
            format!("{:.4}", row.norm),
            numbers(&row.first),
        ]
    };
    print!("{}", text::table(&heads, report.rows.iter().map(line), 2));
}

fn numbers(values: &[f32]) -> String {
    values.iter().map(|x| format!("{x:.4}")).collect::<Vec<_>>().join(" ")
}

/// Finds one id and shows its row. If the id waits for a row, shows its count.
fn show_id(args: &TableTopArgs, table: &OpenTable, id: &str) -> Result<()> {
    let key = table.find_key(id)?;
    let one = One {
        checkpoint: table.checkpoint.path().to_owned(),
        step: table.checkpoint.manifest.step,
        table: args.source.table.clone(),
        key: hex(key),
        id: table.names.name(key),
        row: table.view.get(key).map(|row| describe_row(&table.view, &row)),
        waiting: table.view.waiting(key),
        present: table.present(),
    };
    if one.row.is_none() && one.waiting.is_none() {
        bail!(
            "table {} has no row of {id} (key {}) at step {}; find the reason with `zillion table \
             explain`",
            one.table,
            one.key,
            one.step
        );
    }
    print_result(args.source.json, &one, show_one)
}

fn describe_row(view: &TableView, row: &RowView<'_>) -> WholeRow {
    let segments = view.layout().segments.iter().map(|segment| Segment {
        name: segment.name.clone(),
        weights: row.weights[segment.offset..segment.offset + segment.dim].to_vec(),
    });
    WholeRow {
        count: row.count,
        last_step: row.last_step,
        shows: row.used.map(|used| used.shows),
        clicks: row.used.map(|used| used.clicks),
        norm: row.norm(),
        is_narrow: row.is_narrow,
        segments: segments.collect(),
        state: row.state.to_vec(),
    }
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show_one(one: &One) {
    let id = one.id.as_ref().map_or_else(String::new, |id| format!("  {id}"));
    let (unit, now) = one.present;
    println!("table {}, key {}{id}", one.table, one.key);
    if let Some(row) = &one.row {
        println!(
            "{} pushes, the last in {unit} {} of {}; norm {:.4}",
            grouped(row.count.into()),
            grouped(row.last_step.into()),
            grouped(now),
            row.norm
        );
        if row.is_narrow {
            println!("the row is narrow: the floats that it does not have yet are zeros below");
        }
        if let (Some(shows), Some(clicks)) = (row.shows, row.clicks) {
            println!("{shows:.3} shows, {clicks:.3} clicks, decayed until the last push");
        }
        for segment in &row.segments {
            println!("{}: {}", segment.name, numbers(&segment.weights));
        }
        println!("state: {}", numbers(&row.state));
    }
    if let Some(waiting) = &one.waiting {
        println!(
            "it waits for its row: {} occurrences so far, the last in {unit} {} of {}",
            grouped(waiting.count.into()),
            grouped(waiting.last_step.into()),
            grouped(now)
        );
    }
}
