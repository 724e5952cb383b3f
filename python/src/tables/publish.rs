//! The publication of tables with a dense model that was trained in Python.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::json;
use zillion_console::exit::usage_error;
use zillion_device::SystemClock;
use zillion_reader::Paths;
use zillion_registry::MAX_ONNX_BYTES;
use zillion_trainer::{
    DenseModel, ExpectedScores, Job, PublishConfig, Published, TablesPublisher, fill_params,
    make_run_id,
};

use super::state::State;

/// The environment variable with the file of the key that signs versions, as for a training.
const SIGN_KEY: &str = "ZILLION_SIGN_KEY";

/// The place and the manner of a publication.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wish {
    registry: String,
    model: String,
    /// The pointer that moves to the version; empty: none.
    promote: String,
    /// Whether the version has all rows.
    base: bool,
    /// The file with the rows for which the scores are given.
    sample: PathBuf,
    /// The number of these rows that the version keeps.
    sample_rows: usize,
    /// The largest difference between a score in Python and the served one, times the score if
    /// that is above 1.
    tolerance: f32,
    /// A folder for files that are not needed afterwards.
    scratch: PathBuf,
    /// The tasks whose scores are probabilities.
    probabilities: Vec<String>,
    /// The ONNX file that is the dense model; absent: the graph of the job.
    #[serde(default)]
    onnx: Option<PathBuf>,
}

/// A publisher that knows which rows its last version has.
pub(super) struct OpenPublisher {
    /// The job and the place, in which another publication must agree to use the publisher.
    key: String,
    publisher: TablesPublisher,
}

impl State {
    /// Publishes the tables as a version of `job`, whose dense parameters are `weights`. `scores`
    /// has the scores of the sample for each task.
    pub(super) fn publish(
        &mut self,
        mut job: Job,
        wish: &Wish,
        weights: &[(String, Vec<f32>)],
        scores: Vec<(String, Vec<f32>)>,
    ) -> Result<Published> {
        if self.job.ps.is_some() {
            return usage_error(
                "tables on servers are not published from Python; save them, and restore the \
                 folder into tables without `servers`",
            );
        }
        if !self.lookups.is_empty() {
            bail!("a step is not ended; call `step` or `discard` before the tables are published");
        }
        let names = |job: &Job| {
            job.tables.iter().map(|table| table.name.clone()).collect::<Vec<_>>().join(", ")
        };
        if names(&job) != names(&self.job) {
            return usage_error(format!(
                "the model reads the tables {}, but the tables are {}; make tables with those that \
                 the model reads",
                names(&job),
                names(&self.job)
            ));
        }
        if let Some((given, own)) = job.tables.iter().zip(&self.job.tables).find(|(a, b)| a != b) {
            return usage_error(format!(
                "the settings of the table `{}` are not those of the tables that trained \
                 ({given:?}, {own:?}); leave them out",
                own.name
            ));
        }
        let key = format!(
            "{}\n{}\n{}\n{}\n{}\n{}\n{}",
            wish.onnx.is_some(),
            wish.registry,
            wish.model,
            wish.promote,
            wish.sample_rows,
            wish.scratch.display(),
            job.in_force()?
        );
        job.data.valid = Paths(vec![wish.sample.to_string_lossy().into_owned()]);
        let params;
        let onnx;
        let dense = match &wish.onnx {
            None => {
                params = fill_params(&job, weights)?;
                DenseModel::Graph(&params)
            }
            Some(path) => {
                onnx = read_onnx(path)?;
                DenseModel::Onnx(&onnx)
            }
        };
        let run = self.run.get_or_insert_with(make_run_id).clone();
        let mut open = match self.open.take().filter(|open| open.key == key) {
            Some(mut open) => {
                open.publisher.use_parity_rows(&job, &wish.sample)?;
                open
            }
            None => OpenPublisher { key, publisher: self.open_publisher(&job, wish, &run)? },
        };
        let expected: Vec<ExpectedScores> = scores
            .into_iter()
            .map(|(task, scores)| {
                let are_probabilities = wish.probabilities.contains(&task);
                ExpectedScores { task, scores, are_probabilities }
            })
            .collect();
        let done = {
            let (step, tolerance) = (self.step, wish.tolerance);
            open.publisher.publish(
                step,
                self.client.as_mut(),
                dense,
                (&expected, tolerance),
                wish.base,
            )
        };
        let removed = match wish.scratch.exists() {
            true => self.files.remove_dir(&wish.scratch),
            false => Ok(()),
        };
        // A publisher whose publication has failed may not know the state of the registry.
        let published = done?;
        if let Err(error) = removed {
            tracing::warn!("the folder {} is not removed: {error}", wish.scratch.display());
        }
        self.open = Some(open);
        Ok(published)
    }

    fn open_publisher(&self, job: &Job, wish: &Wish, run: &str) -> Result<TablesPublisher> {
        let Some(parity_rows) = std::num::NonZeroUsize::new(wish.sample_rows) else {
            return usage_error("the sample has no rows; give at least one");
        };
        let sign = std::env::var_os(SIGN_KEY).filter(|path| !path.is_empty()).map(PathBuf::from);
        let config = PublishConfig {
            model: Some(wish.model.clone()),
            promote: wish.promote.clone(),
            parity_rows,
            sign,
            ..PublishConfig::new(&wish.registry)
        };
        let (workers, files) = (&self.workers, &self.files);
        let clock = Arc::new(SystemClock::new());
        let place = (job, &config);
        let has_onnx = wish.onnx.is_some();
        Ok(TablesPublisher::open(place, has_onnx, run, &wish.scratch, workers, files, clock)?)
    }
}

/// Reads an ONNX file, unless a server would not take one of its size.
fn read_onnx(path: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::metadata(path)
        .with_context(|| format!("the ONNX file {} cannot be read", path.display()))?
        .len();
    if bytes > MAX_ONNX_BYTES {
        bail!(
            "the dense model has {bytes} bytes as an ONNX file, but a server takes at most \
             {MAX_ONNX_BYTES}; export a smaller model"
        );
    }
    std::fs::read(path).with_context(|| format!("the ONNX file {} cannot be read", path.display()))
}

/// Returns the report of a publication as JSON, with the keys of `zillion publish`.
pub(super) fn format_report(published: &Published) -> String {
    let version = &published.version;
    json!({
        "model": version.model,
        "version": version.version,
        "parent": version.parent.as_ref().map(|parent| parent.version),
        "rows": version.layer.rows(),
        "step": version.origin.step,
        "moved": published.moved.is_some(),
        "was_there": published.was_there,
    })
    .to_string()
}

/// Returns floats that crossed the boundary as bytes.
pub(super) fn read_floats(named: Vec<(String, Vec<u8>)>) -> Result<Vec<(String, Vec<f32>)>> {
    let convert = |(name, bytes): (String, Vec<u8>)| {
        let (floats, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            bail!("`{name}` has {} bytes, which are no floats of 32 bits", bytes.len());
        }
        Ok((name, floats.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()))
    };
    named.into_iter().map(convert).collect()
}
