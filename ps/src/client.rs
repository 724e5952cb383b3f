//! The trainer's contract with its tables, wherever they are.

use std::path::Path;
use std::sync::Arc;

use zillion_device::Files;
use zillion_embedding::{Adopted, Counters, Rates, SnapshotMark, TableStatistics};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId};
use zillion_rows::layer::{LayerManifest, WholeRow};
use zillion_rows::{LookupReport, TableLayout, TableParts};

use crate::error::Result;
use crate::pending::Pending;

/// Tables as training sees them.
///
/// # A step
/// Without clipping: `begin_step`, `pull`, `push(Apply)`, and `sweep`, which ends the step (it may be left
/// out where no table has a whole-table rule and none evicts). With clipping: `begin_step`, `pull`, `push(Stage)`,
/// `grad_sq_norm`, then `apply` with the factor, or `discard` to skip the step. A call out of order is
/// refused with [`Error::Order`](crate::Error::Order) and changes nothing.
///
/// Rows that a table's eviction takes go at the end of the step, in `sweep` or `apply`, behind everything else that
/// it does. No row goes between a pull and the push of the same step, and a step that is
/// discarded takes no row.
///
/// # The caller must
/// * sum the gradients of a row over its occurrences before the push, in a fixed order: one push a step;
/// * push gradients in the plan's shape: a row a unique key at the layout's stride. What stands in the
///   padding after the last segment is ignored;
/// * say with the gradients what each row was used for (`TableRows::uses`) where its table keeps statistics of use,
///   and only there.
///
/// # The implementer must
/// * return the same bits for any number of shards, threads and servers;
/// * never insert on a read: an unknown key pulls as its seeded initial row, and the push creates it, or
///   refuses it in a table with a fixed vocabulary or at its limit, or counts it where keys are admitted by
///   their count; of a step's new keys those get the last room that come first in the plan;
/// * drop a gradient row that is not finite and apply all others;
/// * count everything that is missing, waiting, refused, dropped or evicted.
///
/// [`conformance::run`](crate::conformance::run) tests all of it.
pub trait TrainClient: Send {
    /// The layouts of the tables' rows. A plan's table ids are positions here.
    fn layouts(&self) -> &[TableLayout];

    /// Begins a step: above the last one that was applied, from 1.
    ///
    /// # Errors
    /// [`Error::Order`](crate::Error::Order) while gradients of the step before wait to be applied.
    fn begin_step(&mut self, step: Step, rates: Rates) -> Result<()>;

    /// Whether [`TrainClient::look_ahead`] does anything.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// Says which plans will be pulled after those that were announced before, so that rows that lie on disk are
    /// on their way when they are needed. Waits for nothing and changes no result.
    ///
    /// # Errors
    /// For a plan that is not for these tables.
    fn look_ahead(&mut self, plans: &[&LookupPlan]) -> Result<()> {
        let _ = plans;
        Ok(())
    }

    /// Reads the plan's rows into `buffer`, whose memory is reused.
    ///
    /// # Errors
    /// Outside of a step, after its push, or for a plan that is not for these tables.
    fn pull(
        &mut self,
        plan: &Arc<LookupPlan>,
        want: Want,
        buffer: RowBuffer,
    ) -> Result<Pending<RowBuffer>>;

    /// Hands over the step's gradients. The answer is a buffer to fill next: this one in
    /// [`PushMode::Apply`]; in [`PushMode::Stage`], where this one is kept, the one kept before.
    ///
    /// # Errors
    /// Outside of a step, a second time in a step, or for gradients that do not fit the plan.
    fn push(
        &mut self,
        plan: &Arc<LookupPlan>,
        gradients: RowBuffer,
        mode: PushMode,
    ) -> Result<Pending<RowBuffer>>;

    /// The squared norm of the staged gradients, the regulariser's gradients included: over the whole
    /// table where its rules are, else over the rows of the plan.
    ///
    /// # Errors
    /// Without staged gradients.
    fn grad_sq_norm(&mut self) -> Result<f64>;

    /// The regulariser's loss, `(l2 / 2) * |w|^2` with the weights as they are: over the whole table where
    /// the regulariser is, else over the rows of the plan.
    ///
    /// # Errors
    /// For a plan that is not for these tables.
    fn regulariser_loss(&mut self, plan: &LookupPlan) -> Result<f64>;

    /// Applies the staged gradients and the whole-table rules: `g' = (g + l2 * w) * scale`. Ends the step.
    ///
    /// # Errors
    /// Without staged gradients, or for a factor that is not finite or is negative.
    fn apply(&mut self, scale: f32) -> Result<StepReport>;

    /// Applies the whole-table rules after `push(Apply)`, and says what the step did. Ends the step.
    ///
    /// # Errors
    /// Where nothing was pushed.
    fn sweep(&mut self) -> Result<StepReport>;

    /// Drops the staged gradients, if any: the step is skipped.
    ///
    /// # Errors
    /// After `push(Apply)`, which cannot be undone.
    fn discard(&mut self) -> Result<()>;

    /// Reads rows as evaluation does: an unknown key reads as its table declares, and nothing is counted
    /// as training.
    ///
    /// # Errors
    /// While gradients wait to be applied, or for a plan that is not for these tables.
    fn lookup(
        &mut self,
        plan: &LookupPlan,
        buffer: RowBuffer,
    ) -> Result<Pending<(RowBuffer, LookupReport)>>;

    /// Fills a dense table with its vocabulary, sorted by key and without duplicates. Keys that are there
    /// stay as they are. Returns the number of rows that were added.
    ///
    /// # Errors
    /// While gradients wait to be applied; for a dynamic table; for more rows than the table may have.
    fn prefill(&mut self, table: TableId, keys: &[FeatureKey]) -> Result<u64>;

    /// Takes the rows of a version's table over as the beginning of new training: weights and counts, segments
    /// by name; optimizers begin anew. Rows come in key order, with their layout in the version. A table with a
    /// fixed vocabulary takes those that it has.
    ///
    /// # Errors
    /// While gradients wait to be applied; for segments of other lengths; for more rows than the table may have.
    fn adopt<'a>(
        &mut self,
        table: TableId,
        from: &TableLayout,
        rows: &mut dyn Iterator<Item = (FeatureKey, WholeRow<'a>)>,
    ) -> Result<Adopted>;

    /// Writes every table below `folder` and returns what the manifest must keep.
    ///
    /// # Errors
    /// While gradients wait to be applied or another checkpoint is written, or where the disk refuses.
    fn checkpoint(&mut self, folder: &Path, files: &Files) -> Result<Vec<TableParts>> {
        let ticket = self.begin_checkpoint(folder, files)?;
        self.finish_checkpoint(ticket)
    }

    /// Begins a checkpoint of the tables as they are now, below `folder`, and copies nothing yet: steps go on,
    /// and write some of it each. What they compute does not depend on it.
    ///
    /// # Errors
    /// While gradients wait to be applied or another checkpoint is written, or where the disk refuses.
    fn begin_checkpoint(&mut self, folder: &Path, files: &Files) -> Result<CheckpointTicket>;

    /// Remembers from now on what [`TrainClient::begin_changes`] needs. Costs memory by the keys that go.
    ///
    /// # Errors
    /// While gradients wait to be applied.
    fn follow_checkpoints(&mut self) -> Result<()>;

    /// The mark of the last checkpoint that was finished or restored. `None` where there is none since
    /// [`TrainClient::follow_checkpoints`].
    fn checkpoint_mark(&mut self) -> Option<SnapshotMark>;

    /// Begins a checkpoint like [`TrainClient::begin_checkpoint`] that holds, of tables without whole-table rules
    /// whose rows do not grow, only the rows that changed and the keys that went since another one. What its entries stand on is for the
    /// caller to say ([`TableParts::stand_on`]) before it is restored.
    ///
    /// `since` is the mark of one of the last two checkpoints that were finished or restored: files that were
    /// finished may yet be lost before they have their name, and the next ones then stand on those before.
    ///
    /// # Errors
    /// As [`TrainClient::begin_checkpoint`]; for any other mark.
    fn begin_changes(
        &mut self,
        folder: &Path,
        files: &Files,
        since: SnapshotMark,
    ) -> Result<CheckpointTicket>;

    /// Writes a little of a checkpoint, without waiting for the disk, and says whether
    /// [`TrainClient::finish_checkpoint`] would not have to wait: all is written, or something failed.
    ///
    /// # Errors
    /// Where the checkpoint was given up, by a restore for example.
    fn poll_checkpoint(&mut self, ticket: &CheckpointTicket) -> Result<bool>;

    /// Writes what is left of a checkpoint and returns what the manifest must keep: the files, to the byte, that
    /// [`TrainClient::checkpoint`] would have written instead of the beginning. May come at any moment.
    ///
    /// # Errors
    /// Where the disk refused at any time since the beginning; where the checkpoint was given up.
    fn finish_checkpoint(&mut self, ticket: CheckpointTicket) -> Result<Vec<TableParts>>;

    /// Gives a checkpoint up. Nothing is written any more when this returns; what is there is left to whoever
    /// staged the folder.
    fn abandon_checkpoint(&mut self, ticket: CheckpointTicket);

    /// Replaces all rows by those of a checkpoint (and of those that it stands on, where its entries say so), and gives
    /// one up that is being written. Any step may begin next. Changes that were tracked are
    /// forgotten; the dirty epoch is the checkpoint's, and once it has ended, deltas since then can be written.
    ///
    /// # Errors
    /// While gradients wait to be applied; names the file that is not as it should be. The tables are
    /// then as they were.
    fn restore(&mut self, folder: &Path, parts: &[TableParts]) -> Result<()>;

    /// Begins to list the keys whose rows change, by dirty epoch, so that [`TrainClient::write_layer`] knows
    /// what changed since the end of the current epoch. The lists of `epochs` past epochs are kept, fewer
    /// where they would hold more keys than the table has rows.
    ///
    /// # Errors
    /// While gradients wait to be applied.
    fn track_changes(&mut self, epochs: usize) -> Result<()>;

    /// Writes the files of a layer into `folder`, which exists: all rows as they are, or those that changed.
    /// The epoch goes on: whoever publishes the layer ends it, before the next step, and keeps the number for the
    /// next delta. `None` where what changed since then is not known any more, or never was: publish a base,
    /// or compare (`zillion_rows::layer::difference`).
    ///
    /// # Errors
    /// While gradients wait to be applied; for an epoch that has not ended; where the disk refuses.
    fn write_layer(
        &mut self,
        since: Since,
        folder: &Path,
        files: &Files,
    ) -> Result<Option<LayerManifest>>;

    /// Ends the dirty epoch and returns its number, which is above those before: rows that change from now
    /// on belong to the delta since then.
    ///
    /// # Errors
    /// While gradients wait to be applied.
    fn end_dirty_epoch(&mut self) -> Result<u32>;

    /// What the tables hold and what happened to them.
    ///
    /// # Errors
    /// Where a server cannot be reached.
    fn stats(&mut self) -> Result<Vec<TableStatistics>>;
}

/// A checkpoint that has begun; one at a time.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a checkpoint that has begun is finished or given up"]
pub struct CheckpointTicket(u64);

impl CheckpointTicket {
    /// The ticket of a client's checkpoint of this number, which it gives once.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub fn number(&self) -> u64 {
        self.0
    }
}

/// What a pull reads beside the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// How often each row has been pushed.
    pub counts: bool,
}

/// What becomes of pushed gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushMode {
    /// They are applied in one pass with the lookup (by [`TrainClient::sweep`] in tables with whole-table
    /// rules).
    Apply,
    /// They are kept until [`TrainClient::apply`], which clips them.
    Stage,
}

/// What a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// All rows.
    Base,
    /// The rows that changed after an epoch, which [`TrainClient::end_dirty_epoch`] has ended.
    Epoch(u32),
}

/// What one step did to the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Rows that had a gradient.
    pub pushed: u64,
    /// Rows that were created.
    pub created: u64,
    /// Gradients that were dropped because their keys are not admitted yet.
    pub waiting: u64,
    /// Rows that went: on schedule, or to make room.
    pub evicted: u64,
    /// Gradients for keys outside of a fixed vocabulary.
    pub refused: u64,
    /// Gradients for new keys that a table at its limit has no room for.
    pub refused_full: u64,
    /// Gradients that were dropped because they were not finite.
    pub nonfinite: u64,
}

impl From<Counters> for StepReport {
    fn from(counted: Counters) -> Self {
        Self {
            pushed: counted.pushed,
            created: counted.created,
            waiting: counted.waiting,
            evicted: counted.evicted,
            refused: counted.refused,
            refused_full: counted.refused_full,
            nonfinite: counted.nonfinite,
        }
    }
}
