//! The rows of a checkpoint as a source of versions.

use std::path::Path;
use std::sync::Arc;

use zillion_device::{Files, Workers};
use zillion_ps::{Publishing, Since};
use zillion_rows::layer::{LayerManifest, Unthrottled, layer_of_checkpoint};
use zillion_rows::{PartSource, RowSource};

use crate::checkpoint::Checkpoint;
use crate::job::Job;

/// A source of a checkpoint's rows for a publisher.
pub(super) struct CheckpointRows<'a> {
    checkpoint: &'a Checkpoint,
    job: &'a Job,
    workers: &'a Arc<Workers>,
}

impl<'a> CheckpointRows<'a> {
    /// Creates the source of the rows of a checkpoint of a job.
    pub(super) fn new(checkpoint: &'a Checkpoint, job: &'a Job, workers: &'a Arc<Workers>) -> Self {
        Self { checkpoint, job, workers }
    }
}

impl Publishing for CheckpointRows<'_> {
    fn track_changes(&mut self, _: usize) -> zillion_ps::Result<()> {
        Ok(())
    }

    fn write_layer(
        &mut self,
        since: Since,
        folder: &Path,
        files: &Files,
    ) -> zillion_ps::Result<Option<LayerManifest>> {
        if let Since::Epoch(_) = since {
            // A checkpoint has no lists of changes.
            return Ok(None);
        }
        let Self { checkpoint, job, workers } = self;
        let (tables, parts) = (&job.tables, &checkpoint.manifest.tables);
        let (path, pace) = (checkpoint.path(), &mut Unthrottled);
        Ok(Some(layer_of_checkpoint(workers, path, tables, parts, files, folder, pace)?))
    }

    fn end_dirty_epoch(&mut self) -> zillion_ps::Result<u32> {
        let epochs = self.checkpoint.manifest.tables.iter().map(|table| table.dirty_epoch);
        Ok(epochs.max().unwrap_or(1))
    }

    fn row_source(&mut self) -> zillion_ps::Result<Box<dyn RowSource + '_>> {
        let (specs, parts) = (self.job.tables.clone(), &self.checkpoint.manifest.tables);
        Ok(Box::new(PartSource::open(self.workers, self.checkpoint.path(), specs, parts)?))
    }
}
