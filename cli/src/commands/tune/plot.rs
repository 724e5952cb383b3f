//! The plot of a tune: the metric of the trials along the rungs, and by each key.

use std::path::Path;

use anyhow::Result;
use zillion_console::svg::{self, Axis, POINTS, Panel, Scale, Shapes, Unit};
use zillion_device::Files;

use super::halving::rank_all;
use super::state::{State, Trial};
use crate::curves::Line;

/// The name of the file with the plot in the folder of a tune.
pub(super) const PLOT_FILE: &str = "tune.svg";
/// The number of lines of a panel, beyond which colours repeat and names do not fit.
const MOST_LINES: usize = 5;
/// The number of different values of a key up to which they are shown at equal distances.
const MOST_CHOICES: usize = 6;
/// The number of panels in a row.
const COLUMNS: usize = 3;

/// Writes the plot of a tune into its folder.
pub(super) fn write_plot(state: &State, folder: &Path, files: &Files) -> Result<()> {
    let svg = svg::page(&format!("{} trials", state.trials.len()), &list_rows(state));
    Ok(files.scratch().write_bytes(folder.join(PLOT_FILE), svg.as_bytes())?)
}

/// Returns the rows of panels: the best trials along the rungs, the first rung, and each key.
fn list_rows(state: &State) -> Vec<(String, Vec<Panel>)> {
    let mut rows = vec![("Trials".to_owned(), vec![draw_rungs(state), draw_trials(state)])];
    let keys = state.trials.first().map_or(0, |trial| trial.values.len());
    let panels: Vec<Panel> = (0..keys).map(|key| draw_key(state, key)).collect();
    for (at, panels) in panels.chunks(COLUMNS).enumerate() {
        let heading = if at == 0 { "The first rung by each key" } else { "" };
        rows.push((heading.to_owned(), panels.to_vec()));
    }
    rows
}

/// Draws the metric of the best trials and of the job as written along the rungs.
fn draw_rungs(state: &State) -> Panel {
    let mut shown = rank_all(&state.trials, &state.rungs, state.lower_is_better);
    shown.retain(|&number| !state.trials[number].results.is_empty());
    let is_first_out = shown.iter().take(MOST_LINES).all(|&number| number != 0);
    let has_first = shown.contains(&0);
    shown.truncate(if is_first_out && has_first { MOST_LINES - 1 } else { MOST_LINES });
    if is_first_out && has_first {
        shown.push(0);
    }
    let by_rows = state.rungs.iter().any(|rung| rung.rows_divisor > 1);
    let line = |number: usize| -> Line {
        let name = if number == 0 { "job".to_owned() } else { number.to_string() };
        let points = state.trials[number].results.iter().zip(&state.rungs).map(|(result, rung)| {
            let x = if by_rows { 100.0 / rung.rows_divisor as f64 } else { result.epochs as f64 };
            (x, result.metric)
        });
        (name, points.collect())
    };
    let x = if by_rows { "share of the rows in %" } else { "epochs" };
    Panel {
        title: "The best trials and the job as written".to_owned(),
        x: Axis::new(x, Scale::Log, Unit::Number),
        y: metric_axis(state),
        shapes: Shapes::Lines(shown.into_iter().map(line).collect()),
    }
}

/// Draws the metric of all trials in the first rung, by their numbers.
fn draw_trials(state: &State) -> Panel {
    let point = |trial: &Trial| Some((trial.number as f64, trial.results.first()?.metric));
    let points = state.trials.iter().filter_map(point).collect();
    Panel {
        title: "All trials in the first rung".to_owned(),
        x: Axis::new("trial", Scale::Near, Unit::Number),
        y: metric_axis(state),
        shapes: Shapes::Lines(vec![(POINTS.to_owned(), points)]),
    }
}

/// Draws the metric in the first rung by the values of a key: by the number, or by the place among
/// the values if they are few or not numbers.
fn draw_key(state: &State, key: usize) -> Panel {
    let name = state.trials.first().map_or("", |trial| trial.values[key].0.as_str());
    let text = |trial: &Trial| trial.values.get(key).map(|(_, text)| text.clone());
    let mut texts: Vec<String> = state.trials.iter().filter_map(text).collect();
    let number = |text: &String| text.parse::<f64>().unwrap_or(f64::INFINITY);
    texts.sort_by(|a, b| number(a).total_cmp(&number(b)).then_with(|| a.cmp(b)));
    texts.dedup();
    let has_places =
        texts.len() <= MOST_CHOICES || texts.iter().any(|text| text.parse::<f64>().is_err());
    let place = |text: &String| match has_places {
        true => texts.iter().position(|other| other == text).map(|at| at as f64 + 1.0),
        false => text.parse::<f64>().ok(),
    };
    let point =
        |trial: &Trial| Some((place(&trial.values.get(key)?.1)?, trial.results.first()?.metric));
    let points: Vec<(f64, f64)> = state.trials.iter().filter_map(point).collect();
    let low = points.iter().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|point| point.0).fold(0.0, f64::max);
    let is_wide = low > 0.0 && high > 8.0 * low && !has_places;
    let label = if has_places { texts.join(", ") } else { name.to_owned() };
    Panel {
        title: name.to_owned(),
        x: Axis::new(&label, if is_wide { Scale::Log } else { Scale::Near }, Unit::Number),
        y: metric_axis(state),
        shapes: Shapes::Lines(vec![(POINTS.to_owned(), points)]),
    }
}

fn metric_axis(state: &State) -> Axis {
    Axis::new(&format!("validation {}", state.metric), Scale::Near, Unit::Number)
}

#[cfg(test)]
mod tests {
    use zillion_trainer::TuneResource;

    use super::super::halving::plan_rungs;
    use super::super::state::{Plan, RungResult};
    use super::*;

    #[test]
    fn the_plot_names_the_best_trials_and_each_key() {
        let trial = |number: usize| {
            let rate = ["0.01", "0.1", "0.5", "0.9"][number % 4];
            let shape = ["[8]", "[8, 4]"][number % 2];
            let values = [("train.optimizer.lr", rate), ("model.hidden", shape)];
            let values = values.map(|(key, text)| (key.to_owned(), text.to_owned()));
            let mut trial = Trial::new(number, values.into());
            let metric = 0.5 + number as f64 / 100.0;
            trial.results.push(RungResult { metric, epochs: 1, best_epoch: 1, seconds: 1.0 });
            trial
        };
        let mut trials: Vec<Trial> = (0..9).map(trial).collect();
        trials[3].results.clear();
        trials[3].failure = Some("diverged".to_owned());
        let state = State::new(Plan {
            settings: serde_json::Value::Null,
            metric: "auc".to_owned(),
            task: None,
            lower_is_better: false,
            resource: TuneResource::Epochs,
            rungs: plan_rungs(9, 9, 3, TuneResource::Epochs),
            trials,
        });
        let folder = tempfile::tempdir().expect("a folder");
        write_plot(&state, folder.path(), &Files::new()).expect("it is written");
        let svg = std::fs::read_to_string(folder.path().join(PLOT_FILE)).expect("a plot");
        for words in ["9 trials", "train.optimizer.lr", "[8, 4]", "validation auc", ">job<", ">8<"]
        {
            assert!(svg.contains(words), "{words}: {svg}");
        }
    }
}
