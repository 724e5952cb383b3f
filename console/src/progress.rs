//! The display of the progress of training: a bar on a terminal, and otherwise plain lines. The
//! output goes to stderr, so that stdout contains only results.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use zillion_trainer::{EpochReport, EvalReport, Observer, StepReport, TaskReport};

/// The minimum time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Starts a progress bar with the layout `template` that is full at the number `total`. Returns
/// `None` if stderr is not a terminal.
pub fn start_bar(total: Option<u64>, template: &str) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar
    })
}

/// An observer of training that prints the progress on stderr.
pub struct Progress {
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Starts to show the progress. The progress is a bar if stderr is a terminal, and otherwise a
    /// line every few seconds.
    pub fn new() -> Self {
        let bar = start_bar(None, "{prefix} {bar:30} {pos}/{len} rows  {msg}  eta {eta}");
        Self { bar, last_line: Instant::now() }
    }

    fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }
}

impl Observer for Progress {
    fn step(&mut self, report: &StepReport) {
        let message = format!(
            "loss {:.4}{}  {:.0} samples/s",
            report.loss,
            if report.aucs.is_empty() {
                String::new()
            } else {
                format!("  auc {}", format_tasks(&report.aucs))
            },
            report.samples_per_second
        );
        if let Some(bar) = &self.bar {
            bar.set_prefix(format!("epoch {}", report.cursor.epoch + 1));
            if let Some(rows) = report.epoch_rows {
                bar.set_length(rows);
            }
            bar.set_position(report.cursor.row);
            bar.set_message(message);
        } else if self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            let of = report.epoch_rows.map_or_else(String::new, |n| format!("/{n}"));
            let eta =
                report.eta.map_or_else(String::new, |t| format!("  eta {:.0} s", t.as_secs_f64()));
            self.print(&format!(
                "epoch {}  rows {}{of}  {message}{eta}",
                report.cursor.epoch + 1,
                report.cursor.row
            ));
        }
    }

    fn epoch(&mut self, report: &EpochReport) {
        self.print(&format_epoch(report));
    }

    fn note(&mut self, text: &str) {
        self.print(text);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn format_epoch(report: &EpochReport) -> String {
    let mut valid = report.valid.as_ref().map_or_else(String::new, format_validation);
    if let Some((metric, value)) = report.watched {
        add_watched(&mut valid, &metric.to_string(), value);
    }
    let regulariser = match report.regulariser {
        0.0 => String::new(),
        r => format!(" + {r:.5}"),
    };
    let mark = if report.is_best { "  best so far" } else { "" };
    format!(
        "epoch {} done  loss {:.5}{regulariser}{valid}  lr x {}  {:.1} s{mark}",
        report.epoch + 1,
        report.mean_loss,
        report.rate_scale,
        report.seconds
    )
}

/// Adds the metric that decides which epoch is the best to the figures of a validation, unless they
/// have it already.
fn add_watched(figures: &mut String, metric: &str, value: f64) {
    if !figures.contains(&format!(" {metric} ")) {
        figures.push_str(&format!("  {metric} {}", format_figure(Some(value))));
    }
}

fn format_validation(report: &EvalReport) -> String {
    let figures = |figure: fn(&TaskReport) -> Option<f64>, first: Option<f64>| {
        let tasks = report.tasks.iter().map(|(name, task)| (name.clone(), figure(task)));
        let tasks: Vec<_> = tasks.collect();
        if tasks.is_empty() { format_figure(first) } else { format_tasks(&tasks) }
    };
    let mut text = "  valid".to_owned();
    if report.logloss.is_some() {
        let (auc, logloss) =
            (figures(|task| task.auc, report.auc), figures(|task| task.logloss, report.logloss));
        text.push_str(&format!(" auc {auc}  logloss {logloss}"));
    }
    if report.first_task().numbers.is_some()
        || report.tasks.iter().any(|(_, t)| t.numbers.is_some())
    {
        let rmse = |task: &TaskReport| task.numbers.map(|numbers| numbers.rmse);
        text.push_str(&format!("  rmse {}", figures(rmse, rmse(&report.first_task()))));
    }
    for figure in &report.ranking {
        text.push_str(&format!("  {} {}", figure.name, format_figure(figure.value)));
    }
    text
}

/// Formats the figures of all tasks as text. If there is only one figure, its text has no name. If
/// there are several, the name of the task comes before each figure.
fn format_tasks(figures: &[(String, Option<f64>)]) -> String {
    match figures {
        [(_, only)] => format_figure(*only),
        _ => {
            let named =
                figures.iter().map(|(name, figure)| format!("{name} {}", format_figure(*figure)));
            named.collect::<Vec<_>>().join(" ")
        }
    }
}

fn format_figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.5}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watched_metric_is_among_the_figures_once() {
        let with = |metric: &str| {
            let mut figures = "  valid auc 0.70000  logloss 0.50000".to_owned();
            add_watched(&mut figures, metric, 0.25);
            figures
        };
        assert_eq!(with("auc"), "  valid auc 0.70000  logloss 0.50000");
        assert_eq!(with("logloss"), with("auc"));
        assert_eq!(with("pr_auc"), "  valid auc 0.70000  logloss 0.50000  pr_auc 0.25000");
    }
}
