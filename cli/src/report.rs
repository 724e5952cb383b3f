//! The output about rows and metrics that several commands print on stderr.

use std::collections::BTreeMap;

use anyhow::Result;
use zillion_console::durable_files;
use zillion_nn::metrics::RankingFigure;
use zillion_reader::{DataConfig, Dataset};
use zillion_trainer::{EvalReport, RejectFile, SegmentReport, TaskReport, UnseenIds};

use crate::text::{figure, grouped};

/// Writes the bad rows that were left out to the file in `data.rejects`, if there is one.
pub(crate) fn write_rejects(data: &DataConfig, dataset: &Dataset) -> Result<()> {
    let Some(path) = &data.rejects else { return Ok(()) };
    let mut rejects = RejectFile::new(path);
    rejects.add(dataset);
    Ok(rejects.save(&durable_files()?)?)
}

/// Prints the number of bad rows that were left out. `which` describes the rows, as in "of the test
/// rows".
pub(crate) fn print_rejected_rows(which: &str, rows: u64) {
    if rows > 0 {
        eprintln!("      {rows} of the {which} rows are bad and were left out");
    }
}

/// Prints the rows and the distinct ids of each feature whose ids have no row. `missing` is the
/// number of lookups that found no row, which is printed if the features are not known. `which`
/// describes the rows, as in "of the test rows".
pub(crate) fn print_unseen(which: &str, unseen: &[UnseenIds], missing: u64) {
    for line in format_unseen(which, unseen, missing) {
        eprintln!("      {line}");
    }
}

/// Formats the rows and the distinct ids of each feature whose ids have no row, one line each.
fn format_unseen(which: &str, unseen: &[UnseenIds], missing: u64) -> Vec<String> {
    if unseen.is_empty() && missing > 0 {
        let line = format!(
            "{} lookups of keys that training did not learn read the declared default",
            grouped(missing)
        );
        return vec![line];
    }
    let line = |ids: &UnseenIds| {
        format!(
            "{}: {} of {} {which} rows ({:.1} %) have an id that training did not learn ({}{} \
             distinct ids); it reads the declared default",
            ids.feature,
            grouped(ids.rows),
            grouped(ids.of_rows),
            100.0 * ids.rows as f64 / ids.of_rows.max(1) as f64,
            if ids.ids_are_estimated { "about " } else { "" },
            grouped(ids.ids)
        )
    };
    unseen.iter().map(line).collect()
}

/// Prints the number of rows whose key is missing in each side table. `which` describes the rows,
/// as in "of the test rows".
pub(crate) fn print_missing_side_rows(which: &str, counts: &BTreeMap<String, u64>) {
    for (side, rows) in counts {
        eprintln!(
            "      {rows} of the {which} rows are not in side table {side} and read as missing"
        );
    }
}

/// Prints the ranking figures. If there are candidates, the figures of a ranking by popularity
/// follow.
pub(crate) fn print_ranking(report: &EvalReport) {
    let line = |figures: &[RankingFigure]| {
        let shown = figures.iter().map(|f| format!("{} {}", f.name, figure(f.value, 5)));
        shown.collect::<Vec<_>>().join("  ")
    };
    if report.candidates > 0 {
        eprintln!("      {}  among {} candidates", line(&report.ranking), report.candidates);
        eprintln!("      {}  by popularity", line(&report.popularity));
        if report.unknown_items > 0 {
            eprintln!(
                "      {} rows ask for an item that is not a candidate",
                report.unknown_items
            );
        }
    } else if !report.ranking.is_empty() {
        eprintln!("      {}  in each group", line(&report.ranking));
    }
}

/// Returns the figures of a task in one line: those of probabilities, or the errors of numbers.
pub(crate) fn format_figures(task: &TaskReport) -> String {
    let calibration = figure(task.calibration, 4);
    if let Some(numbers) = &task.numbers {
        let deviance = numbers.deviance.map_or_else(String::new, |d| format!("  deviance {d:.6}"));
        return format!(
            "rmse {:.6}  mae {:.6}{deviance}  calibration {calibration}",
            numbers.rmse, numbers.mae
        );
    }
    let also = |name, value: Option<f64>| {
        value.map_or_else(String::new, |value| format!("  {name} {value:.6}"))
    };
    if task.accuracy.is_some() {
        // The mean of the AUCs of the classes, each against all others.
        return format!(
            "auc {}{}  logloss {}",
            figure(task.auc, 6),
            also("accuracy", task.accuracy),
            figure(task.logloss, 6)
        );
    }
    format!(
        "auc {}{}{}  logloss {}  calibration {calibration}",
        figure(task.auc, 6),
        also("gauc", task.gauc),
        also("pr_auc", task.pr_auc),
        figure(task.logloss, 6),
    )
}

/// Prints a line of figures for each segment of each task.
pub(crate) fn print_segments(report: &EvalReport) {
    let first = [("", report.segments.as_slice())];
    let tasks: Vec<(&str, &[SegmentReport])> = match report.tasks.as_slice() {
        [] => first.to_vec(),
        tasks => {
            tasks.iter().map(|(name, task)| (name.as_str(), task.segments.as_slice())).collect()
        }
    };
    for (task, segments) in tasks {
        for segment in segments {
            let value = segment.value.as_deref().unwrap_or("(others)");
            let task = if task.is_empty() { String::new() } else { format!("{task}  ") };
            eprintln!(
                "      {task}{} = {value}  auc {}  logloss {}  calibration {}  rows {}  positives {}",
                segment.feature,
                figure(segment.auc, 6),
                figure(segment.logloss, 6),
                figure(segment.calibration, 4),
                segment.rows,
                segment.positives
            );
        }
    }
}

/// Prints a line of metrics for each task, if the model has several tasks.
pub(crate) fn print_tasks(report: &EvalReport) {
    let width = report.tasks.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, task) in &report.tasks {
        eprintln!(
            "      {name:width$}  {}  rows {}  positives {}",
            format_figures(task),
            task.rows,
            task.positives
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cold_start_is_told_in_rows_and_ids() {
        let ids = UnseenIds {
            feature: "user".to_owned(),
            rows: 8582,
            of_rows: 10_000,
            ids: 4311,
            ids_are_estimated: false,
        };
        let lines = format_unseen("test", &[ids], 230);
        assert_eq!(
            lines,
            ["user: 8,582 of 10,000 test rows (85.8 %) have an id that training did not learn \
              (4,311 distinct ids); it reads the declared default"]
        );
        assert!(format_unseen("test", &[], 0).is_empty());
        assert!(format_unseen("test", &[], 1230)[0].starts_with("1,230 lookups"));
    }
}
