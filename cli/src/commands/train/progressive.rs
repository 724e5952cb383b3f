//! `zillion train --progressive`: scores the training files slice by slice of event time, and
//! learns from each slice after it was scored.
//!
//! Rows have no effect on the scores of earlier ones, so the table shows how a model that
//! is trained on does on the rows of tomorrow. Statistics and vocabularies come from all rows. The
//! command writes no checkpoint: its run lies in a temporary folder.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use zillion_console::exit::usage_error;
use zillion_console::progress::Progress;
use zillion_console::{compute_pool, durable_files, print_result};
use zillion_nn::metrics::{Evaluation, Scores};
use zillion_reader::Paths;
use zillion_trainer::{Job, OutputBias, TimedScores, TrainOptions, TrainerPlace, test_then_train};

use crate::args::TrainArgs;
use crate::moment::Moment;
use crate::text::{self, figure, grouped};

/// The figures of a slice, or of all slices after the first one.
#[derive(Debug, Serialize)]
struct Slice {
    /// The begin of the slice in milliseconds since 1970; absent for all slices.
    #[serde(skip_serializing_if = "Option::is_none")]
    begin_ms: Option<u64>,
    rows: u64,
    positives: u64,
    auc: Option<f64>,
    logloss: Option<f64>,
    calibration: Option<f64>,
}

/// The outcome of the command.
#[derive(Debug, Serialize)]
struct Outcome {
    slices: Vec<Slice>,
    /// The figures of all rows after the first slice, which an untrained model has scored.
    later: Slice,
}

pub(super) fn run(args: &TrainArgs, mut job: Job, span: Duration) -> Result<()> {
    if job.train.epochs > 1 {
        eprintln!("each row is learned from once: `train.epochs` has no effect here");
    }
    if job.ps.is_some() {
        return usage_error(
            "--progressive trains in this process, but the job has `[ps]`; remove the section",
        );
    }
    let labels = &job.schema.labels;
    if labels.len() != 1 || !labels[0].kind.is_binary() {
        return usage_error(
            "--progressive compares the probabilities of one label of 0 and 1; leave the other \
             labels out of the job, or name later rows as `data.valid`",
        );
    }
    if job.data.negatives.take().is_some() | job.data.sample.take().is_some() {
        eprintln!("each row is scored: `data.negatives` and `data.sample` have no effect here");
    }
    // The mean of all labels would tell the first slices about later ones.
    if job.schema.labels[0].mean.is_none() {
        job.train.output_bias = OutputBias::Zero;
    }
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    job.run.output = Some(folder.path().join("run"));
    job.publish = None;
    job.data.valid = job.data.train.clone();
    job.data.test = Paths::default();
    let options = TrainOptions {
        resume: false,
        overwrite: false,
        from: args.from.clone(),
        workers: compute_pool(job.run.threads)?,
        files: durable_files()?.scratch(),
        // Nothing is kept, so that a signal may end the process at once.
        stop: Arc::default(),
        profile: None,
        in_memory: false,
        trainer: TrainerPlace::ALONE,
    };
    let mut slices = Slices::new(span);
    let mut failed = None;
    let passed = test_then_train(job, options, Some(span), &mut Progress::new(), &mut |rows| {
        if failed.is_none() {
            failed = slices.push(rows).err();
        }
    });
    passed.context("--progressive reads the training files by their event time")?;
    if let Some(error) = failed {
        return Err(error);
    }
    print_result(args.json, &slices.finish()?, show)
}

/// The slices of a run: the closed ones, the open one, and the sum of all after the first.
struct Slices {
    span: u64,
    closed: Vec<Slice>,
    open: Option<(u64, Evaluation)>,
    later: Evaluation,
}

impl Slices {
    fn new(span: Duration) -> Self {
        let span = span.as_millis().max(1) as u64;
        Self { span, closed: Vec::new(), open: None, later: Evaluation::new() }
    }

    /// Adds rows, which belong to one slice.
    fn push(&mut self, rows: &TimedScores<'_>) -> Result<()> {
        let Some(&time) = rows.times.first() else { return Ok(()) };
        let begin = u64::try_from(time).unwrap_or_default() / self.span * self.span;
        if self.open.as_ref().is_some_and(|(open, _)| *open != begin) {
            self.close()?;
        }
        let (_, evaluation) = self.open.get_or_insert_with(|| (begin, Evaluation::new()));
        evaluation.push(Scores::Logits(rows.logits), rows.labels, None, None)?;
        if !self.closed.is_empty() {
            self.later.push(Scores::Logits(rows.logits), rows.labels, None, None)?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        if let Some((begin, evaluation)) = self.open.take() {
            self.closed.push(judge(Some(begin), evaluation)?);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Outcome> {
        self.close()?;
        Ok(Outcome { slices: self.closed, later: judge(None, self.later)? })
    }
}

fn judge(begin_ms: Option<u64>, evaluation: Evaluation) -> Result<Slice> {
    let report = evaluation.finish()?;
    Ok(Slice {
        begin_ms,
        rows: report.rows,
        positives: report.positives,
        auc: report.auc,
        logloss: report.logloss,
        calibration: report.calibration,
    })
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(outcome: &Outcome) {
    let heads = ["slice from", "rows", "positives", "auc", "logloss", "calibration"];
    let line = |slice: &Slice| {
        let name = slice.begin_ms.map(|begin| Moment(begin).to_string());
        vec![
            name.unwrap_or_else(|| "all after the first".to_owned()),
            grouped(slice.rows),
            grouped(slice.positives),
            figure(slice.auc, 5),
            figure(slice.logloss, 5),
            figure(slice.calibration, 3),
        ]
    };
    let lines = outcome.slices.iter().chain(std::iter::once(&outcome.later)).map(line);
    print!("{}", text::table(&heads, lines, 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_belong_to_the_slice_of_their_time() {
        let hour = 3_600_000i64;
        let mut slices = Slices::new(Duration::from_secs(3600));
        for (time, labels) in [(0, [0.0, 1.0]), (5, [1.0, 0.0]), (hour, [0.0, 1.0])] {
            let (times, logits) = ([time, time + 1], [-1.0, 1.0]);
            let rows =
                TimedScores { times: &times, labels: &labels, logits: &logits, is_test: false };
            slices.push(&rows).expect("labels of 0 and 1");
        }
        let outcome = slices.finish().expect("figures");
        let begins: Vec<_> =
            outcome.slices.iter().map(|slice| (slice.begin_ms, slice.rows)).collect();
        assert_eq!(begins, [(Some(0), 4), (Some(3_600_000), 2)]);
        assert_eq!((outcome.slices[0].auc, outcome.slices[1].auc), (Some(0.5), Some(1.0)));
        assert_eq!((outcome.later.rows, outcome.later.auc), (2, Some(1.0)));
    }
}
