//! The checkpoints of a run: begins them, continues them between steps, and ends them.
//!
//! # Invariants
//! * At most one checkpoint is open. It holds the state after the step at which it began. The
//!   results of training do not depend on the open checkpoint: if the run is killed before the
//!   checkpoint is complete, the run resumes from the previous checkpoint and computes the same
//!   steps again.
//! * The parent of a checkpoint of changes is the last complete checkpoint. So the checkpoints on
//!   disk are always a chain. The interval of whole checkpoints is counted along this chain, also
//!   in a resumed run.

use std::time::Instant;

use zillion_feature::HASH_ID;
use zillion_ps::TrainClient;

use super::Run;
use super::output::{Output, kept_steps};
use super::position::Position;
use crate::checkpoint::{Checkpoint, FileDigest, Link, Manifest, Retention, Writing, Written};
use crate::error::{Error, Result};
use crate::observer::{CheckpointReport, Observer};
use crate::online::{newest_link, pinned_steps, renew};
use crate::profile::Stage;
use crate::trace_span::span;

/// The number of checkpoints in a row that cannot be written, after which a run over servers ends.
const MOST_FAILED: u32 = 3;

/// A checkpoint that is being written.
#[derive(Debug)]
pub(super) struct Saving {
    writing: Writing,
    /// The number of steps done when the checkpoint began.
    step: u64,
    began: Instant,
    /// The number of checkpoints below this one in its chain.
    behind: usize,
}

/// The rows of the tables that a checkpoint holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// The checkpoint holds all rows of the tables.
    Whole,
    /// The checkpoint holds only the rows that changed since the last checkpoint, if
    /// `train.full_every` allows this.
    Changes,
}

impl Saving {
    /// Abandons the checkpoint: stops writing and removes its folder.
    pub(super) fn abandon(self, client: &mut dyn TrainClient) {
        self.writing.abandon(client);
    }
}

impl Run {
    /// Begins a checkpoint of the present state, after the open checkpoint has ended.
    fn begin_checkpoint(&mut self, extent: Extent, observer: &mut dyn Observer) -> Result<()> {
        self.finish_checkpoint(observer)?;
        let Position { step, cursor, .. } = self.position;
        let newest = self.output.checkpointed.filter(|(newest, _)| *newest == step);
        let is_written = newest.is_some();
        if !self.options.trainer.is_first() {
            return Ok(());
        }
        // A checkpoint of the last step of an epoch does not hold the end of the epoch.
        let is_older = newest.is_some_and(|(_, there)| there.epoch < cursor.epoch);
        if is_older && self.output.stream.is_none() && self.output.bucket.is_none() {
            self.options.files.remove_dir(&self.output.dir.checkpoint_path(step)?)?;
            self.output.checkpointed = None;
            self.output.link = None;
        } else if is_written {
            return self.renew_checkpoint(observer);
        }
        self.stage(Stage::Checkpoint, |run| run.stage_checkpoint(extent))?;
        // If no part of the checkpoint is written in the background, all rows that change before
        // its end would be kept twice.
        if !self.client.writes_beside_steps() {
            return self.finish_checkpoint(observer);
        }
        Ok(())
    }

    /// Makes the present state of the feed that of the newest checkpoint, which has the present
    /// model. A run over files has no such state, and nothing happens.
    fn renew_checkpoint(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let (Some(link), began) = (self.output.stream.clone(), Instant::now()) else {
            return Ok(());
        };
        let Output { dir, .. } = &self.output;
        let checkpoint = Checkpoint::open(dir.checkpoint_path(self.position.step)?)?;
        if newest_link(dir.path(), &checkpoint)?.as_ref() == Some(&link) {
            return Ok(());
        }
        let bytes = renew(&self.options.files, dir.path(), &checkpoint, &link)?;
        let (step, seconds) = (self.position.step, began.elapsed().as_secs_f64());
        observer.report_checkpoint(&CheckpointReport { step, seconds, bytes });
        Ok(())
    }

    /// Copies everything except the tables, and begins the checkpoint of the tables.
    fn stage_checkpoint(&mut self, extent: Extent) -> Result<()> {
        let _span = span!("checkpoint", step = self.position.step).entered();
        let began = Instant::now();
        self.model.settle()?;
        self.data.save_rejects(&self.options.files)?;
        let most = self.job.train.full_every.get();
        let below = self.output.link.clone().filter(|_| extent == Extent::Changes);
        let below = below.filter(|below| below.behind + 1 < most);
        let (since, behind) =
            below.as_ref().map_or((None, 0), |b| (Some(b.mark.clone()), b.behind + 1));
        let Position { step, cursor, progress } = &self.position;
        let (step, cursor, progress) = (*step, *cursor, progress.clone());
        let manifest = Manifest {
            hash: HASH_ID.to_owned(),
            step,
            parent: below.map(|below| below.parent),
            cursor,
            progress,
            statistics: self.data.statistics.clone(),
            dense: FileDigest::default(),
            frequencies: None,
            tables: Vec::new(),
            files: self.data.files.clone(),
            stream: self.output.stream.clone(),
            products: self.model.product_choice(),
            job: self.job.portable()?,
        };
        let Output { dir, stream, .. } = &self.output;
        let pinned = pinned_steps(dir, self.position.progress.best, stream.as_ref())?;
        let retention = Retention {
            dir: self.output.dir.clone(),
            keep: self.job.train.keep.get(),
            pinned,
            files: self.options.files.clone(),
            bucket: self.output.bucket.clone(),
        };
        let writing = Writing::begin(
            self.client.as_mut(),
            since.as_ref(),
            (&self.model.params, &self.model.optimizer, self.model.average.as_ref()),
            self.data.frequencies.as_ref(),
            manifest,
            retention,
        )?;
        self.output.checkpointed = Some((step, cursor));
        self.output.saving = Some(Saving { writing, step, began, behind });
        Ok(())
    }

    /// Continues the open checkpoint between two steps, if there is one.
    fn advance_checkpoint(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let Some(saving) = self.output.saving.take() else { return Ok(()) };
        let (writing, is_done) = self.stage(Stage::Checkpoint, |run| {
            saving.writing.poll(run.client.as_mut(), &run.options.workers)
        })?;
        self.output.saving = Some(Saving { writing, ..saving });
        match is_done {
            true => self.finish_checkpoint(observer),
            false => Ok(()),
        }
    }

    /// Waits for the end of the open checkpoint, if there is one, and reports it.
    pub(super) fn finish_checkpoint(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let Some(Saving { writing, step, began, behind }) = self.output.saving.take() else {
            return Ok(());
        };
        let written = self.stage(Stage::Checkpoint, |run| writing.finish(run.client.as_mut()))?;
        let Written { bytes, folder, blake3, mark } = written;
        self.output.failed = 0;
        self.output.link = mark.map(|mark| Link::new(&folder, blake3, mark, behind));
        match kept_steps(&self.output.dir, self.output.bucket.as_ref()) {
            Ok(kept) => self.client.record_checkpoint(&kept)?,
            // The checkpoint is complete. Only the list for operators is older.
            Err(error) => tracing::warn!("the checkpoints of the run cannot be listed: {error}"),
        }
        let seconds = began.elapsed().as_secs_f64();
        observer.report_checkpoint(&CheckpointReport { step, seconds, bytes });
        self.report_figures(None, observer)
    }

    /// Begins the checkpoint that is due between two steps, and continues the open one. If servers
    /// hold the tables, a checkpoint that cannot be written does not end the run, because servers
    /// and stores have failures of their own: the next checkpoint is whole. The run ends after
    /// several failures in a row.
    pub(super) fn checkpoint_between_steps(
        &mut self,
        is_due: bool,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let begun = match is_due {
            true => self.begin_checkpoint(Extent::Changes, observer),
            false => Ok(()),
        };
        let Err(error) = begun.and_then(|()| self.advance_checkpoint(observer)) else {
            return Ok(());
        };
        self.output.failed += 1;
        let is_last = self.output.failed >= MOST_FAILED;
        let is_superseded =
            matches!(&error, Error::ParameterService(zillion_ps::Error::Superseded { .. }));
        if self.job.ps.is_none() || error.rewound().is_some() || is_superseded || is_last {
            return Err(error);
        }
        self.output.checkpointed = None;
        self.output.link = None;
        observer.note(&format!(
            "a checkpoint is not written, but training goes on and the next one is whole: {error}"
        ));
        Ok(())
    }

    /// Writes a whole checkpoint of the present state, and waits for its end.
    pub(super) fn checkpoint(&mut self, observer: &mut dyn Observer) -> Result<()> {
        self.begin_checkpoint(Extent::Whole, observer)?;
        self.finish_checkpoint(observer)
    }

    /// Finishes the open checkpoint of a run that ends, even if `outcome` is an error, because the
    /// checkpoint is valid.
    pub(super) fn finish_checkpoint_after<T>(
        &mut self,
        outcome: Result<T>,
        observer: &mut dyn Observer,
    ) -> Result<T> {
        let saved = self.finish_checkpoint(observer);
        let outcome = outcome?;
        saved.map(|()| outcome)
    }
}

impl Drop for Run {
    /// Abandons the open checkpoint, so that no task writes into its folder while it is removed.
    fn drop(&mut self) {
        if let Some(saving) = self.output.saving.take() {
            saving.abandon(self.client.as_mut());
        }
    }
}
