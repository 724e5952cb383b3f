//! `zillion compare`: prints the settings in which runs differ, and their figures.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;
use zillion_console::print_result;

use crate::args::CompareArgs;
use crate::runs::{self, Better, ShownRun};
use crate::text;

/// The comparison of runs. Each list has one value for each run, in their order.
#[derive(Serialize)]
struct Comparison {
    runs: Vec<Named>,
    settings: BTreeMap<String, Vec<Option<String>>>,
    figures: Vec<Line>,
}

/// The name and the folder of a run.
#[derive(Serialize)]
struct Named {
    name: String,
    folder: String,
}

/// A figure of all runs.
#[derive(Serialize)]
struct Line {
    name: String,
    values: Vec<Option<f64>>,
    /// The name of the best run; absent if no direction is better or if all are the same.
    best: Option<String>,
}

pub(crate) fn run(args: &CompareArgs) -> Result<()> {
    let runs = runs::load_runs(&args.runs)?;
    print_result(args.json, &compare(&runs), show)
}

fn compare(runs: &[ShownRun]) -> Comparison {
    let named =
        |run: &ShownRun| Named { name: run.name.clone(), folder: run.path.display().to_string() };
    let line = |(name, better, values): (String, Better, Vec<Option<f64>>)| {
        let best = runs::find_best(better, &values).map(|at| runs[at].name.clone());
        Line { name, values, best }
    };
    Comparison {
        runs: runs.iter().map(named).collect(),
        settings: runs::list_differences(runs).into_iter().collect(),
        figures: runs::align_figures(runs).into_iter().map(line).collect(),
    }
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(comparison: &Comparison) {
    let mut heads = vec![""];
    heads.extend(comparison.runs.iter().map(|run| run.name.as_str()));
    let setting = |(key, values): (&String, &Vec<Option<String>>)| {
        let absent = || "-".to_owned();
        let values = values.iter().map(|value| value.clone().unwrap_or_else(absent));
        std::iter::once(key.clone()).chain(values).collect::<Vec<_>>()
    };
    let figure = |line: &Line| {
        let values = line.values.iter().zip(&comparison.runs).map(|(value, run)| {
            let mark = if line.best.as_ref() == Some(&run.name) { " *" } else { "" };
            let text = value.map_or_else(|| "-".to_owned(), runs::format_value);
            format!("{text}{mark}")
        });
        std::iter::once(line.name.clone()).chain(values).collect::<Vec<_>>()
    };
    match comparison.settings.is_empty() {
        true if comparison.runs.len() > 1 => println!("the settings of the runs are the same\n"),
        true => {}
        false => {
            let lines = comparison.settings.iter().map(setting);
            println!("{}", text::table(&heads, lines, heads.len()));
        }
    }
    let lines = comparison.figures.iter().map(figure);
    print!("{}", text::table(&heads, lines, heads.len()));
    if comparison.figures.iter().any(|line| line.best.is_some()) {
        println!("* the best run");
    }
}
