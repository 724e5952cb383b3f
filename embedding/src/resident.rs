//! Rows of a set of tables on a GPU. The set stays the directory of its rows: it finds, admits and
//! counts keys, and the device has the newest weights and optimizer state.

use std::sync::Arc;

use zillion_device::Workers;
use zillion_device::gpu::{Gpu, Memory, Stream};
use zillion_feature::{LookupPlan, RowBuffer, Step};

use crate::error::{Error, Result};
use crate::set::{TableSet, Update};
use crate::statistics::Counters;

/// The device on which rows live, and what its steps need.
#[derive(Clone, Debug)]
pub struct ResidentOptions {
    /// The device.
    pub gpu: Arc<dyn Gpu>,
    /// The stream on which all work on rows is enqueued. It is the stream of the executor.
    pub stream: Stream,
    /// Whether steps clip gradients, so that [`ResidentTables::sq_norm`] is called.
    pub clips: bool,
}

/// The events of one step on rows of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentReport {
    /// The step.
    pub step: Step,
    /// Whether the step moved no weight, because the norm of its gradients was not finite.
    pub is_skipped: bool,
    /// The numbers of events of all tables, as [`TableSet::apply`] and [`TableSet::sweep`] return
    /// them together.
    pub counters: Counters,
}

/// The rows of a set of tables on a device.
#[derive(Debug)]
pub struct ResidentTables {
    options: ResidentOptions,
}

impl ResidentTables {
    /// Returns the setting with which the rows of a set cannot be on a device, and the reason.
    /// Returns `None` if they can.
    pub fn refusal(_tables: &TableSet) -> Option<String> {
        Some("rows on a device are not there yet".to_owned())
    }

    /// Copies all rows of a set to the device.
    ///
    /// # Errors
    /// Returns an error if the set is refused, or if the rows do not fit into the memory of the
    /// device.
    pub fn new(tables: &TableSet, options: ResidentOptions) -> Result<Self> {
        match Self::refusal(tables) {
            Some(reason) => Err(Error::misuse(reason)),
            None => Ok(Self { options }),
        }
    }

    /// Returns a number that changes when the launches below change. A recorded graph with another
    /// number must be recorded again.
    pub fn generation(&self) -> u64 {
        0
    }

    /// Begins a step: does all bookkeeping of the step on the host, and enqueues the copies that
    /// the launches below need. `notes` has one entry for each table of the plan, of which only
    /// `uses` is read. Entries whose `counts` are set get the numbers of pushes before the step.
    ///
    /// # Errors
    /// Returns an error if the arguments do not fit the tables, or if the memory of the device is
    /// exhausted. Then nothing has changed.
    pub fn begin(
        &mut self,
        _tables: &mut TableSet,
        _workers: &Workers,
        _plan: &LookupPlan,
        _notes: &mut RowBuffer,
        _update: Update,
    ) -> Result<()> {
        Err(Error::misuse("rows on a device are not there yet".to_owned()))
    }

    /// Enqueues the fill of the rows of the step: `rows` has the memory of the unique rows of each
    /// table of the plan, with the stride of the table's layout; `None` if no row is read.
    ///
    /// # Errors
    /// Returns an error if a launch is refused.
    pub fn pull(&self, _gpu: &dyn Gpu, _stream: Stream, _rows: &[Option<Memory>]) -> Result<()> {
        Ok(())
    }

    /// Enqueues the squared norm of all row gradients, one `f64`, as
    /// [`TableSet::grad_sq_norm`] has it.
    ///
    /// # Errors
    /// Returns an error if a launch is refused.
    pub fn sq_norm(
        &self,
        _gpu: &dyn Gpu,
        _stream: Stream,
        _grads: &[Option<Memory>],
        _out: Memory,
    ) -> Result<()> {
        Ok(())
    }

    /// Enqueues the update of all rows. `scale` has the factor of the gradients (`f32`), and `skip`
    /// a `u32` that is not zero if the step moves nothing.
    ///
    /// # Errors
    /// Returns an error if a launch is refused.
    pub fn update(
        &self,
        _gpu: &dyn Gpu,
        _stream: Stream,
        _grads: &[Option<Memory>],
        _scale: Memory,
        _skip: Memory,
    ) -> Result<()> {
        Ok(())
    }

    /// Ends a step whose launches, or the replay of their graph, have been enqueued: enqueues the
    /// copy of its counts to the host. Waits only if 64 steps have not been collected.
    ///
    /// # Errors
    /// Returns an error if no step has begun, or if the device has failed.
    pub fn end(&mut self, _tables: &mut TableSet) -> Result<()> {
        Ok(())
    }

    /// Returns the events of the oldest step that has ended and was not returned yet, and adds them
    /// to the counters of the tables. Returns `None` if there is no such step, or if it has not run
    /// and `wait` is false.
    ///
    /// # Errors
    /// Returns an error if the device has failed.
    pub fn collect(
        &mut self,
        _tables: &mut TableSet,
        _wait: bool,
    ) -> Result<Option<ResidentReport>> {
        Ok(None)
    }

    /// Waits for all steps, and copies the rows that have changed to the set.
    ///
    /// # Errors
    /// Returns an error if the device has failed.
    pub fn settle(&mut self, _tables: &mut TableSet) -> Result<()> {
        Ok(())
    }

    /// Copies all rows of the set to the device again, after rows were replaced on the host.
    ///
    /// # Errors
    /// Returns an error under the conditions of [`ResidentTables::new`].
    pub fn load(&mut self, tables: &TableSet) -> Result<()> {
        *self = Self::new(tables, self.options.clone())?;
        Ok(())
    }
}
