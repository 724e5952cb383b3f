//! The part of the contract for rows on a GPU.

use std::sync::Arc;

use zillion_device::gpu::{Gpu, Stream};
use zillion_embedding::ResidentTables;
use zillion_feature::{LookupPlan, RowBuffer, Step};

use super::StepReport;
use crate::error::{Error, Result};

/// The part of a client that keeps the rows of its tables on a GPU.
///
/// # A step
/// The calls are `begin_step`, `set_clock` if the tables go by event time, `begin_resident_step`,
/// then the launches of [`Residency::resident`] (or the replay of a graph that has them), and
/// `end_resident_step`. None of them waits for the device. The events of a step come later, in the
/// order of the steps, by `collect_resident_step`.
///
/// All other calls of a client are allowed between steps. The calls that read or replace rows wait
/// for the device and copy rows themselves.
pub trait Residency {
    /// Returns the setting with which the rows cannot be on a GPU, and the reason. Returns `None`
    /// if they can.
    fn residency_refusal(&self) -> Option<String> {
        Some("the tables are on servers".to_owned())
    }

    /// Moves the rows to a GPU, or a cache of them if they do not fit there. `stream` is the stream
    /// of the executor, `clips` says whether steps clip gradients, and `memory` is the largest
    /// number of bytes of the GPU's memory that the process may use. Returns the reason if the rows
    /// stay on the host: a setting, or the memory of the GPU. Returns `None` if they have moved.
    ///
    /// # Errors
    /// Returns an error if the call comes in the middle of a step, or if the GPU has failed. Then
    /// the rows are on the host as before.
    fn make_resident(
        &mut self,
        _gpu: &Arc<dyn Gpu>,
        _stream: Stream,
        _clips: bool,
        _memory: Option<u64>,
    ) -> Result<Option<String>> {
        Ok(self.residency_refusal())
    }

    /// Moves the rows back to the host. Does nothing if they are there.
    ///
    /// # Errors
    /// Returns an error if the GPU has failed. The newest rows are then lost.
    fn leave_gpu(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the rows on the GPU, whose methods enqueue the launches of a step; `None` if the
    /// rows are on the host.
    fn resident(&self) -> Option<&ResidentTables> {
        None
    }

    /// Announces the plan of a batch that has entered the window, in the order of the batches. If
    /// the rows are borrowed, those that are missing are asked for. The call changes no result.
    ///
    /// # Errors
    /// Returns an error if the plan does not fit the tables, or if a server cannot be reached.
    fn announce_rows(&mut self, _plan: &Arc<LookupPlan>) -> Result<()> {
        Ok(())
    }

    /// Announces the plan of the batch behind the last one that was announced, or behind the
    /// present one. If a GPU has a cache of rows, the rows of the plan begin their way there.
    /// Returns whether all of them have a place. If not, the next call has the same plan again,
    /// unless its step has begun. The call does not wait for the GPU, and changes no result.
    ///
    /// # Errors
    /// Returns an error if the plan does not fit the tables, or if the GPU has failed.
    fn prefetch_rows(&mut self, _plan: &Arc<LookupPlan>) -> Result<bool> {
        Ok(true)
    }

    /// Does the bookkeeping of the present step on the host: counts keys, admits them and creates
    /// rows. Then enqueues the copies that the launches need. `notes` has one entry for each table
    /// of the plan: its `uses` are given as for a push, and its `counts`, if they are set, are
    /// filled as by a pull.
    ///
    /// Returns `None` if the step is on the GPU. If the memory of the GPU or pinned memory is too
    /// small for the rows, returns the reason. Then nothing has changed, and the caller may do the
    /// step on the host after `leave_gpu`.
    ///
    /// # Errors
    /// Returns an error if no step has begun, if the plan does not fit the tables, or if the rows
    /// are not on a GPU.
    fn begin_resident_step(
        &mut self,
        _plan: &Arc<LookupPlan>,
        _notes: &mut RowBuffer,
    ) -> Result<Option<String>> {
        Err(refused("begin_resident_step"))
    }

    /// Ends the step after its launches have been enqueued.
    ///
    /// # Errors
    /// Returns an error if `begin_resident_step` was not called, or if the GPU has failed.
    fn end_resident_step(&mut self) -> Result<()> {
        Err(refused("end_resident_step"))
    }

    /// Returns the events of the oldest step that has ended and was not returned yet. Returns
    /// `None` if there is no such step, or if it has not run and `wait` is false.
    ///
    /// # Errors
    /// Returns an error if the GPU has failed.
    fn collect_resident_step(&mut self, _wait: bool) -> Result<Option<ResidentStep>> {
        Ok(None)
    }
}

fn refused(call: &'static str) -> Error {
    let reason = "the tables are not on a GPU; call `make_resident` of tables in this process";
    Error::Argument { call, reason: reason.to_owned() }
}

/// The events of one step on rows of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentStep {
    /// The number of the step.
    pub step: Step,
    /// Whether the step moved no weight, because the norm of its gradients was not finite.
    pub is_skipped: bool,
    /// The report that the last call of the same step on the host returns.
    pub report: StepReport,
}
