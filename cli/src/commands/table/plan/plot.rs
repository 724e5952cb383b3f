//! The plots of the forecasts: one row of panels for each table.

use super::Planned;
use crate::text::{bytes, grouped};
use zillion_console::svg::{Axis, Panel, Scale, Shapes, Unit};

/// Makes a row of panels for each table. The heading of the row describes the table.
pub(super) fn rows(tables: &[Planned<'_>]) -> Vec<(String, Vec<Panel>)> {
    let row = |table: &Planned<'_>| {
        let keys = table.plan.usage.keys;
        let heading =
            format!("{}: {} keys, {}", table.plan.table, grouped(keys), bytes(table.bytes(keys)));
        let mut panels = vec![growth(table)];
        if !table.spec.dense {
            panels.extend([admission(table), eviction(table)]);
        }
        panels.extend([cache(table), sizes(table)]);
        (heading, panels)
    };
    tables.iter().map(row).collect()
}

/// A line with its name and its points.
type Line = (String, Vec<(f64, f64)>);

fn line(name: &str, points: impl Iterator<Item = (f64, f64)>) -> Line {
    (name.to_owned(), points.collect())
}

fn share(label: &str) -> Axis {
    Axis::new(label, Scale::Linear, Unit::Percent)
}

/// Makes a panel of lines. The horizontal axis is a logarithmic scale of numbers.
fn panel(title: &str, x: &str, y: Axis, lines: Vec<Line>) -> Panel {
    let x = Axis::new(x, Scale::Log, Unit::Number);
    Panel { title: title.to_owned(), x, y, shapes: Shapes::Lines(lines) }
}

fn growth(table: &Planned<'_>) -> Panel {
    let plan = table.plan;
    let seen = plan.usage.growth.iter().map(|p| (p.rows as f64, p.keys as f64));
    let mut lines = vec![line("seen", seen)];
    if !plan.more.is_empty() {
        let end = plan.usage.growth.last().into_iter().map(|p| (p.rows as f64, p.keys as f64));
        let more = plan.more.iter().map(|p| (p.rows as f64, p.keys as f64));
        lines.push(line("by Heaps' law", end.chain(more)));
    }
    let y = Axis::new("keys", Scale::Log, Unit::Number);
    panel("Growth", "rows of data", y, lines)
}

fn admission(table: &Planned<'_>) -> Panel {
    let usage = &table.plan.usage;
    let keys = usage.keys.max(1) as f64;
    let rows = usage.admission.iter().map(|p| (f64::from(p.at_least), p.rows as f64 / keys));
    let found = usage.admission.iter().map(|p| (f64::from(p.at_least), p.found));
    let lines = vec![line("rows", rows), line("values with a row", found)];
    panel("Admission", "occurrences before a row", share("share"), lines)
}

fn eviction(table: &Planned<'_>) -> Panel {
    let usage = &table.plan.usage;
    let keys = usage.keys.max(1) as f64;
    let rows = usage.eviction.iter().map(|p| (p.unseen as f64, p.rows_peak as f64 / keys));
    let late = usage.eviction.iter().map(|p| (p.unseen as f64, p.lost));
    let lines = vec![line("rows at peak", rows), line("values too late", late)];
    panel("Eviction", "unseen steps before a row goes", share("share"), lines)
}

fn cache(table: &Planned<'_>) -> Panel {
    let points = &table.plan.usage.cache;
    let lru = points.iter().map(|p| (p.rows as f64, p.lru));
    let ideal = points.iter().map(|p| (p.rows as f64, p.ideal));
    let lines = vec![line("LRU", lru), line("most frequent", ideal)];
    panel("Cache", "rows held", share("lookups answered"), lines)
}

fn sizes(table: &Planned<'_>) -> Panel {
    let wide = table.plan.sizes.iter().filter_map(|s| Some((s.dim? as f64, s.f32 as f64)));
    let half = table.plan.sizes.iter().filter_map(|s| Some((s.dim? as f64, s.half as f64)));
    let y = Axis::new("bytes of all keys", Scale::Linear, Unit::Bytes);
    panel("Memory", "dim", y, vec![line("f32", wide), line("f16, bf16", half)])
}
