//! The results of batches, which come in the order of the batches and may come later than their
//! steps.
//!
//! # Invariants
//! The sums of losses and the most recent predictions are updated in the order of the batches, so
//! they do not depend on the delay of the results.

use super::Run;
use super::window::Window;
use crate::error::{Error, Result};
use crate::observer::Observer;
use crate::pipeline::Planned;
use crate::profile::Stage;

/// A batch whose results have not been observed.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) planned: Planned,
    /// The number of the batch's step.
    pub(super) step: u64,
}

impl Run {
    /// Returns the oldest batch whose results have not been observed, and its mean loss before its
    /// step. Returns `None` if there is no such batch, or if its results are not known yet and
    /// `waits` is `false`.
    ///
    /// # Errors
    /// Returns an error if the loss is not finite, or if the device fails.
    pub(super) fn finish_batch(&mut self, waits: bool) -> Result<Option<(Begun, f64)>> {
        // A wait for all results is one between two steps, and belongs to no step.
        let gpu_before = self.model.executor.gpu_counters().filter(|_| !waits);
        let loss = self.with_engine(|engine, run| engine.finish(run, waits))?;
        self.count_gpu_work(gpu_before);
        let Some(loss) = loss else { return Ok(None) };
        self.count_first_step();
        Ok(self.behind.pop_front().map(|begun| (begun, loss)))
    }

    /// Adds the batches whose results are known to the figures of the epoch, and reports the
    /// figures a few times a second. If `waits` is set, waits for the results of all batches.
    pub(super) fn observe_finished(
        &mut self,
        waits: bool,
        window: &mut Window,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        while let Some((begun, loss)) = self.finish_batch(waits)? {
            self.stage(Stage::Other, |run| run.observe_batch(begun, loss, window, observer))?;
        }
        Ok(())
    }

    /// Waits for the results of all batches at the end of a stretch of training, even if `outcome`
    /// is an error. If an earlier batch has diverged, its error is returned instead.
    pub(super) fn observe_rest<T>(
        &mut self,
        outcome: Result<T>,
        window: &mut Window,
        observer: &mut dyn Observer,
    ) -> Result<T> {
        match outcome {
            Ok(trained) => self.observe_finished(true, window, observer).map(|()| trained),
            // The results of later batches say nothing more.
            Err(error @ Error::Diverged { .. }) => Err(error),
            Err(error) => match self.observe_finished(true, window, observer) {
                Err(diverged @ Error::Diverged { .. }) => Err(diverged),
                _ => Err(error),
            },
        }
    }

    fn observe_batch(
        &mut self,
        begun: Begun,
        loss: f64,
        window: &mut Window,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let Begun { planned, step } = begun;
        self.add_loss(&planned, (step, loss), window);
        window.add_predictions(&self.batch_logits(), &planned.batch);
        self.report_step_values(&planned, (step, loss), observer);
        self.report_progress(window, observer)?;
        self.buffers.last_plan = Some(planned.plan);
        Ok(())
    }
}
