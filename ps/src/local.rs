//! The tables in this process, worked on by its one pool.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use zillion_device::{Files, Workers};
use zillion_embedding::{
    Adopted, Counters, Rates, SnapshotMark, SpillHome, TableSet, TableStatistics, Update,
};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId};
use zillion_rows::layer::{AtOnce, LayerManifest, WholeRow};
use zillion_rows::{LookupReport, TableLayout, TableParts, TableSpec};

use crate::client::{CheckpointTicket, PushMode, Since, StepReport, TrainClient, Want};
use crate::error::{Error, Result};
use crate::order::StepOrder;
use crate::pending::Pending;

/// Rows of an open checkpoint that are copied at the end of a step or by a poll, at least: so that small steps
/// get through it.
const COPIED_ROWS: usize = 64;

/// Of the rows that a step pushes, the part that is copied at its end. A push that keeps the images of its rows
/// and writing the parts take their time too: most of it stays with training.
const COPIED_PART: u64 = 12;

/// The same of a poll. Who polls between steps has something else to do in them, beside which a copy is little.
const POLLED_PART: u64 = 2;

/// [`TrainClient`] over tables in this process.
///
/// # Concurrency
/// Calls run to their end on the calling thread and the pool's: every [`Pending`] is ready.
#[derive(Debug)]
pub struct LocalClient {
    tables: TableSet,
    workers: Arc<Workers>,
    order: StepOrder,
    rates: Rates,
    /// The plan and the gradients of a push with `Stage`.
    staged: Option<Staged>,
    /// A buffer that the next push with `Stage` gives back.
    spare: RowBuffer,
    /// What the step has done so far.
    counted: Counters,
    /// The error that left the tables half updated.
    broken: Option<String>,
    /// Checkpoints that have begun so far.
    checkpoints: u64,
    /// Whether the last one is still open.
    is_open: bool,
}

#[derive(Debug)]
struct Staged {
    plan: Arc<LookupPlan>,
    gradients: RowBuffer,
}

impl LocalClient {
    /// Empty tables.
    ///
    /// # Errors
    /// Where a spec is not valid.
    pub fn new(specs: Vec<TableSpec>, shards: NonZeroUsize, workers: Arc<Workers>) -> Result<Self> {
        Ok(Self::over(TableSet::new(specs, shards)?, workers))
    }

    /// These tables.
    pub fn over(tables: TableSet, workers: Arc<Workers>) -> Self {
        Self {
            tables,
            workers,
            order: StepOrder::default(),
            rates: Rates::default(),
            staged: None,
            spare: RowBuffer::default(),
            counted: Counters::default(),
            broken: None,
            checkpoints: 0,
            is_open: false,
        }
    }

    /// The tables, to read.
    pub fn tables(&self) -> &TableSet {
        &self.tables
    }

    /// Lets the rows of a table leave memory: [`TableSet::spill`].
    ///
    /// # Errors
    /// Where the table cannot, the memory holds no row, or the disk refuses.
    pub fn spill(&mut self, table: TableId, memory: u64, home: &SpillHome) -> Result<()> {
        Ok(self.tables.spill(table, memory, home)?)
    }

    fn update(&self, scale: f32) -> Update {
        Update { step: self.order.step(), rates: self.rates, scale }
    }

    fn check_whole(&self) -> Result<()> {
        match &self.broken {
            Some(cause) => Err(Error::Broken { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses a checkpoint where none may begin.
    fn allow_checkpoint(&self, call: &'static str) -> Result<()> {
        self.check_whole()?;
        self.order.nothing_waits(call)?;
        if self.is_open {
            return Err(Error::Order {
                call,
                moment: format!("while checkpoint {} is written", self.checkpoints),
                remedy: "call `finish_checkpoint` or `abandon_checkpoint` first",
            });
        }
        Ok(())
    }

    /// The ticket of a checkpoint that has just begun.
    fn ticket(&mut self) -> CheckpointTicket {
        self.checkpoints += 1;
        self.is_open = true;
        CheckpointTicket::new(self.checkpoints)
    }

    /// Ends a step: an open checkpoint goes on.
    fn end_step(&mut self) {
        self.order.ended();
        self.copy_on(COPIED_PART);
    }

    /// Goes on with an open checkpoint by a part of the rows that the step has pushed.
    fn copy_on(&mut self, part: u64) {
        let rows = usize::try_from(self.counted.pushed / part).unwrap_or(usize::MAX);
        self.tables.advance_snapshot(&self.workers, rows.max(COPIED_ROWS));
    }

    /// Refuses the ticket of a checkpoint that is not open.
    fn check_ticket(&self, call: &'static str, ticket: &CheckpointTicket) -> Result<()> {
        if self.is_open && ticket.number() == self.checkpoints {
            return Ok(());
        }
        let reason =
            format!("checkpoint {} was finished or given up; begin another one", ticket.number());
        Err(Error::Argument { call, reason })
    }

    /// Remembers that an update stopped half way. A mismatch is found before anything moves.
    fn note_failure<T>(&mut self, outcome: zillion_embedding::Result<T>) -> Result<T> {
        if let Err(e) = &outcome
            && !matches!(e, zillion_embedding::Error::Mismatch { .. })
        {
            self.broken = Some(e.to_string());
        }
        Ok(outcome?)
    }
}

impl TrainClient for LocalClient {
    fn layouts(&self) -> &[TableLayout] {
        self.tables.layouts()
    }

    fn begin_step(&mut self, step: Step, rates: Rates) -> Result<()> {
        self.check_whole()?;
        if !(rates.scale.is_finite() && rates.scale > 0.0) {
            let reason =
                format!("the rates' scale must be a positive number and is {}", rates.scale);
            return Err(Error::Argument { call: "begin_step", reason });
        }
        self.order.begin(step)?;
        self.rates = rates;
        self.counted = Counters::default();
        Ok(())
    }

    fn looks_ahead(&self) -> bool {
        self.tables.spills()
    }

    fn look_ahead(&mut self, plans: &[&LookupPlan]) -> Result<()> {
        self.check_whole()?;
        Ok(self.tables.look_ahead(&self.workers, plans)?)
    }

    fn pull(
        &mut self,
        plan: &Arc<LookupPlan>,
        want: Want,
        mut buffer: RowBuffer,
    ) -> Result<Pending<RowBuffer>> {
        self.check_whole()?;
        self.order.allow_in_step("pull")?;
        self.tables.pull(&self.workers, plan, want.counts, &mut buffer)?;
        Ok(Pending::ready(buffer))
    }

    fn push(
        &mut self,
        plan: &Arc<LookupPlan>,
        gradients: RowBuffer,
        mode: PushMode,
    ) -> Result<Pending<RowBuffer>> {
        self.check_whole()?;
        self.order.allow_in_step("push")?;
        let outcome = match mode {
            PushMode::Apply => {
                let update = self.update(1.0);
                self.tables.push(&self.workers, plan, &gradients, update)
            }
            PushMode::Stage => self.tables.stage(&self.workers, plan, &gradients),
        };
        self.counted = self.note_failure(outcome)?;
        self.order.pushed(mode, self.tables.needs_sweep());
        Ok(Pending::ready(match mode {
            PushMode::Apply => gradients,
            PushMode::Stage => {
                self.staged = Some(Staged { plan: plan.clone(), gradients });
                std::mem::take(&mut self.spare)
            }
        }))
    }

    fn grad_sq_norm(&mut self) -> Result<f64> {
        self.check_whole()?;
        self.order.allow_staged("grad_sq_norm")?;
        let Some(Staged { plan, gradients }) = &self.staged else { return Ok(0.0) };
        Ok(self.tables.grad_sq_norm(&self.workers, plan, gradients, self.order.step())?)
    }

    fn regulariser_loss(&mut self, plan: &LookupPlan) -> Result<f64> {
        self.check_whole()?;
        Ok(self.tables.regulariser_loss(&self.workers, plan)?)
    }

    fn apply(&mut self, scale: f32) -> Result<StepReport> {
        self.check_whole()?;
        self.order.allow_staged("apply")?;
        if !(scale.is_finite() && scale >= 0.0) {
            let reason = format!("the factor must be zero or a positive number and is {scale}");
            return Err(Error::Argument { call: "apply", reason });
        }
        let update = self.update(scale);
        if let Some(Staged { plan, gradients }) = self.staged.take() {
            let applied = self.tables.apply(&self.workers, &plan, &gradients, update);
            self.spare = gradients;
            let counted = self.note_failure(applied)?;
            self.counted.add(counted);
        }
        let swept = self.tables.sweep(&self.workers, update);
        let counted = self.note_failure(swept)?;
        self.counted.add(counted);
        self.end_step();
        Ok(self.counted.into())
    }

    fn sweep(&mut self) -> Result<StepReport> {
        self.check_whole()?;
        if self.order.allow_sweep()? {
            let update = self.update(1.0);
            let swept = self.tables.sweep(&self.workers, update);
            let counted = self.note_failure(swept)?;
            self.counted.add(counted);
        }
        self.end_step();
        Ok(self.counted.into())
    }

    fn discard(&mut self) -> Result<()> {
        self.check_whole()?;
        if self.order.allow_discard()? {
            self.tables.discard();
            if let Some(staged) = self.staged.take() {
                self.spare = staged.gradients;
            }
        }
        self.order.skipped();
        Ok(())
    }

    fn lookup(
        &mut self,
        plan: &LookupPlan,
        mut buffer: RowBuffer,
    ) -> Result<Pending<(RowBuffer, LookupReport)>> {
        self.check_whole()?;
        self.order.nothing_waits("lookup")?;
        let report = self.tables.lookup(&self.workers, plan, &mut buffer)?;
        Ok(Pending::ready((buffer, report)))
    }

    fn prefill(&mut self, table: TableId, keys: &[FeatureKey]) -> Result<u64> {
        self.check_whole()?;
        self.order.nothing_waits("prefill")?;
        Ok(self.tables.prefill(&self.workers, table, keys)?)
    }

    fn adopt<'a>(
        &mut self,
        table: TableId,
        from: &TableLayout,
        rows: &mut dyn Iterator<Item = (FeatureKey, WholeRow<'a>)>,
    ) -> Result<Adopted> {
        self.check_whole()?;
        self.order.nothing_waits("adopt")?;
        let adopted = self.tables.adopt(table, from, rows);
        self.note_failure(adopted)
    }

    fn begin_checkpoint(&mut self, folder: &Path, files: &Files) -> Result<CheckpointTicket> {
        self.allow_checkpoint("begin_checkpoint")?;
        self.tables.begin_snapshot(&self.workers, folder, files)?;
        Ok(self.ticket())
    }

    fn follow_checkpoints(&mut self) -> Result<()> {
        self.check_whole()?;
        self.order.nothing_waits("follow_checkpoints")?;
        self.tables.follow_snapshots();
        Ok(())
    }

    fn checkpoint_mark(&mut self) -> Option<SnapshotMark> {
        self.tables.snapshot_mark()
    }

    fn begin_changes(
        &mut self,
        folder: &Path,
        files: &Files,
        since: SnapshotMark,
    ) -> Result<CheckpointTicket> {
        self.allow_checkpoint("begin_changes")?;
        self.tables.begin_changes(&self.workers, folder, files, since)?;
        Ok(self.ticket())
    }

    fn poll_checkpoint(&mut self, ticket: &CheckpointTicket) -> Result<bool> {
        self.check_ticket("poll_checkpoint", ticket)?;
        self.copy_on(POLLED_PART);
        Ok(self.tables.snapshot_is_ready())
    }

    fn finish_checkpoint(&mut self, ticket: CheckpointTicket) -> Result<Vec<TableParts>> {
        self.check_ticket("finish_checkpoint", &ticket)?;
        self.is_open = false;
        Ok(self.tables.finish_snapshot(&self.workers)?)
    }

    fn abandon_checkpoint(&mut self, ticket: CheckpointTicket) {
        if self.check_ticket("abandon_checkpoint", &ticket).is_ok() {
            self.is_open = false;
            self.tables.abandon_snapshot();
        }
    }

    fn restore(&mut self, folder: &Path, parts: &[TableParts]) -> Result<()> {
        if self.broken.is_none() {
            self.order.nothing_waits("restore")?;
        }
        self.tables.restore(&self.workers, folder, parts)?;
        self.order.reset();
        self.staged = None;
        self.broken = None;
        self.is_open = false;
        Ok(())
    }

    fn track_changes(&mut self, epochs: usize) -> Result<()> {
        self.check_whole()?;
        self.order.nothing_waits("track_changes")?;
        Ok(self.tables.track_changes(&self.workers, epochs)?)
    }

    fn write_layer(
        &mut self,
        since: Since,
        folder: &Path,
        files: &Files,
    ) -> Result<Option<LayerManifest>> {
        self.check_whole()?;
        self.order.nothing_waits("write_layer")?;
        let (tables, workers, pace) = (&self.tables, &self.workers, &mut AtOnce);
        Ok(match since {
            Since::Base => Some(tables.write_base(workers, files, folder, pace)?),
            Since::Epoch(epoch) => tables.write_delta(workers, epoch, files, folder, pace)?,
        })
    }

    fn end_dirty_epoch(&mut self) -> Result<u32> {
        self.check_whole()?;
        self.order.nothing_waits("end_dirty_epoch")?;
        Ok(self.tables.advance_dirty_epoch())
    }

    fn stats(&mut self) -> Result<Vec<TableStatistics>> {
        Ok(self.tables.statistics())
    }
}
