//! The order of calls in a step: one state machine for every client and server, so that they refuse
//! the same calls with the same words.

use zillion_embedding::LAST_STEP;
use zillion_feature::Step;

use crate::client::PushMode;
use crate::error::{Error, Result};

/// The moment of a client in its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// No step has begun, or the last one has ended.
    Between,
    /// A step has begun and nothing was pushed.
    Begun,
    /// Gradients are kept for `apply`.
    Staged,
    /// Gradients were applied, and whole-table rules wait for `sweep`.
    Unswept,
    /// Gradients were applied and no rule waits.
    Applied,
}

/// A guard of the order of calls. A client asks it before a call, and notes the call when it has
/// succeeded.
#[derive(Clone, Debug)]
pub struct StepOrder {
    moment: Moment,
    step: Step,
    /// The last step whose gradients were applied.
    applied: Option<Step>,
}

impl Default for StepOrder {
    fn default() -> Self {
        Self { moment: Moment::Between, step: Step(0), applied: None }
    }
}

impl StepOrder {
    /// Returns the step that has begun last.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Begins a step.
    ///
    /// # Errors
    /// While gradients wait, or for a step that is not after the last one.
    pub fn begin(&mut self, step: Step) -> Result<()> {
        self.nothing_waits("begin_step")?;
        if step == Step(0) || step > LAST_STEP {
            let reason =
                format!("steps are counted from 1 to {}, and this is {}", LAST_STEP.0, step.0);
            return Err(Error::Argument { call: "begin_step", reason });
        }
        if let Some(applied) = self.applied.filter(|&applied| step <= applied) {
            let reason = format!("step {} was applied, and {} is not after it", applied.0, step.0);
            return Err(Error::Argument { call: "begin_step", reason });
        }
        self.step = step;
        self.moment = Moment::Begun;
        Ok(())
    }

    /// Allows a pull or a push.
    ///
    /// # Errors
    /// Outside of a step, or after its push.
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
                "begin the next step: a step has one push, of gradients summed by row",
            ),
        }
    }

    /// Notes a push that has succeeded.
    pub fn pushed(&mut self, mode: PushMode, needs_sweep: bool) {
        self.moment = match mode {
            PushMode::Stage => Moment::Staged,
            PushMode::Apply if needs_sweep => Moment::Unswept,
            PushMode::Apply => Moment::Applied,
        };
        if mode == PushMode::Apply {
            self.applied = Some(self.step);
        }
    }

    /// Allows `grad_sq_norm` and `apply`.
    ///
    /// # Errors
    /// Without staged gradients.
    pub fn allow_staged(&self, call: &'static str) -> Result<()> {
        match self.moment {
            Moment::Staged => Ok(()),
            Moment::Between => self.refuse(call, "call `begin_step` and `push` with `Stage` first"),
            Moment::Begun => self.refuse(call, "call `push` with `Stage` first"),
            Moment::Unswept | Moment::Applied => {
                self.refuse(call, "push with `Stage` where gradients are to be clipped")
            }
        }
    }

    /// Allows `sweep`; true where a rule waits for it.
    ///
    /// # Errors
    /// Without gradients that were pushed with `Apply`.
    pub fn allow_sweep(&self) -> Result<bool> {
        match self.moment {
            Moment::Unswept => Ok(true),
            Moment::Applied => Ok(false),
            Moment::Staged => self.refuse("sweep", "call `apply`, which sweeps, or `discard`"),
            Moment::Between | Moment::Begun => {
                self.refuse("sweep", "call `push` with `Apply` first")
            }
        }
    }

    /// Allows `discard`; true where gradients are staged.
    ///
    /// # Errors
    /// After a push that applied its gradients.
    pub fn allow_discard(&self) -> Result<bool> {
        match self.moment {
            Moment::Staged => Ok(true),
            Moment::Between | Moment::Begun => Ok(false),
            Moment::Unswept => self.refuse("discard", "call `sweep`: the gradients are applied"),
            Moment::Applied => self.refuse("discard", "go on: the gradients are applied"),
        }
    }

    /// Allows a call that must not see half of a step.
    ///
    /// # Errors
    /// While gradients wait to be applied.
    pub fn nothing_waits(&self, call: &'static str) -> Result<()> {
        match self.moment {
            Moment::Between | Moment::Begun | Moment::Applied => Ok(()),
            Moment::Staged => self.refuse(call, "call `apply` or `discard` first"),
            Moment::Unswept => self.refuse(call, "call `sweep` first"),
        }
    }

    /// Notes that the step's gradients and rules are applied.
    pub fn ended(&mut self) {
        self.applied = Some(self.step);
        self.moment = Moment::Between;
    }

    /// Notes that the step was skipped.
    pub fn skipped(&mut self) {
        self.moment = Moment::Between;
    }

    /// Notes that the tables were replaced, so that any step may come.
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
            "`push` was called before the first step: call `begin_step` first"
        );
    }

    #[test]
    fn steps_go_up_and_an_abandoned_one_may_be_tried_again() {
        let mut order = StepOrder::default();
        assert!(order.begin(Step(0)).is_err());
        order.begin(Step(5)).unwrap();
        order.begin(Step(5)).unwrap();
        order.pushed(PushMode::Stage, true);
        assert!(order.begin(Step(6)).is_err());
        order.skipped();
        order.begin(Step(5)).unwrap();
        order.pushed(PushMode::Apply, false);
        assert!(order.begin(Step(5)).is_err());
        order.begin(Step(6)).unwrap();
        order.reset();
        order.begin(Step(1)).unwrap();
    }
}
