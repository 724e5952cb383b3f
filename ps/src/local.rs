//! The client of tables in this process, which runs its work on the thread pool of the process.

#[cfg(feature = "server")]
mod arrivals;
mod checkpointing;
mod lending;
mod publishing;
mod residency;
mod steps;
mod tables;

use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_embedding::{Counters, Rates, ResidentTables, SpillHome, TableSet, Update};
use zillion_feature::{LookupPlan, RowBuffer};
use zillion_rows::TableSpec;

use crate::client::{Answered, CheckpointTicket};
use crate::error::{Error, Result};
use crate::options::{SpillOptions, TableOptions};
use crate::order::StepOrder;

/// The smallest number of rows that are copied to an open checkpoint at the end of a step, and in
/// each poll. With this minimum, a checkpoint also makes progress if the steps are small.
const COPIED_ROWS: usize = 64;

/// The number of rows that a step must push for each row that is copied to an open checkpoint at
/// the end of the step. The number is large, because an open checkpoint also slows steps in other
/// ways (a push copies old rows, and files are written), and training should keep most of the time.
const COPIED_PART: u64 = 12;

/// The number of rows that a step must push for each row that a later poll copies to an open
/// checkpoint. The number is small, because the caller polls between steps, where its other work
/// takes longer than these copies.
const POLLED_PART: u64 = 2;

/// A [`TrainClient`](crate::TrainClient) over tables in this process.
///
/// # Concurrency
/// Each call runs to its end on the calling thread and on the pool.
#[derive(Debug)]
pub struct LocalClient {
    tables: TableSet,
    /// The rows on a GPU; `None` if the rows are on the host.
    resident: Option<ResidentTables>,
    workers: Arc<Workers>,
    order: StepOrder,
    rates: Rates,
    /// The plan and the gradients of a push with `PushMode::Stage`; `None` if no gradients are
    /// staged.
    staged: Option<Staged>,
    /// The buffer that the next push with `PushMode::Stage` returns.
    spare: RowBuffer,
    /// The counts of the events in the current step up to the present call.
    counted: Counters,
    /// The error that stopped an update half way; `None` if no update has failed.
    broken: Option<String>,
    /// The number of checkpoints that have begun.
    checkpoints: u64,
    /// Whether a checkpoint has begun and is neither finished nor abandoned.
    is_open: bool,
    /// The lent rows that the borrower has not taken yet.
    lent: Answered,
}

#[derive(Debug)]
struct Staged {
    plan: Arc<LookupPlan>,
    gradients: RowBuffer,
}

impl LocalClient {
    /// Creates a client over empty tables.
    ///
    /// # Errors
    /// Returns an error if a spec is not valid.
    pub fn new(specs: Vec<TableSpec>, shards: NonZeroUsize, workers: Arc<Workers>) -> Result<Self> {
        Self::open(TableOptions::new(specs, shards), workers)
    }

    /// Creates a client over empty tables, with the limits, frozen tables and spilling of
    /// `options`.
    ///
    /// # Errors
    /// Returns an error if a spec or an option is not valid, or if the folder for spilled rows
    /// cannot be written.
    pub fn open(options: TableOptions, workers: Arc<Workers>) -> Result<Self> {
        let owned = match &options.slots {
            None => None,
            Some(slots) => Some((slots.clone(), crate::slots::owned(&options, slots)?)),
        };
        let mut tables = match &owned {
            None => TableSet::new(options.tables, options.shards)?,
            Some((slots, _)) => {
                TableSet::new_within(options.tables, options.shards, slots.clone())?
            }
        };
        if let Some((_, owned)) = owned {
            tables.own(owned)?;
        }
        tables.limit_bytes(options.max_bytes)?;
        tables.freeze(&options.frozen)?;
        if options.follows_checkpoints {
            tables.follow_snapshots();
        }
        if let Some(SpillOptions { folder, files, memory }) = options.spill {
            let home = SpillHome::open(&files, &folder)?;
            for (table, bytes) in memory {
                tables.spill(table, bytes, &home)?;
            }
        }
        Ok(Self {
            tables,
            resident: None,
            workers,
            order: StepOrder::default(),
            rates: Rates::default(),
            staged: None,
            spare: RowBuffer::default(),
            counted: Counters::default(),
            broken: None,
            checkpoints: 0,
            is_open: false,
            lent: Answered::default(),
        })
    }

    /// Returns whether no failed update has left the tables half updated.
    #[cfg(feature = "server")]
    pub(crate) fn is_whole(&self) -> bool {
        self.broken.is_none()
    }

    /// Returns the statistics of the tables.
    #[cfg(feature = "server")]
    pub(crate) fn statistics(&self) -> Vec<zillion_embedding::TableStatistics> {
        self.tables.statistics()
    }

    /// Returns the data of a table about a key.
    #[cfg(feature = "server")]
    pub(crate) fn find(
        &self,
        table: zillion_feature::TableId,
        key: zillion_feature::FeatureKey,
    ) -> Result<zillion_embedding::LiveKey> {
        Ok(self.tables.find(table, key)?)
    }

    /// Returns the slots of a table that these tables hold.
    #[cfg(feature = "server")]
    pub(crate) fn owned(&self, table: zillion_feature::TableId) -> std::ops::Range<usize> {
        self.tables.owned(table)
    }

    /// Returns the factors of the learning rates of the present step.
    #[cfg(feature = "server")]
    pub(crate) fn rates(&self) -> Rates {
        self.rates
    }

    /// Verifies every file that `restore` would read, and changes nothing.
    #[cfg(feature = "server")]
    pub(crate) fn check_restore(
        &self,
        folder: &std::path::Path,
        parts: &[zillion_rows::TableParts],
    ) -> Result<()> {
        Ok(self.tables.check_restore(&self.workers, folder, parts)?)
    }

    /// Abandons the open checkpoint, if there is one.
    #[cfg(feature = "server")]
    pub(crate) fn abandon_open_checkpoint(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.tables.abandon_snapshot();
        }
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

    /// Returns an error if the tables are half updated, or if staged gradients or whole-table rules
    /// are not applied yet.
    fn check_settled(&self, call: &'static str) -> Result<()> {
        self.check_whole()?;
        self.order.check_settled(call)
    }

    /// Returns an error if a checkpoint cannot begin at this moment.
    fn allow_checkpoint(&self, call: &'static str) -> Result<()> {
        self.check_settled(call)?;
        if self.is_open {
            return Err(Error::Order {
                call,
                moment: format!("while checkpoint {} was being written", self.checkpoints),
                remedy: "call `finish_checkpoint` or `abandon_checkpoint` first",
            });
        }
        Ok(())
    }

    /// Creates the ticket of a new checkpoint, and marks the checkpoint as open.
    fn ticket(&mut self) -> CheckpointTicket {
        self.checkpoints += 1;
        self.is_open = true;
        CheckpointTicket::new(self.checkpoints)
    }

    /// Ends a step, and copies more rows to an open checkpoint.
    fn end_step(&mut self) {
        self.order.end();
        self.copy_on(COPIED_PART);
    }

    /// Copies more rows to an open checkpoint: one row for each `part` rows that the step pushed,
    /// but at least [`COPIED_ROWS`] rows.
    fn copy_on(&mut self, part: u64) {
        let rows = usize::try_from(self.counted.pushed / part).unwrap_or(usize::MAX);
        self.tables.advance_snapshot(&self.workers, rows.max(COPIED_ROWS));
    }

    /// Returns an error if the checkpoint of a ticket is not open.
    fn check_ticket(&self, call: &'static str, ticket: &CheckpointTicket) -> Result<()> {
        if self.is_open && ticket.number() == self.checkpoints {
            return Ok(());
        }
        let reason =
            format!("checkpoint {} was finished or abandoned; begin another one", ticket.number());
        Err(Error::Argument { call, reason })
    }

    /// Records the error of an update that failed half way. Errors of the arguments are found
    /// before any row changes, so they are not recorded.
    fn note_failure<T>(&mut self, outcome: zillion_embedding::Result<T>) -> Result<T> {
        if let Err(e) = &outcome
            && !matches!(
                e,
                zillion_embedding::Error::Mismatch { .. } | zillion_embedding::Error::Misuse { .. }
            )
        {
            self.broken = Some(e.to_string());
        }
        Ok(outcome?)
    }
}
