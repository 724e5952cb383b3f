//! Rows of a set of tables on a GPU. The set stays the directory of its rows: it finds, admits and
//! counts keys. The device has the newest weights and optimizer state, and changes them.
//!
//! # Invariants
//! * The bytes of rows are those of a set that does its steps on the host.
//! * Between two settlements, a step changes no weight and no optimizer state of the host, but all
//!   metadata, counts and lists. A cache writes rows back that steps have changed; if a snapshot is
//!   open, their images were kept when their step began. So the images of a snapshot are right.
//! * A step enqueues its work and does not wait for the device, unless memory must grow or the
//!   host is too many steps ahead, or a cache of rows has no slot for the step.

mod ahead;
mod block;
mod cache;
mod caching;
mod copies;
mod device;
mod filling;
mod form;
mod launches;
mod layout;
mod loading;
mod moves;
mod norm;
mod phase;
mod places;
mod refusal;
mod results;
mod room;
mod sharing;
mod slab;
mod table;

use zillion_device::Workers;
use zillion_device::gpu::{Gpu, Memory, Stream};
use zillion_feature::{LookupPlan, RowBuffer, TablePlan};

use crate::error::{Error, Result};
use crate::resident::block::Block;
pub use crate::resident::caching::CacheFigures;
use crate::resident::caching::CacheState;
use crate::resident::copies::Copies;
pub use crate::resident::device::ResidentOptions;
use crate::resident::filling::Filling;
use crate::resident::launches::TableLaunches;
use crate::resident::loading::ROOM;
use crate::resident::norm::{Norm, Starts};
use crate::resident::phase::{Recorder, ShardRecord};
pub use crate::resident::results::ResidentReport;
use crate::resident::results::{Pending, Results};
use crate::resident::room::{is_about_memory, with_most_room};
use crate::resident::table::{Places, ResidentTable};
use crate::set::{TableSet, Update, total};
use crate::statistics::Counters;

/// The rows of a set of tables on a device.
#[derive(Debug)]
pub struct ResidentTables {
    options: ResidentOptions,
    /// The tables; empty if the rows of the host are newer than those of the device.
    tables: Vec<ResidentTable>,
    block: Block,
    norm: Norm,
    results: Results,
    copies: Copies,
    generation: u64,
    /// The step that has begun and not ended.
    begun: Option<Pending>,
    /// The number of keys of each table in the present step.
    keys: Vec<usize>,
    records: Vec<ShardRecord>,
    starts: Starts,
    /// The state of the caches; `None` if the device holds all rows.
    cache: Option<CacheState>,
}

impl ResidentTables {
    /// Returns the setting with which the rows of a set cannot be on a device, and the reason.
    /// Returns `None` if they can.
    pub fn refusal(tables: &TableSet) -> Option<String> {
        refusal::refusal(tables)
    }

    /// Copies all rows of a set to the device. If they do not fit into its memory beside what is
    /// kept for batches, or if the host evicts rows, the device has a cache of rows instead.
    ///
    /// # Errors
    /// Returns [`Error::Misuse`] if the set is refused, [`Error::Mismatch`] if the tables that
    /// cannot be in a cache do not fit either, and [`Error::Gpu`] if the device fails.
    pub fn new(tables: &TableSet, options: ResidentOptions) -> Result<Self> {
        if let Some(reason) = Self::refusal(tables) {
            let reason =
                format!("rows cannot be on a GPU, because {reason}; keep them on the host");
            return Err(Error::misuse(reason));
        }
        let reason = match (options.cache_rows, refusal::cache_reason(tables)) {
            (Some(rows), _) => format!("the cache is to have {rows} rows of each table"),
            (None, Some(reason)) => reason,
            (None, None) => {
                let all = |room| Self::without_rows(&options, tables, Places::All(room));
                match with_most_room(&ROOM, all) {
                    Ok(mut made) => {
                        made.copy_in(tables)?;
                        return Ok(made);
                    }
                    Err(error) if is_about_memory(&error) => error.to_string(),
                    Err(error) => return Err(error),
                }
            }
        };
        Self::with_cache(&options, tables, reason)
    }

    /// Returns a number that changes when the launches below change. A recorded graph with another
    /// number must be recorded again.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the bytes of memory of the device that the rows take.
    pub fn device_bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.slab.bytes() as u64).sum()
    }

    /// Begins a step: does all bookkeeping of the step on the host, and enqueues the copies that
    /// the launches below need. The plan names all tables in their order. `notes` has one entry for
    /// each table of the plan, of which only `uses` is read. Entries whose `counts` are set get the
    /// numbers of pushes before the step.
    ///
    /// Returns `None` if the step has begun. If the memory of the device or pinned memory is too
    /// small, returns the reason. Then no step has begun, nothing has changed, and the set has the
    /// newest rows.
    ///
    /// # Errors
    /// Returns [`Error::Misuse`] or [`Error::Mismatch`] if the arguments do not fit the tables;
    /// then nothing has changed. After any other error, training can continue only from a
    /// checkpoint.
    pub fn begin(
        &mut self,
        tables: &mut TableSet,
        workers: &Workers,
        plan: &LookupPlan,
        notes: &mut RowBuffer,
        update: Update,
    ) -> Result<Option<String>> {
        if self.begun.is_some() {
            return Err(Error::misuse("a step has begun on the GPU; end it first"));
        }
        tables.check_notes(plan, notes)?;
        check_plan(tables, plan)?;
        let (mut steps, swept) = (tables.steps(update, false)?, tables.steps(update, true)?);
        self.bring_in(tables, workers, plan)?;
        if let Err(error) = self.have_room(tables, plan) {
            if !is_about_memory(&error) {
                return Err(error);
            }
            self.settle(tables)?;
            self.drop_rows(tables);
            return Ok(Some(error.to_string()));
        }
        // `steps` has refused a step that does not fit into 32 bits.
        let number = update.step.0 as u32;
        tables.set_permits(workers, plan, notes, (number, &mut steps))?;
        let before = total(&tables.shards);
        let clips = self.options.clips;
        let batch = match &mut self.cache {
            Some(cache) => cache.begin(self.options.stream)?,
            None => 0,
        };
        let recorder = Recorder { plan, notes, steps: &steps, swept: &swept, clips, batch };
        recorder.record(tables, workers, &mut self.tables, &mut self.records)?;
        self.fetch_late(tables)?;
        Recorder::evict(tables, workers, number)?;
        self.spill(tables, workers, number)?;
        self.follow_host(tables);
        let counted = total(&tables.shards).since(before);
        let counters = Counters { pulled: 0, missing: 0, ..counted };
        let filling = Filling { tables, plan, steps: &steps, swept: &swept };
        filling.send(
            &self.options,
            &self.tables,
            &self.records,
            &mut self.starts,
            &mut self.block,
        )?;
        self.give_counts(notes);
        let pushed = (0..self.tables.len()).map(|index| self.pushed(index)).collect();
        self.begun = Some(Pending { step: update.step, counters, pushed });
        Ok(None)
    }

    /// Drops the rows of the device and the step that has begun, because all rows of the set are
    /// about to be replaced. The next step copies all rows again.
    ///
    /// # Errors
    /// Returns an error if the device has failed. The caller then drops the value.
    pub fn abandon(&mut self, tables: &mut TableSet) -> Result<()> {
        self.begun = None;
        let finished = self.finish(tables);
        self.drop_rows(tables);
        finished
    }

    /// Enqueues the fill of the rows of the step: `rows` has the memory of the unique rows of each
    /// table of the plan, with the stride of the table's layout; `None` if no row is read.
    ///
    /// # Errors
    /// Returns an error if the memory is too small, or if a launch is refused.
    pub fn pull(&self, gpu: &dyn Gpu, stream: Stream, rows: &[Option<Memory>]) -> Result<()> {
        for (index, rows) in rows.iter().enumerate() {
            let launches = self.launches(gpu, stream, index)?;
            launches.create()?;
            launches.mark()?;
            if let Some(rows) = *rows {
                self.check_memory(index, rows)?;
                launches.pull(rows)?;
            }
        }
        Ok(())
    }

    /// Enqueues the squared norm of all row gradients, one `f64`, as
    /// [`TableSet::grad_sq_norm`] has it. The launches of [`ResidentTables::pull`] come first.
    ///
    /// # Errors
    /// Returns an error if the tables were made without clipping, if gradients are missing, or if a
    /// launch is refused.
    pub fn sq_norm(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        grads: &[Option<Memory>],
        out: Memory,
    ) -> Result<()> {
        if !self.options.clips {
            let reason = "the rows on the GPU were made for steps without clipping; make them anew";
            return Err(Error::misuse(reason));
        }
        let mut first = 0;
        for (index, table) in self.tables.iter().enumerate().filter(|(_, table)| !table.is_frozen) {
            let gradients = self.gradients(grads, index)?;
            self.launches(gpu, stream, index)?.squares(gradients, &self.norm, first)?;
            first += table.swept.as_ref().map_or(0, |swept| swept.rows);
        }
        Ok(self.norm.sum(gpu, stream, &self.block, out)?)
    }

    /// Enqueues the update of all rows. `scale` has the factor of the gradients (`f32`), and `skip`
    /// a `u32` that is not zero if the step moves nothing. The gradients of a frozen table may be
    /// `None`.
    ///
    /// # Errors
    /// Returns an error if gradients are missing, or if a launch is refused.
    pub fn update(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        grads: &[Option<Memory>],
        scale: Memory,
        skip: Memory,
    ) -> Result<()> {
        for (index, _) in self.tables.iter().enumerate().filter(|(_, table)| !table.is_frozen) {
            let gradients = self.gradients(grads, index)?;
            self.launches(gpu, stream, index)?.update(gradients, scale, skip)?;
        }
        let is_skipped = self.block.results()?.part(0, size_of::<u32>())?;
        Ok(gpu.copy(stream, is_skipped, skip.part(0, size_of::<u32>())?)?)
    }

    /// Ends a step whose launches, or the replay of their graph, have been enqueued: enqueues the
    /// copy of its counts to the host. Waits only if 64 steps have not been collected. Returns the
    /// number of rows that got a gradient.
    ///
    /// # Errors
    /// Returns an error if no step has begun, or if the device has failed.
    pub fn end(&mut self, tables: &mut TableSet) -> Result<u64> {
        let Some(step) = self.begun.take() else {
            return Err(Error::misuse("no step has begun on the GPU; begin one first"));
        };
        let pushed = step.pushed.iter().sum();
        let from = self.block.results()?;
        self.results.send(&self.options, tables, from, step)?;
        Ok(pushed)
    }

    /// Returns the events of the oldest step that has ended and was not returned yet. Returns
    /// `None` if there is no such step, or if it has not run and `wait` is false.
    ///
    /// # Errors
    /// Returns an error if the device has failed.
    pub fn collect(&mut self, tables: &mut TableSet, wait: bool) -> Result<Option<ResidentReport>> {
        Ok(self.results.next(&self.options, tables, wait)?)
    }

    /// Adds the counts of the steps that have run to the counters of the tables. Does not wait.
    ///
    /// # Errors
    /// Returns an error if the device has failed.
    pub fn count(&mut self, tables: &mut TableSet) -> Result<()> {
        Ok(self.results.read(&self.options, tables, false)?)
    }

    /// Waits for all steps and counts them.
    ///
    /// # Errors
    /// Returns an error if a step has begun and not ended, or if the device has failed.
    pub fn finish(&mut self, tables: &mut TableSet) -> Result<()> {
        if self.begun.is_some() {
            return Err(Error::misuse("a step has begun on the GPU; end it first"));
        }
        self.results.read(&self.options, tables, true)?;
        Ok(())
    }

    /// Waits for all steps, and copies the rows that have changed to the set.
    ///
    /// # Errors
    /// Returns an error under the conditions of [`ResidentTables::finish`].
    pub fn settle(&mut self, tables: &mut TableSet) -> Result<()> {
        self.finish(tables)?;
        self.land_moves(tables)?;
        for (index, table) in self.tables.iter_mut().enumerate() {
            self.copies.settle(&self.options, tables, table, index)?;
        }
        Ok(())
    }

    /// Drops the rows of the device, because the rows of the set are about to change otherwise. The
    /// next step copies all rows again. The caller must have settled the rows that it still needs.
    ///
    /// # Errors
    /// Returns an error under the conditions of [`ResidentTables::finish`].
    pub fn forget(&mut self, tables: &mut TableSet) -> Result<()> {
        self.finish(tables)?;
        self.drop_rows(tables);
        Ok(())
    }

    /// Gives the numbers of pushes before the step to the entries of `notes` that ask for them.
    fn give_counts(&self, notes: &mut RowBuffer) {
        for (index, notes) in notes.tables.iter_mut().enumerate() {
            let Some(counts) = &mut notes.counts else { continue };
            counts.clear();
            let of_shards = self.records.iter().map(|record| &record.tables[index].counts);
            of_shards.for_each(|of_shard| counts.extend_from_slice(of_shard));
        }
    }

    /// Returns the number of rows of a table that get a gradient in the present step.
    fn pushed(&self, index: usize) -> u64 {
        match self.tables[index].is_frozen {
            true => 0,
            false => self.records.iter().map(|record| record.tables[index].found).sum(),
        }
    }

    fn launches<'a>(
        &'a self,
        gpu: &'a dyn Gpu,
        stream: Stream,
        index: usize,
    ) -> Result<TableLaunches<'a>> {
        match (self.tables.get(index), self.block.layout.tables.get(index)) {
            (Some(table), Some(lists)) => {
                Ok(TableLaunches { gpu, stream, block: &self.block, table, lists })
            }
            _ => {
                let reason = format!(
                    "the GPU has no rows of table {index}, of {}; begin a step first",
                    self.tables.len()
                );
                Err(Error::misuse(reason))
            }
        }
    }

    /// Returns the gradients of a table.
    fn gradients(&self, grads: &[Option<Memory>], index: usize) -> Result<Memory> {
        let Some(gradients) = grads.get(index).copied().flatten() else {
            let reason = format!("table {index} is pushed without gradients; give zeros");
            return Err(Error::misuse(reason));
        };
        self.check_memory(index, gradients)?;
        Ok(gradients)
    }

    /// Checks that memory has room for the rows of the present step.
    fn check_memory(&self, index: usize, memory: Memory) -> Result<()> {
        let keys = self.keys.get(index).copied().unwrap_or(0);
        let needed = keys * self.tables[index].form.pulled_stride * size_of::<f32>();
        if memory.bytes() >= needed {
            return Ok(());
        }
        let reason = format!(
            "{keys} rows of table {index} need {needed} bytes, but the memory has {}; use the \
             memory of a batch of this size",
            memory.bytes()
        );
        Err(Error::misuse(reason))
    }
}

/// Checks that a plan names all tables in their order.
fn check_plan(tables: &TableSet, plan: &LookupPlan) -> Result<()> {
    let is_in_order = |(at, table): (usize, &TablePlan)| table.table.index() == at;
    let count = tables.shapes.len();
    if plan.tables.len() == count && plan.tables.iter().enumerate().all(is_in_order) {
        return Ok(());
    }
    let reason = format!(
        "the plan has {} tables, but a step on the GPU needs all {count} tables in their order",
        plan.tables.len()
    );
    Err(Error::misuse(reason))
}
