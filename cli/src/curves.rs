//! The curves of runs: the loss along training, and the figures of each epoch.

use std::path::Path;

use anyhow::{Context as _, Result};
use zillion_console::exit::usage_error;
use zillion_console::svg::{self, Axis, Panel, Scale, Shapes, Unit};
use zillion_device::Files;
use zillion_trainer::{EpochRecord, RunRecord};

use crate::runs::{TableSize, figures_of_report, find_figure, list_tables, main_figure};

/// The name of the file with the curves in the folder of a run.
pub(crate) const CURVES_FILE: &str = "curves.svg";
/// The number of parts of a curve over which losses are averaged, so that the course can be seen.
const SMOOTHED_PARTS: usize = 48;

/// The number of medians above which a loss at the start of a run is not drawn.
const START: f64 = 2.0;

/// A line with its name and its points.
pub(crate) type Line = (String, Vec<(f64, f64)>);

/// Writes the curves of a run into its folder. Writes nothing if the run has no record.
///
/// # Errors
/// Returns an error if the record cannot be read, or the file cannot be written.
pub fn write_curves(folder: &Path) -> Result<()> {
    let Some(record) = RunRecord::read(folder)? else { return Ok(()) };
    let epochs = match record.epochs.len() {
        1 => "1 epoch".to_owned(),
        count => format!("{count} epochs"),
    };
    let rows = [(epochs, panels_of_run(&record))];
    let svg = svg::page(&record.name, &rows);
    Ok(Files::new().scratch().write_bytes(folder.join(CURVES_FILE), svg.as_bytes())?)
}

/// Draws the plots of a run that `kinds` name, one beside the other: `loss`, `tables`, or a figure
/// of the validation such as `auc`.
///
/// # Errors
/// Returns an error if the folder has no record that can be read, or if a kind is unknown or has
/// nothing to show.
pub fn draw_plots(folder: &Path, kinds: &[String]) -> Result<String> {
    let record = RunRecord::read(folder)?.with_context(|| {
        format!(
            "{} has no record of a run; name the folder of a run, such as runs/NAME",
            folder.display()
        )
    })?;
    let mut panels = Vec::new();
    for kind in kinds {
        match kind.as_str() {
            "loss" => panels.push(loss_panel(&record)),
            "tables" => panels.extend(table_panels(&record)?),
            figure => panels.push(figure_panel(&record, figure)?),
        }
    }
    Ok(svg::page(&record.name, &[(kinds.join(", "), panels)]))
}

/// Returns the panel of a figure of the validation.
fn figure_panel(record: &RunRecord, figure: &str) -> Result<Panel> {
    let line = by_epoch(record, |epoch| valid_figure(epoch, figure));
    if line.is_empty() {
        let reports = record.epochs.iter().filter_map(|epoch| epoch.valid.as_ref());
        let figures = reports.take(1).flat_map(|report| figures_of_report("", report));
        let mut known = vec!["loss".to_owned()];
        if !list_tables(record).is_empty() {
            known.push("tables".to_owned());
        }
        known.extend(figures.map(|figure| figure.name.trim().to_owned()));
        return usage_error(format!(
            "unknown plot \"{figure}\"; expected one of {}, which are the plots of this run",
            known.join(", ")
        ));
    }
    Ok(panel(&title_of(figure), figure, vec![("validation".to_owned(), line)]))
}

/// Returns the panels of the tables: their rows and their bytes.
fn table_panels(record: &RunRecord) -> Result<[Panel; 2]> {
    let tables = list_tables(record);
    if tables.is_empty() {
        return usage_error(
            "the run has no sizes of tables, because they are recorded at its end; train it to its \
             end, or plot \"loss\"",
        );
    }
    let bars = |title: &str, unit: Unit, size: fn(&TableSize) -> u64| Panel {
        title: title.to_owned(),
        x: Axis::new("table", Scale::Linear, Unit::Number),
        y: Axis::new("at the end of the run", Scale::Linear, unit),
        shapes: Shapes::Bars(
            tables.iter().map(|table| (table.name.clone(), size(table) as f64)).collect(),
        ),
    };
    Ok([
        bars("Rows", Unit::Number, |table| table.rows),
        bars("Bytes", Unit::Bytes, |table| table.bytes),
    ])
}

/// Returns the panels of one run: the losses, and the main figure of each epoch.
pub(crate) fn panels_of_run(record: &RunRecord) -> Vec<Panel> {
    let mut panels = vec![loss_panel(record)];
    if let Some((name, _)) = main_figure(record).filter(|(name, _)| name != "logloss") {
        let line = by_epoch(record, |epoch| valid_figure(epoch, &name));
        panels.push(panel(&title_of(&name), &name, vec![("validation".to_owned(), line)]));
    }
    panels
}

/// Returns the panel of the losses: of training along the run, and of the validation.
fn loss_panel(record: &RunRecord) -> Panel {
    let mut losses = vec![("training".to_owned(), training_loss(record))];
    losses
        .push(("validation".to_owned(), by_epoch(record, |epoch| valid_figure(epoch, "logloss"))));
    losses.retain(|(_, points)| !points.is_empty());
    panel("Loss", "loss", losses)
}

/// Returns the training loss along a run, averaged over neighbouring points. The points of the
/// start whose loss is above [`START`] medians are left out, because they would flatten the rest.
pub(crate) fn training_loss(record: &RunRecord) -> Vec<(f64, f64)> {
    let points = &record.losses.points;
    let each = points.len().div_ceil(SMOOTHED_PARTS).max(1);
    let mean = |part: &[zillion_trainer::LossPoint]| {
        let rows: u64 = part.iter().map(|point| point.rows).sum();
        let sum: f64 = part.iter().map(|point| point.loss * point.rows as f64).sum();
        let step = part.last().map_or(0, |point| point.step);
        (step as f64, sum / rows.max(1) as f64)
    };
    let points: Vec<(f64, f64)> = points.chunks(each).map(mean).collect();
    let mut sorted: Vec<f64> = points.iter().map(|point| point.1).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let most = sorted.get(sorted.len() / 2).map_or(f64::INFINITY, |median| {
        // A Poisson loss may be negative.
        median + (START - 1.0) * median.abs()
    });
    points.into_iter().skip_while(|point| point.1 > most).collect()
}

/// Returns a figure of each epoch at the step of its end.
pub(crate) fn by_epoch(
    record: &RunRecord,
    figure: impl Fn(&EpochRecord) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let point = |epoch: &EpochRecord| Some((epoch.step as f64, figure(epoch)?));
    record.epochs.iter().filter_map(point).collect()
}

/// Returns a figure of the validation of an epoch.
pub(crate) fn valid_figure(epoch: &EpochRecord, name: &str) -> Option<f64> {
    find_figure(epoch.valid.as_ref()?, name)
}

/// Returns the title of the panel of a figure.
pub(crate) fn title_of(figure: &str) -> String {
    match figure {
        "auc" | "gauc" => format!("Validation {}", figure.to_uppercase()),
        _ => format!("Validation {figure}"),
    }
}

/// Makes a panel of lines along the steps of a run.
pub(crate) fn panel(title: &str, figure: &str, lines: Vec<Line>) -> Panel {
    let x = Axis::new("steps", Scale::Near, Unit::Number);
    let y = Axis::new(figure, Scale::Near, Unit::Number);
    Panel { title: title.to_owned(), x, y, shapes: Shapes::Lines(lines) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_run_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let refused = draw_plots(folder.path(), &["loss".to_owned()]).unwrap_err().to_string();
        assert!(refused.contains("has no record of a run; name the folder of a run"), "{refused}");
    }
}
