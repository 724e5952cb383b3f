//! The continuation of a run after a server or another trainer was lost.
//!
//! The tables on the servers of a parameter service usually end with the generation in which they
//! were trained. Every trainer then opens the tables anew, and continues from the newest checkpoint
//! of the run, or from the beginning if there is no checkpoint. The result is the same, because a
//! checkpoint holds the whole state.

use super::opening::After;
use super::prepare::Start;
use super::{Open, Run};
use crate::error::{Error, Result};
use crate::observer::Observer;

/// The rewinds of a run.
#[derive(Debug, Default)]
pub(super) struct Rewinds {
    /// The number of rewinds since the newest checkpoint.
    since_checkpoint: u64,
    /// The step of the newest checkpoint at the last rewind.
    newest: Option<u64>,
    /// The rewind after which the run has not continued yet.
    pending: Option<Pending>,
    /// Whether the run is about to continue without a rewind.
    pub(super) is_continuing: bool,
}

impl Rewinds {
    /// Forgets the rewind after which the run has not continued yet, and returns its cause.
    pub(super) fn forget_pending(&mut self) -> Option<String> {
        self.pending.take().map(|pending| pending.cause)
    }
}

/// A rewind after which the run has not continued yet.
#[derive(Debug)]
struct Pending {
    /// The step that the run had reached.
    reached: u64,
    /// The error that ended the generation.
    cause: String,
}

impl Run {
    /// Sets the run back after `error` has ended its generation: opens the tables anew, and returns
    /// the state from which the run continues.
    ///
    /// # Errors
    /// Returns `error` if it has not ended a generation. Returns an error if the run was set back
    /// too often without a new checkpoint.
    pub(super) fn rewind(
        &mut self,
        error: Error,
        open: &mut Open<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Start> {
        let Some(ended) = error.rewound() else { return Err(error) };
        let (generation, is_counted) = match ended {
            zillion_ps::Error::Rewound { generation, .. } => (*generation, true),
            // An operator may set the run back as often as they wish.
            zillion_ps::Error::Restored { generation, .. } => (*generation, false),
            _ => (0, true),
        };
        let cause = ended.to_string();
        tracing::warn!(generation, cause, "generation of the parameter service ended");
        if let Some(saving) = self.output.saving.take() {
            saving.abandon(self.client.as_mut());
        }
        // Another trainer may wait for this one on a server that is not lost.
        self.client.leave(ended);
        let newest = self.output.dir.steps()?.last().copied();
        let Rewinds { since_checkpoint, newest: seen, pending, .. } = &mut self.rewinds;
        if newest > *seen {
            *since_checkpoint = 0;
        }
        *seen = newest;
        *since_checkpoint += u64::from(is_counted);
        if *since_checkpoint > self.job.rewind_limit() {
            return Err(Error::GaveUp { rewinds: *since_checkpoint, cause: Box::new(error) });
        }
        let before = pending.as_ref().map_or(0, |pending| pending.reached);
        *pending = Some(Pending { reached: self.position.step.max(before), cause });
        self.options.resume = true;
        let clock = self.clock_to_continue(ended, newest);
        let borrows = self.model.executor.is_on_gpu();
        self.reopen(After { generation, clock, borrows }, open, observer)
    }

    /// Reports a rewind after the run was prepared again.
    pub(super) fn report_rewind(&mut self, observer: &mut dyn Observer) {
        let Some(Pending { reached, cause }) = self.rewinds.pending.take() else { return };
        let step = self.position.step;
        let repeated = reached.saturating_sub(step);
        self.counts.rewinds += 1;
        self.counts.repeated_steps += repeated;
        observer.note(&format!(
            "the run continues after step {step} and repeats {repeated} steps ({cause})"
        ));
    }
}
