//! The page about runs as HTML.

use std::fmt::Write as _;

use serde_json::Value;
use zillion_console::svg::{self, escape};

use super::plots::{Described, draw_calibration, draw_curves};
use crate::runs::{
    self, Better, ShownRun, figures_of_report, flatten_settings, format_value, list_tables,
};
use crate::text::{bytes, grouped};

const STYLE: &str = include_str!("style.css");
/// The number of colours of runs, which is that of the plots.
const COLOURS: usize = 6;
/// The largest number of figures of a run that stand in large type.
const TILES: usize = 7;

/// Writes the page about runs.
pub(super) fn write_page(runs: &[ShownRun]) -> String {
    let title = match runs {
        [run] if run.record.name.is_empty() => run.name.clone(),
        [run] => run.record.name.clone(),
        runs => format!("{} runs", runs.len()),
    };
    let title = escape(&title);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{}\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n",
        svg::STYLE
    );
    html.push_str(&name_runs(runs));
    if let [run] = runs {
        html.push_str(&draw_tiles(run));
    }
    let mut plots = draw_curves(runs);
    plots.extend(draw_calibration(runs));
    html.push_str(&draw_plots(runs, &plots));
    if runs.len() > 1 {
        html.push_str(&compare_figures(runs));
        html.push_str(&compare_settings(runs));
    }
    html.push_str(&list_sizes(runs));
    html.push_str(&list_slices(runs));
    html.push_str(&list_settings(runs));
    html.push_str(
        "<footer>Written by <code>zillion board</code>.</footer>\n</main>\n</body>\n</html>\n",
    );
    html
}

fn dot(index: usize) -> String {
    format!("<span class=\"dot c{}\"></span>", index % COLOURS)
}

/// Names the runs with their colours, and their folders.
fn name_runs(runs: &[ShownRun]) -> String {
    if let [run] = runs {
        return format!("<p>{}</p>\n", escape(&run.path.display().to_string()));
    }
    let mut html = "<div class=\"runs\">\n".to_owned();
    for (index, run) in runs.iter().enumerate() {
        let path = escape(&run.path.display().to_string());
        let name = escape(&run.name);
        let _ = writeln!(html, "<span title=\"{path}\">{}{name}</span>", dot(index));
    }
    html.push_str("</div>\n");
    html
}

/// Shows the first figures of a run in large type.
fn draw_tiles(run: &ShownRun) -> String {
    let mut html = "<div class=\"tiles\">\n".to_owned();
    let figures = runs::list_figures(&run.record);
    let is_shown = |name: &str| !["training loss", "best epoch", "steps"].contains(&name);
    // The figures of the test come before those of the validation.
    let (test, other): (Vec<_>, Vec<_>) =
        figures.iter().filter(|f| is_shown(&f.name)).partition(|f| f.name.starts_with("test "));
    for figure in test.into_iter().chain(other).take(TILES) {
        let (name, value) = (escape(&figure.name), format_value(figure.value));
        let _ = writeln!(html, "<div class=\"tile\"><b>{value}</b><span>{name}</span></div>");
    }
    html.push_str("</div>\n");
    html
}

fn draw_plots(runs: &[ShownRun], plots: &[Described]) -> String {
    if plots.is_empty() {
        return "<p>The runs have no curves.</p>\n".to_owned();
    }
    let mut html = "<h2>Curves</h2>\n<div class=\"grid\">\n".to_owned();
    for (panel, description) in plots {
        let picture = svg::picture(panel, description, runs.len() == 1);
        let _ = writeln!(html, "<div class=\"card\">{picture}</div>");
    }
    html.push_str("</div>\n");
    html
}

/// Writes a table. Cells are HTML: their text must be escaped.
fn write_table(heads: &[String], lines: &[Vec<String>]) -> String {
    let mut html = "<div class=\"card wide\"><table>\n<tr>".to_owned();
    heads.iter().for_each(|head| html.push_str(&format!("<th>{head}</th>")));
    html.push_str("</tr>\n");
    for line in lines {
        let _ = writeln!(html, "<tr>{}</tr>", line.concat());
    }
    html.push_str("</table></div>\n");
    html
}

fn heads_of_runs(runs: &[ShownRun], first: &str) -> Vec<String> {
    let named =
        runs.iter().enumerate().map(|(at, run)| format!("{}{}", dot(at), escape(&run.name)));
    std::iter::once(first.to_owned()).chain(named).collect()
}

fn compare_figures(runs: &[ShownRun]) -> String {
    let line = |(name, better, values): (String, Better, Vec<Option<f64>>)| {
        let best = runs::find_best(better, &values);
        let cell = |(at, value): (usize, &Option<f64>)| {
            let class = if best == Some(at) { " class=\"best\"" } else { "" };
            let text = value.map_or_else(|| "–".to_owned(), format_value);
            format!("<td{class}>{text}</td>")
        };
        let first = format!("<td>{}</td>", escape(&name));
        std::iter::once(first).chain(values.iter().enumerate().map(cell)).collect()
    };
    let lines: Vec<Vec<String>> = runs::align_figures(runs).into_iter().map(line).collect();
    format!("<h2>Figures</h2>\n{}", write_table(&heads_of_runs(runs, "figure"), &lines))
}

fn compare_settings(runs: &[ShownRun]) -> String {
    let differences = runs::list_differences(runs);
    if differences.is_empty() {
        return "<h2>Settings that differ</h2>\n<p>None.</p>\n".to_owned();
    }
    let line = |(key, values): (String, Vec<Option<String>>)| {
        let cell = |value: Option<String>| {
            let text = value.map_or_else(|| "–".to_owned(), |value| escape(&value));
            format!("<td>{text}</td>")
        };
        let first = format!("<td><code>{}</code></td>", escape(&key));
        std::iter::once(first).chain(values.into_iter().map(cell)).collect()
    };
    let lines: Vec<Vec<String>> = differences.into_iter().map(line).collect();
    format!(
        "<h2>Settings that differ</h2>\n{}",
        write_table(&heads_of_runs(runs, "setting"), &lines)
    )
}

/// Lists the tables of all runs with bars of their bytes.
fn list_sizes(runs: &[ShownRun]) -> String {
    let sizes = runs.iter().map(|run| list_tables(&run.record));
    let sizes: Vec<_> = sizes.enumerate().filter(|(_, tables)| !tables.is_empty()).collect();
    let most = sizes.iter().flat_map(|(_, tables)| tables).map(|table| table.bytes).max();
    let Some(most) = most.filter(|&most| most > 0) else { return String::new() };
    let mut lines = Vec::new();
    for (run, tables) in &sizes {
        for table in tables {
            let share = 100.0 * table.bytes as f64 / most as f64;
            let mark = if runs.len() > 1 { dot(*run) } else { String::new() };
            lines.push(vec![
                format!("<td>{mark}{}</td>", escape(&table.name)),
                format!("<td>{}</td>", grouped(table.rows)),
                format!("<td>{}</td>", bytes(table.bytes)),
                format!("<td class=\"fill\"><span class=\"bar\" style=\"width:{share:.1}%\"></span></td>"),
            ]);
        }
    }
    let heads = ["table", "rows", "bytes", ""].map(str::to_owned);
    format!("<h2>Tables</h2>\n{}", write_table(&heads, &lines))
}

/// Lists the figures of the parts of an evaluation: of each task, and of each segment of rows.
fn list_slices(runs: &[ShownRun]) -> String {
    let mut html = String::new();
    for (index, run) in runs.iter().enumerate() {
        let valid = run.record.best().and_then(|best| best.valid.as_ref());
        let Some(report) = run.record.test().or(valid) else { continue };
        for key in ["tasks", "segments"] {
            let rows = report.get(key).map(find_slices).unwrap_or_default();
            if rows.is_empty() {
                continue;
            }
            let mark = if runs.len() > 1 { dot(index) } else { String::new() };
            let name = if key == "tasks" { "Tasks" } else { "Segments" };
            html.push_str(&format!("<h2>{mark}{name}</h2>\n{}", write_slices(&rows)));
        }
    }
    html
}

/// Returns the parts of an evaluation with their names: tasks are a map by their names, and
/// segments a list of objects with a feature and its value.
fn find_slices(slices: &Value) -> Vec<(String, &Value)> {
    match slices {
        Value::Object(tasks) => tasks.iter().map(|(name, task)| (name.clone(), task)).collect(),
        Value::Array(segments) => segments.iter().map(|of| (name_segment(of), of)).collect(),
        _ => Vec::new(),
    }
}

/// Returns the name of a segment of rows, as in `country = NL`.
fn name_segment(segment: &Value) -> String {
    let feature = segment.get("feature").and_then(Value::as_str).unwrap_or_default();
    match segment.get("value") {
        Some(Value::String(value)) => format!("{feature} = {value}"),
        _ => format!("{feature}: other values"),
    }
}

fn write_slices(slices: &[(String, &Value)]) -> String {
    let mut names: Vec<String> = Vec::new();
    for (_, slice) in slices {
        for figure in figures_of_report("", slice) {
            if !names.contains(&figure.name) {
                names.push(figure.name);
            }
        }
    }
    let line = |(name, slice): &(String, &Value)| {
        let figures = figures_of_report("", slice);
        let rows = slice.get("rows").and_then(Value::as_u64);
        let mut cells = vec![
            format!("<td>{}</td>", escape(name)),
            format!("<td>{}</td>", rows.map_or_else(|| "–".to_owned(), grouped)),
        ];
        for wanted in &names {
            let value = figures.iter().find(|figure| figure.name == *wanted);
            let text = value.map_or_else(|| "–".to_owned(), |figure| format_value(figure.value));
            cells.push(format!("<td>{text}</td>"));
        }
        cells
    };
    let lines: Vec<Vec<String>> = slices.iter().map(line).collect();
    let mut heads = vec!["slice".to_owned(), "rows".to_owned()];
    heads.extend(names.iter().map(|name| escape(name.trim())));
    write_table(&heads, &lines)
}

/// Lists all settings of each run, folded.
fn list_settings(runs: &[ShownRun]) -> String {
    let mut html = "<h2>Settings</h2>\n".to_owned();
    for (index, run) in runs.iter().enumerate() {
        let mark = if runs.len() > 1 { dot(index) } else { String::new() };
        let line = |(key, value): (String, String)| {
            let (key, value) = (escape(&key), escape(&value));
            vec![format!("<td><code>{key}</code></td>"), format!("<td class=\"text\">{value}</td>")]
        };
        let settings = flatten_settings(&run.record.settings);
        let lines: Vec<Vec<String>> = settings.into_iter().map(line).collect();
        let table = write_table(&[], &lines);
        let name = escape(&run.name);
        let _ = writeln!(
            html,
            "<details><summary>{mark}{name}: {} settings</summary>\n{table}</details>",
            lines.len()
        );
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_and_tasks_are_slices() {
        let figures = |auc: f64| serde_json::json!({ "auc": auc, "rows": 10 });
        let tasks = serde_json::json!({ "click": figures(0.5), "buy": figures(0.75) });
        let names = |slices: &Value| {
            find_slices(slices).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(&tasks), ["buy", "click"]);
        let segments = serde_json::json!([
            { "feature": "country", "value": "<NL>", "rows": 1234, "auc": 0.5 },
            { "feature": "country", "value": null, "rows": 5, "auc": 0.25 },
        ]);
        assert_eq!(names(&segments), ["country = <NL>", "country: other values"]);
        let html = write_slices(&find_slices(&segments));
        assert!(html.contains("country = &lt;NL&gt;") && html.contains("1,234"), "{html}");
    }
}
