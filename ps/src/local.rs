//! A client of tables in this process, which its one thread pool works on.

mod checkpointing;
mod publishing;
mod steps;
mod tables;

use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_embedding::{Counters, Rates, SpillHome, TableSet, Update};
use zillion_feature::{LookupPlan, RowBuffer};
use zillion_rows::TableSpec;

use crate::client::CheckpointTicket;
use crate::error::{Error, Result};
use crate::options::{SpillOptions, TableOptions};
use crate::order::StepOrder;

/// The smallest number of rows of an open checkpoint that the end of a step or a poll copies, so
/// that small steps also finish it.
const COPIED_ROWS: usize = 64;

/// The share of a step's pushed rows that its end copies: one row in so many. A push that keeps
/// images of its rows and the writing of parts take time too, so that most of the time stays with
/// training.
const COPIED_PART: u64 = 12;

/// The share of the pushed rows that a poll copies: one row in so many. A caller that polls between
/// steps has other work there, beside which a copy is little.
const POLLED_PART: u64 = 2;

/// A [`TrainClient`](crate::TrainClient) over tables in this process.
///
/// # Concurrency
/// Calls run to their end on the calling thread and the pool's: every [`Pending`](crate::Pending)
/// is ready.
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
    /// The counts of the step so far.
    counted: Counters,
    /// The error that left the tables half updated.
    broken: Option<String>,
    /// The number of checkpoints that have begun so far.
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
    /// Creates a client over empty tables.
    ///
    /// # Errors
    /// Where a spec is not valid.
    pub fn new(specs: Vec<TableSpec>, shards: NonZeroUsize, workers: Arc<Workers>) -> Result<Self> {
        Self::open(TableOptions::new(specs, shards), workers)
    }

    /// Creates a client over empty tables, with limits, frozen tables and spilling as `options`
    /// say.
    ///
    /// # Errors
    /// Where a spec or an option is not valid, or where the disk refuses the folder for spilled
    /// rows.
    pub fn open(options: TableOptions, workers: Arc<Workers>) -> Result<Self> {
        let mut tables = TableSet::new(options.tables, options.shards)?;
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
            workers,
            order: StepOrder::default(),
            rates: Rates::default(),
            staged: None,
            spare: RowBuffer::default(),
            counted: Counters::default(),
            broken: None,
            checkpoints: 0,
            is_open: false,
        })
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
                moment: format!("while checkpoint {} was being written", self.checkpoints),
                remedy: "call `finish_checkpoint` or `abandon_checkpoint` first",
            });
        }
        Ok(())
    }

    /// Makes the ticket of a checkpoint that has just begun.
    fn ticket(&mut self) -> CheckpointTicket {
        self.checkpoints += 1;
        self.is_open = true;
        CheckpointTicket::new(self.checkpoints)
    }

    /// Ends a step and continues an open checkpoint.
    fn end_step(&mut self) {
        self.order.ended();
        self.copy_on(COPIED_PART);
    }

    /// Copies more of an open checkpoint: one row for `part` rows that the step has pushed.
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
            format!("checkpoint {} was finished or abandoned; begin another one", ticket.number());
        Err(Error::Argument { call, reason })
    }

    /// Remembers that an update stopped half way. A mismatch is found before any row moves.
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
