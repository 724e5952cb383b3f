//! The publication of tables that are trained outside of a run, with dense parameters that were
//! trained elsewhere too.

use std::path::Path;
use std::sync::Arc;

use zillion_device::{Clock, Files, Workers};
use zillion_feature::Statistics;
use zillion_nn::{Mode, Params};
use zillion_ps::Publishing;
use zillion_reader::SideTables;
use zillion_registry::Origin;

use super::{Opening, Published, Publisher, REMEMBERED, RunId, Wish};
use crate::error::{Error, Result};
use crate::job::{Job, PublishConfig};

/// The scores of one task for each parity row, as the dense model computed them where it was
/// trained.
#[derive(Clone, Debug)]
pub struct ExpectedScores {
    /// The name of the task.
    pub task: String,
    /// The scores, one for each parity row.
    pub scores: Vec<f32>,
    /// Whether they are probabilities. Otherwise they are compared with the log odds.
    pub are_probabilities: bool,
}

/// The dense model of a version.
#[derive(Clone, Copy, Debug)]
pub enum DenseModel<'a> {
    /// The parameters of the graph of the job.
    Graph(&'a Params),
    /// The bytes of an ONNX file.
    Onnx(&'a [u8]),
}

/// A publisher of versions of one job, whose rows come from tables and whose dense parameters the
/// caller gives.
///
/// The publisher remembers the versions that it has published, so the next one is a delta of rows
/// that the tables list as changed. A new publisher with the same run compares all rows.
pub struct TablesPublisher {
    publisher: Publisher,
    has_onnx: bool,
}

impl TablesPublisher {
    /// Opens a publisher. With `has_onnx`, the dense model of its versions is an ONNX file, and the
    /// model of the job is not used. The parity rows are the first rows of the job's validation
    /// files. `run` is the id of the tables, which their versions name as their origin. `scratch`
    /// is a folder for files that are not needed afterwards.
    ///
    /// # Errors
    /// Returns an error if the job has no parity rows, if a feature needs statistics of training
    /// data, or if the registry cannot be opened.
    pub fn open(
        (job, config): (&Job, &PublishConfig),
        has_onnx: bool,
        run: &str,
        scratch: &Path,
        workers: &Arc<Workers>,
        files: &Files,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let publisher = Publisher::open(Opening {
            job,
            config,
            run: RunId(run.to_owned()),
            run_folder: scratch,
            newest: None,
            statistics: &Statistics::default(),
            sides: &SideTables::load(&job.data, &job.schema)?,
            files,
            workers,
            clock,
            has_onnx,
            compacts: false,
        })?;
        Ok(Self { publisher, has_onnx })
    }

    /// Takes the parity rows of further versions from the first rows of a file. `job` is the job of
    /// the publisher.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn use_parity_rows(&mut self, job: &Job, file: &Path) -> Result<()> {
        self.publisher.use_parity_rows(&job.data, file)
    }

    /// Publishes the rows of tables after `step` steps with a dense model, and moves the pointer to
    /// the version. A score may differ from the expected one by `tolerance`, times the score if
    /// that is above 1.
    ///
    /// # Errors
    /// Returns an error, before anything is published, if a score of a parity row differs from the
    /// expected one, or if the dense model is not of the kind for which the publisher was opened.
    /// Returns an error if the registry cannot be written.
    pub fn publish(
        &mut self,
        step: u64,
        rows: &mut dyn Publishing,
        dense: DenseModel<'_>,
        (expected, tolerance): (&[ExpectedScores], f32),
        base: bool,
    ) -> Result<Published> {
        let none = Params::init(&[], 0);
        let params = match (dense, self.has_onnx) {
            (DenseModel::Graph(params), false) => params,
            (DenseModel::Onnx(bytes), true) => {
                self.publisher.set_onnx(bytes)?;
                &none
            }
            (_, has_onnx) => {
                let kind = if has_onnx { "an ONNX file" } else { "the parameters of a graph" };
                return Err(Error::Unsupported(format!(
                    "the publisher was opened for versions with {kind}; open another one"
                )));
            }
        };
        rows.track_changes(REMEMBERED)?;
        let found = self.publisher.score_parity_rows(rows, params)?;
        for expected in expected {
            let task = self.publisher.tasks().iter().position(|task| *task == expected.task);
            let logits = task.and_then(|at| found.logits.get(at));
            check_scores(expected, logits.map_or(&[], Vec::as_slice), tolerance)?;
        }
        let origin = Origin { step, ..Origin::default() };
        self.publisher.publish(
            origin,
            rows,
            params,
            Wish { base, is_command: true, new_dense: true },
        )
    }
}

/// Returns a new id for tables that are not those of a run in a folder.
pub fn make_run_id() -> String {
    RunId::make(b"tables").0
}

/// Returns the parameters of a job's model that scores rows, with the given values by name.
///
/// # Errors
/// Returns an error that names a parameter if it has no value, or a value of another size.
pub fn fill_params(job: &Job, values: &[(String, Vec<f32>)]) -> Result<Params> {
    let mut params = Params::init(&job.graph(Mode::Infer)?.params, job.seed);
    let wrong = |name: &str, problem: String| {
        Error::Unsupported(format!("the parameter `{name}` of the model {problem}"))
    };
    for (spec, into) in params.iter_mut() {
        let (rows, cols) = (spec.rows, spec.cols);
        let Some((name, value)) = values.iter().find(|(name, _)| *name == spec.name) else {
            return Err(wrong(&spec.name, format!("has no value; give {rows} × {cols} floats")));
        };
        if value.len() != into.len() {
            let found = value.len();
            let problem = format!("has {found} floats; give {rows} × {cols} of them");
            return Err(wrong(name, problem));
        }
        into.copy_from_slice(value);
    }
    match values.iter().find(|(name, _)| params.find(name).is_none()) {
        Some((name, _)) => {
            Err(wrong(name, "is not one of the model's graph; leave its value out".to_owned()))
        }
        None => Ok(params),
    }
}

/// Compares the log odds of the parity rows with the expected scores of a task.
fn check_scores(expected: &ExpectedScores, logits: &[f32], tolerance: f32) -> Result<()> {
    let ExpectedScores { task, scores, are_probabilities } = expected;
    if logits.len() != scores.len() {
        return Err(Error::Refused(format!(
            "the task `{task}` has {} scores for {} rows; give one for each of the first rows of \
             the sample",
            scores.len(),
            logits.len()
        )));
    }
    for (row, (&logit, &wanted)) in logits.iter().zip(scores).enumerate() {
        let found = match are_probabilities {
            true => (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32,
            false => logit,
        };
        let near = (found - wanted).abs() <= tolerance * wanted.abs().max(1.0);
        // A number that is not finite is never near.
        if !near {
            return Err(Error::Refused(format!(
                "the score of `{task}` for row {} of the sample is {found} as it would be served, \
                 and {wanted} where it was trained; nothing is published. The model may depend on \
                 other rows, on the order of rows or on values that are not features; report it \
                 with the model if it does not",
                row + 1
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_compared_with_what_was_trained() {
        let expect = |scores: &[f32], are_probabilities| ExpectedScores {
            task: "click".to_owned(),
            scores: scores.to_vec(),
            are_probabilities,
        };
        let check = |expected: ExpectedScores, logits: &[f32]| {
            check_scores(&expected, logits, 1e-5).map_err(|error| error.to_string())
        };
        assert_eq!(check(expect(&[0.5, 100.0], false), &[0.500_009, 100.0009]), Ok(()));
        assert_eq!(check(expect(&[0.5, 0.880_797], true), &[0.0, 2.0]), Ok(()));
        let error = check(expect(&[0.0, 1.0], false), &[0.0, 1.1]).unwrap_err();
        assert!(error.contains("`click` for row 2") && error.contains("is 1.1"), "{error}");
        let error = check(expect(&[f32::NAN], false), &[f32::NAN]).unwrap_err();
        assert!(error.contains("nothing is published"), "{error}");
        let error = check(expect(&[0.0], false), &[]).unwrap_err();
        assert!(error.contains("has 1 scores for 0 rows"), "{error}");
    }
}
