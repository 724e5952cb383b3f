//! The publication of a checkpoint by a command.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use zillion_device::{Clock, Files, Workers};
use zillion_nn::Mode;
use zillion_reader::SideTables;
use zillion_registry::Origin;

use super::checkpoint_rows::CheckpointRows;
use super::{AS_PUBLISHED, Opening, Published, Publisher, RoundingCost, RunId, Wish};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::job::{Job, PublishConfig};

/// The options of the publication of a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckpointWish {
    /// Whether the version must have all rows, even if a delta is possible.
    pub base: bool,
    /// The measured cost of the rounding, whose figures the version lists. Without it, the version
    /// lists the AUC that training measured before any rounding.
    pub rounding: Option<RoundingCost>,
}

/// Publishes a checkpoint as a version. `job` is the checkpoint's job, in which the caller may have
/// changed the place of the data.
///
/// # Errors
/// Returns an error if the checkpoint is damaged, if data is missing, or if the registry cannot be
/// written.
pub fn publish_checkpoint(
    checkpoint: &Checkpoint,
    job: &Job,
    config: &PublishConfig,
    wish: CheckpointWish,
    workers: &Arc<Workers>,
    files: &Files,
    clock: Arc<dyn Clock>,
) -> Result<Published> {
    let manifest = &checkpoint.manifest;
    let mut job = job.clone();
    config.set_rows(&mut job.tables)?;
    let job = &job;
    let run = RunId::of_checkpoint(checkpoint)?;
    let scratch = checkpoint.path().parent().unwrap_or(Path::new("."));
    let name = format!(".publish-{}", std::process::id());
    let scratch = scratch.join(name);
    let sides = SideTables::load(&job.data, &job.schema)?;
    let mut publisher = Publisher::open(Opening {
        job,
        config,
        run,
        run_folder: &scratch,
        newest: None,
        statistics: &manifest.statistics,
        sides: &sides,
        files,
        workers,
        clock,
        has_onnx: false,
        compacts: false,
    })?;
    let graph = job.graph(Mode::Infer)?;
    let params = checkpoint.params(&graph.params)?;
    let mut rows = CheckpointRows::new(checkpoint, job, workers);
    let best = manifest.progress.best.filter(|best| best.step == manifest.step);
    let measured = best.and_then(|best| best.valid_auc).map(|auc| ("valid_auc".to_owned(), auc));
    let mut metrics: BTreeMap<String, f64> = measured.into_iter().collect();
    if let Some(cost) = wish.rounding {
        metrics.insert("valid_auc".to_owned(), cost.whole);
        metrics.insert(AS_PUBLISHED.to_owned(), cost.rounded);
    }
    let origin = Origin {
        step: manifest.step,
        cursor: manifest.cursor,
        newest_event_ms: manifest.progress.newest_event_ms,
        metrics,
        lost_pushes: manifest.progress.lost_pushes,
        ..Origin::default()
    };
    let wish = Wish { base: wish.base, is_command: true, new_dense: true };
    let published = publisher.publish(origin, &mut rows, &params, wish);
    if scratch.exists() {
        files.remove_dir(&scratch)?;
    }
    published
}
