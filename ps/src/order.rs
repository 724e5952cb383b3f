//! The order of calls in a step. Every client and every server uses this one state machine, so that
//! all of them return the same errors for calls out of order.

use zillion_embedding::LAST_STEP;
use zillion_feature::Step;

use crate::client::PushMode;
use crate::error::{Error, Result};

/// The remedy for a call in the middle of a step on a GPU.
const END_ON_GPU: &str = "call `end_resident_step` first";

/// The point that a client has reached in the calls of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// No step has begun, or the last step has ended.
    Between,
    /// A step has begun and nothing was pushed.
    Begun,
    /// Gradients are staged, and wait for `apply` or `discard`.
    Staged,
    /// Gradients were applied, and whole-table rules must still be applied by `sweep`.
    Unswept,
    /// Gradients were applied, and there are no whole-table rules to apply.
    Applied,
    /// A step on a GPU has begun, and waits for `end_resident_step`.
    OnGpu,
}

/// A state machine that checks the order of calls. A client checks each call before it does the
/// work of the call, and records the call after the work has succeeded.
#[derive(Clone, Debug)]
pub struct StepOrder {
    moment: Moment,
    step: Step,
    /// The last step whose gradients were applied; `None` if there is none.
    applied: Option<Step>,
}

impl Default for StepOrder {
    fn default() -> Self {
        Self { moment: Moment::Between, step: Step(0), applied: None }
    }
}

impl StepOrder {
    /// Returns the step that began last.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Begins a step.
    ///
    /// # Errors
    /// Returns an error if staged gradients or whole-table rules are not applied yet, or if the
    /// number of the step is not greater than that of the last applied step.
    pub fn begin(&mut self, step: Step) -> Result<()> {
        self.check_settled("begin_step")?;
        if step == Step(0) || step > LAST_STEP {
            let reason =
                format!("step {} is out of range; number steps from 1 to {}", step.0, LAST_STEP.0);
            return Err(Error::Argument { call: "begin_step", reason });
        }
        if let Some(applied) = self.applied.filter(|&applied| step <= applied) {
            let reason = format!(
                "step {} is not after step {}, which was applied; begin a later step",
                step.0, applied.0
            );
            return Err(Error::Argument { call: "begin_step", reason });
        }
        self.step = step;
        self.moment = Moment::Begun;
        Ok(())
    }

    /// Checks that a pull or a push is allowed.
    ///
    /// # Errors
    /// Returns an error if no step has begun, or if the gradients of the step were pushed already.
    pub fn allow_in_step(&self, call: &'static str) -> Result<()> {
        match self.moment {
            Moment::Begun => Ok(()),
            Moment::Between => self.refuse(call, "call `begin_step` first"),
            Moment::Staged => {
                self.refuse(call, "call `apply` or `discard`, then begin the next step")
            }
            Moment::Unswept => self.refuse(call, "call `sweep`, then begin the next step"),
            Moment::Applied => self.refuse(
                call,
                "begin the next step, because a step has one push with the summed gradients of each row",
            ),
            Moment::OnGpu => self.refuse(call, END_ON_GPU),
        }
    }

    /// Records a push that has succeeded.
    pub fn record_push(&mut self, mode: PushMode, needs_sweep: bool) {
        self.moment = match mode {
            PushMode::Stage => Moment::Staged,
            PushMode::Apply if needs_sweep => Moment::Unswept,
            PushMode::Apply => Moment::Applied,
        };
        if mode == PushMode::Apply {
            self.applied = Some(self.step);
        }
    }

    /// Checks that `grad_sq_norm` or `apply` is allowed.
    ///
    /// # Errors
    /// Returns an error if no gradients are staged.
    pub fn allow_staged(&self, call: &'static str) -> Result<()> {
        match self.moment {
            Moment::Staged => Ok(()),
            Moment::Between => self.refuse(call, "call `begin_step` and `push` with `Stage` first"),
            Moment::Begun => self.refuse(call, "call `push` with `Stage` first"),
            Moment::Unswept | Moment::Applied => {
                self.refuse(call, "call `push` with `Stage` to clip gradients")
            }
            Moment::OnGpu => self.refuse(call, END_ON_GPU),
        }
    }

    /// Checks that `apply` with a factor of the gradients is allowed.
    ///
    /// # Errors
    /// Returns an error if no gradients are staged, or if the factor is not a finite number of at
    /// least 0.
    pub fn allow_apply(&self, scale: f32) -> Result<()> {
        self.allow_staged("apply")?;
        if scale.is_finite() && scale >= 0.0 {
            return Ok(());
        }
        let reason = format!("`scale` is {scale}; give a finite number of at least 0");
        Err(Error::Argument { call: "apply", reason })
    }

    /// Checks that `sweep` is allowed. Returns whether whole-table rules must be applied.
    ///
    /// # Errors
    /// Returns an error if no gradients were pushed with `Apply`.
    pub fn allow_sweep(&self) -> Result<bool> {
        match self.moment {
            Moment::Unswept => Ok(true),
            Moment::Applied => Ok(false),
            Moment::Staged => self.refuse("sweep", "call `apply`, which sweeps, or `discard`"),
            Moment::Between | Moment::Begun => {
                self.refuse("sweep", "call `push` with `Apply` first")
            }
            Moment::OnGpu => self.refuse("sweep", END_ON_GPU),
        }
    }

    /// Checks that `discard` is allowed. Returns whether gradients are staged.
    ///
    /// # Errors
    /// Returns an error if the gradients of the step were applied.
    pub fn allow_discard(&self) -> Result<bool> {
        match self.moment {
            Moment::Staged => Ok(true),
            Moment::Between | Moment::Begun => Ok(false),
            Moment::Unswept => {
                self.refuse("discard", "call `sweep`, because the gradients are applied")
            }
            Moment::Applied => {
                self.refuse("discard", "begin the next step, because the gradients are applied")
            }
            Moment::OnGpu => self.refuse("discard", END_ON_GPU),
        }
    }

    /// Checks that no gradients are staged and no whole-table rules wait for `sweep`. Calls outside
    /// of a step, such as a lookup or a checkpoint, need this.
    ///
    /// # Errors
    /// Returns an error if staged gradients or whole-table rules are not applied yet.
    pub fn check_settled(&self, call: &'static str) -> Result<()> {
        match self.moment {
            Moment::Between | Moment::Begun | Moment::Applied => Ok(()),
            Moment::Staged => self.refuse(call, "call `apply` or `discard` first"),
            Moment::Unswept => self.refuse(call, "call `sweep` first"),
            Moment::OnGpu => self.refuse(call, END_ON_GPU),
        }
    }

    /// Checks that the tables can be replaced: in the cases of [`StepOrder::check_settled`], and in
    /// a step on a GPU, which may have failed after it began.
    ///
    /// # Errors
    /// Returns an error if staged gradients or whole-table rules are not applied yet.
    pub fn check_restorable(&self, call: &'static str) -> Result<()> {
        match self.moment {
            Moment::OnGpu => Ok(()),
            _ => self.check_settled(call),
        }
    }

    /// Records that the bookkeeping of a step on a GPU is done.
    pub fn record_on_gpu(&mut self) {
        self.moment = Moment::OnGpu;
        self.applied = Some(self.step);
    }

    /// Checks that a step on a GPU can end.
    ///
    /// # Errors
    /// Returns an error if no step on a GPU has begun.
    pub fn allow_end_on_gpu(&self, call: &'static str) -> Result<()> {
        match self.moment {
            Moment::OnGpu => Ok(()),
            _ => self.refuse(call, "call `begin_resident_step` first"),
        }
    }

    /// Ends a step whose gradients and whole-table rules have been applied.
    pub fn end(&mut self) {
        self.applied = Some(self.step);
        self.moment = Moment::Between;
    }

    /// Ends the step without its gradients.
    pub fn skip(&mut self) {
        self.moment = Moment::Between;
    }

    /// Resets the state after the tables were replaced. The next step may have any number.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    fn refuse<T>(&self, call: &'static str, remedy: &'static str) -> Result<T> {
        let step = self.step.0;
        let moment = match self.moment {
            Moment::Between if self.step == Step(0) => "before the first step".to_owned(),
            Moment::Between => format!("after step {step} ended"),
            Moment::Begun => format!("in step {step} before its push"),
            Moment::Staged => format!("in step {step} with its gradients staged"),
            Moment::Unswept => format!("in step {step} before its sweep"),
            Moment::Applied => format!("in step {step} after its push"),
            Moment::OnGpu => format!("in step {step} on the GPU"),
        };
        Err(Error::Order { call, moment, remedy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_moment_and_the_remedy() {
        let order = StepOrder::default();
        assert_eq!(
            order.allow_in_step("push").unwrap_err().to_string(),
            "`push` was called before the first step; call `begin_step` first"
        );
    }

    #[test]
    fn steps_go_up_and_an_abandoned_one_may_be_tried_again() {
        let mut order = StepOrder::default();
        assert!(order.begin(Step(0)).is_err());
        order.begin(Step(5)).unwrap();
        order.begin(Step(5)).unwrap();
        order.record_push(PushMode::Stage, true);
        assert!(order.begin(Step(6)).is_err());
        order.skip();
        order.begin(Step(5)).unwrap();
        order.record_push(PushMode::Apply, false);
        assert!(order.begin(Step(5)).is_err());
        order.begin(Step(6)).unwrap();
        order.reset();
        order.begin(Step(1)).unwrap();
        assert!(order.allow_end_on_gpu("end_resident_step").is_err());
        order.record_on_gpu();
        assert!(order.allow_in_step("pull").is_err() && order.check_settled("lookup").is_err());
        assert!(order.check_restorable("restore").is_ok());
        order.allow_end_on_gpu("end_resident_step").unwrap();
        order.end();
        assert!(order.begin(Step(1)).is_err());
    }
}
