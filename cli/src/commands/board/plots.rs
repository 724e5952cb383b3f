//! The plots of a page about runs.

use serde_json::Value;
use zillion_console::svg::{Axis, IDEAL, Panel, Scale, Shapes, Unit};

use crate::curves::{self, Line};
use crate::runs::{ShownRun, main_figure};

/// The ratio of the largest to the smallest prediction from which calibration is drawn on
/// logarithmic axes.
const WIDE: f64 = 20.0;

/// A panel with the sentence that describes it for people who cannot see it.
pub(super) type Described = (Panel, String);

/// Returns the curves. One run has both losses in a panel; several runs have a panel for each
/// figure, with a line for each run.
pub(super) fn draw_curves(runs: &[ShownRun]) -> Vec<Described> {
    let panels = match runs {
        [run] => curves::panels_of_run(&run.record),
        runs => compare_curves(runs),
    };
    let has_points = |panel: &Panel| match &panel.shapes {
        Shapes::Lines(lines) => lines.iter().any(|(_, points)| !points.is_empty()),
        Shapes::Bars(bars) => !bars.is_empty(),
    };
    let describe = |panel: Panel| {
        let text = format!("{} along the steps of training", panel.title);
        (panel, text)
    };
    panels.into_iter().filter(has_points).map(describe).collect()
}

fn compare_curves(runs: &[ShownRun]) -> Vec<Panel> {
    let lines = |points: &dyn Fn(&ShownRun) -> Vec<(f64, f64)>| -> Vec<Line> {
        runs.iter().map(|run| (run.name.clone(), points(run))).collect()
    };
    let by_epoch = |name: &str| {
        lines(&|run| curves::by_epoch(&run.record, |epoch| curves::valid_figure(epoch, name)))
    };
    let mut panels = vec![
        curves::panel("Training loss", "loss", lines(&|run| curves::training_loss(&run.record))),
        curves::panel("Validation loss", "logloss", by_epoch("logloss")),
    ];
    let main = runs.iter().find_map(|run| main_figure(&run.record));
    if let Some((name, _)) = main.filter(|(name, _)| name != "logloss") {
        panels.push(curves::panel(&curves::title_of(&name), &name, by_epoch(&name)));
    }
    panels
}

/// Returns the panel of calibration: for each tenth of the rows, the mean prediction and the share
/// of rows labelled 1. Returns `None` if no run has the figures.
pub(super) fn draw_calibration(runs: &[ShownRun]) -> Option<Described> {
    let mut lines: Vec<Line> = Vec::new();
    for run in runs {
        let points = find_table(run).map(read_points).unwrap_or_default();
        lines.push((run.name.clone(), points));
    }
    let all: Vec<f64> =
        lines.iter().flat_map(|(_, points)| points).flat_map(|p| [p.0, p.1]).collect();
    let predicted = lines.iter().flat_map(|(_, points)| points).map(|point| point.0);
    let low = predicted.clone().fold(f64::INFINITY, f64::min);
    let high = predicted.fold(0.0, f64::max);
    if all.is_empty() || high <= 0.0 {
        return None;
    }
    let scale = if low > 0.0 && high > WIDE * low { Scale::Log } else { Scale::Linear };
    let from = if scale == Scale::Log { low } else { 0.0 };
    lines.push((IDEAL.to_owned(), vec![(from, from), (high, high)]));
    let panel = Panel {
        title: "Calibration".to_owned(),
        x: Axis::new("mean prediction", scale, Unit::Percent),
        y: Axis::new("rows labelled 1", scale, Unit::Percent),
        shapes: Shapes::Lines(lines),
    };
    let text = "Calibration: the share of rows labelled 1 against the mean prediction".to_owned();
    Some((panel, text))
}

/// Returns the table of calibration of the test, or of the validation of the best epoch.
fn find_table(run: &ShownRun) -> Option<&Value> {
    let test = run.record.test();
    let valid = run.record.best().and_then(|best| best.valid.as_ref());
    test.or(valid)?.get("calibration_table")
}

fn read_points(table: &Value) -> Vec<(f64, f64)> {
    let number = |bucket: &Value, key: &str| bucket.get(key)?.as_f64();
    let point =
        |bucket: &Value| Some((number(bucket, "mean_prediction")?, number(bucket, "mean_label")?));
    table.as_array().into_iter().flatten().filter_map(point).collect()
}
