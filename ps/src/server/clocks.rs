//! The clocks of trainers that do not wait for each other in each step. A server applies an update
//! when it arrives, and a pull waits until no trainer is too far behind.
//!
//! # Invariants
//! * The updates of one trainer are applied once each and in their order.
//! * The rows of a pull never lack more steps of a trainer than the bound. The server measures this
//!   at each pull.
//! * A frame that could wait only for a later frame of the same trainer is refused, so trainers do
//!   not wait for each other in a circle: the trainer with the lowest clock never waits.

use crate::client::{MOST_STALENESS, Pace};
use crate::error::{Error, Result};
use crate::wire::PaceStatus;

/// The number of steps between the first wish to stop and the stop. A trainer receives the answer
/// to an update before it sends the next but one, so every trainer learns of the stop in time.
const STEPS_TO_STOP: u64 = 3;

/// The clocks of the trainers of a generation, and the state that the trainers share.
#[derive(Debug)]
pub(super) struct Clocks {
    pace: Pace,
    /// The run's number of steps at the beginning of the generation.
    base: u64,
    /// The number of updates with gradients.
    updates: u64,
    /// The number of steps of each trainer whose updates are applied.
    applied: Vec<u64>,
    /// The number of pulls by the number of steps that their rows lacked.
    stale_pulls: Vec<u64>,
    /// The step after which all trainers stop; 0 if no trainer wants to stop.
    stop_at: u64,
    /// This server's part of the dense parameters.
    dense: Vec<f32>,
    /// The number of steps of each trainer whose updates were applied in an earlier generation.
    /// The trainer may send the last of them again.
    applied_before: Vec<u64>,
    /// Whether an update was applied in this generation.
    is_begun: bool,
}

/// The answer to the question whether an update is to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The update is the next one of its trainer.
    Now,
    /// The update was applied in an earlier generation.
    Before,
}

impl Clocks {
    pub(super) fn new(pace: Pace, trainers: usize) -> Self {
        let counted = pace.staleness.map_or(0, |most| most as usize + 1);
        Self {
            pace,
            base: 0,
            updates: 0,
            applied: vec![0; trainers],
            stale_pulls: vec![0; counted],
            stop_at: 0,
            dense: Vec::new(),
            applied_before: vec![0; trainers],
            is_begun: false,
        }
    }

    /// Begins a generation that continues with the tables and the clocks of the one before it.
    pub(super) fn continue_on(&mut self) {
        self.applied_before.clone_from(&self.applied);
        self.is_begun = false;
    }

    /// Sets the clock of a trainer that continues from an earlier generation, in which it has sent
    /// the updates of `sent` steps. Returns the number of steps whose updates were applied here.
    pub(super) fn enter(&mut self, trainer: usize, sent: u64) -> u64 {
        let before = self.applied_before[trainer];
        let applied = &mut self.applied[trainer];
        *applied = (*applied).max(before).max(sent);
        before
    }

    /// Sets the run's number of steps and this server's part of the initial dense parameters.
    ///
    /// # Errors
    /// Returns an error after the first update.
    pub(super) fn begin(&mut self, step: u64, dense: Vec<f32>) -> Result<()> {
        if self.is_begun {
            return refuse("begin_pace", "the first step has ended; begin before `start`".into());
        }
        (self.base, self.dense) = (step, dense);
        Ok(())
    }

    /// Returns the step of the tables: the number of steps that the newest update has reached.
    pub(super) fn step(&self) -> u64 {
        match self.pace.counts_pushes {
            true => self.base + self.updates,
            false => self.base + self.applied.iter().max().copied().unwrap_or(0),
        }
    }

    /// Returns the step of the tables in which the next update is applied: an update of the step
    /// `number` of its trainer.
    pub(super) fn step_of_update(&self, number: u64) -> u64 {
        match self.pace.counts_pushes {
            true => self.step() + 1,
            // The steps of the tables never decrease.
            false => self.step().max(self.base + number),
        }
    }

    /// Checks that an update is the next one of its trainer.
    ///
    /// # Errors
    /// Returns an error if the update is not the next one, or if it has another number of dense
    /// parameters than this server.
    pub(super) fn check_update(&self, trainer: usize, number: u64, dense: usize) -> Result<Due> {
        if (1..=self.applied_before[trainer]).contains(&number) {
            return Ok(Due::Before);
        }
        let next = self.applied[trainer] + 1;
        if number != next {
            let reason = format!("the update of step {number} came instead of step {next}");
            return refuse("update", reason);
        }
        if dense != 0 && dense != self.dense.len() {
            let reason = format!(
                "the update has {dense} dense parameters, but the server holds {}; start all \
                 trainers with the same job",
                self.dense.len()
            );
            return refuse("update", reason);
        }
        Ok(Due::Now)
    }

    /// Records an update that [`Clocks::check_update`] has allowed and whose gradients are applied,
    /// and adds its changes of dense parameters.
    pub(super) fn record_update(
        &mut self,
        trainer: usize,
        has_gradients: bool,
        dense: &[f32],
        is_stopping: bool,
    ) {
        self.is_begun = true;
        self.applied[trainer] += 1;
        self.updates += u64::from(has_gradients);
        self.dense.iter_mut().zip(dense).for_each(|(sum, &change)| *sum += change);
        if is_stopping && self.stop_at == 0 {
            let newest = self.applied.iter().max().copied().unwrap_or(0);
            self.stop_at = newest + STEPS_TO_STOP;
        }
    }

    /// Returns whether the pull of a trainer's step may read rows now.
    ///
    /// # Errors
    /// Returns an error if the pull could wait only for a later frame of the same trainer.
    pub(super) fn allows_pull(&self, trainer: usize, number: u64) -> Result<bool> {
        let Some(most) = self.pace.staleness else { return Ok(true) };
        let needed = number.saturating_sub(1).saturating_sub(most);
        if self.applied[trainer] < needed {
            let reason = format!(
                "the pull of step {number} needs this trainer's update of step {needed}; send the \
                 update first"
            );
            return refuse("pull", reason);
        }
        Ok(self.slowest() >= needed)
    }

    /// Measures the steps that the rows of a pull lack, and counts the pull.
    pub(super) fn record_pull(&mut self, number: u64) {
        let lacks = number.saturating_sub(1).saturating_sub(self.slowest());
        if self.stale_pulls.is_empty() {
            return;
        }
        // A pull above the bound would be a fault, which must be seen.
        let lacks = lacks.min(2 * MOST_STALENESS) as usize;
        if lacks >= self.stale_pulls.len() {
            self.stale_pulls.resize(lacks + 1, 0);
        }
        self.stale_pulls[lacks] += 1;
    }

    /// Returns whether the updates of all trainers up to a step are applied.
    ///
    /// # Errors
    /// Returns an error if the trainer itself has not sent its updates up to this step.
    pub(super) fn is_settled(&self, trainer: usize, number: u64) -> Result<bool> {
        if self.applied[trainer] < number {
            let reason = format!("the trainer has not sent its update of step {number}");
            return refuse("settle", reason);
        }
        Ok(self.slowest() >= number)
    }

    /// Returns this server's part of the dense parameters.
    pub(super) fn dense(&self) -> &[f32] {
        &self.dense
    }

    /// Returns the step after which all trainers stop; 0 if no trainer wants to stop.
    pub(super) fn stop_at(&self) -> u64 {
        self.stop_at
    }

    /// Returns the state of the clocks for people and for metrics.
    pub(super) fn status(&self) -> PaceStatus {
        PaceStatus { applied: self.applied.clone(), stale_pulls: self.stale_pulls.clone() }
    }

    fn slowest(&self) -> u64 {
        self.applied.iter().min().copied().unwrap_or(0)
    }
}

fn refuse<T>(call: &'static str, reason: String) -> Result<T> {
    Err(Error::Argument { call, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(staleness: Option<u64>, counts_pushes: bool) -> Clocks {
        let mut clocks = Clocks::new(Pace { staleness, counts_pushes }, 3);
        clocks.begin(100, vec![1.0, 2.0]).unwrap();
        clocks
    }

    /// Applies the next updates of a trainer.
    fn update(clocks: &mut Clocks, trainer: usize, count: u64) {
        for _ in 0..count {
            let number = clocks.applied[trainer] + 1;
            assert_eq!(clocks.check_update(trainer, number, 2).unwrap(), Due::Now);
            clocks.record_update(trainer, true, &[0.5, 0.25], false);
        }
    }

    #[test]
    fn a_pull_waits_for_the_slowest_trainer() {
        let mut clocks = clocks(Some(2), true);
        update(&mut clocks, 0, 5);
        update(&mut clocks, 1, 4);
        // Step 3 needs the steps up to 0 of every trainer, and step 4 needs step 1.
        assert!(clocks.allows_pull(0, 3).unwrap());
        assert!(!clocks.allows_pull(0, 4).unwrap());
        update(&mut clocks, 2, 1);
        assert!(clocks.allows_pull(0, 4).unwrap());
        assert!(!clocks.allows_pull(0, 5).unwrap());
        clocks.record_pull(4);
        clocks.record_pull(2);
        clocks.record_pull(1);
        assert_eq!(clocks.status().stale_pulls, [2, 0, 1]);
        assert_eq!(clocks.status().applied, [5, 4, 1]);
    }

    #[test]
    fn a_frame_that_needs_a_later_frame_of_its_trainer_is_refused() {
        let mut strict = clocks(Some(0), true);
        update(&mut strict, 0, 1);
        update(&mut strict, 1, 1);
        assert!(!strict.allows_pull(0, 2).unwrap(), "trainer 2 has not updated");
        let error = strict.allows_pull(0, 3).unwrap_err().to_string();
        assert!(error.contains("this trainer's update of step 2"), "{error}");
        assert!(strict.is_settled(0, 2).is_err());
        assert!(!strict.is_settled(0, 1).unwrap());
        update(&mut strict, 2, 1);
        assert!(strict.is_settled(0, 1).unwrap());
    }

    #[test]
    fn without_a_bound_no_pull_waits() {
        let mut clocks = clocks(None, true);
        assert!(clocks.allows_pull(1, 9999).unwrap());
        clocks.record_pull(9999);
        assert!(clocks.status().stale_pulls.is_empty());
    }

    #[test]
    fn updates_come_once_and_in_order() {
        let mut clocks = clocks(Some(2), true);
        update(&mut clocks, 1, 2);
        for wrong in [0, 2, 4] {
            let error = clocks.check_update(1, wrong, 0).unwrap_err().to_string();
            assert!(error.contains("instead of step 3"), "{error}");
        }
        assert!(clocks.check_update(1, 3, 1).unwrap_err().to_string().contains("dense"));
        assert_eq!(clocks.dense(), [2.0, 2.5]);
        assert!(clocks.begin(7, Vec::new()).is_err());
    }

    #[test]
    fn steps_of_tables_count_pushes_or_steps_of_the_run() {
        let mut by_push = clocks(Some(2), true);
        let mut by_step = clocks(Some(2), false);
        for clocks in [&mut by_push, &mut by_step] {
            assert_eq!((clocks.step(), clocks.step_of_update(1)), (100, 101));
            update(clocks, 0, 3);
            update(clocks, 1, 1);
            // A trainer without a batch moves only its clock.
            clocks.record_update(2, false, &[], false);
        }
        assert_eq!((by_push.step(), by_push.step_of_update(2)), (104, 105));
        assert_eq!((by_step.step(), by_step.step_of_update(2)), (103, 103));
        assert_eq!(by_step.step_of_update(4), 104);
    }

    #[test]
    fn clocks_continue_in_a_later_generation() {
        let mut clocks = clocks(Some(2), true);
        update(&mut clocks, 0, 5);
        update(&mut clocks, 1, 3);
        clocks.continue_on();
        // Trainer 0 does not know that its step 5 was applied. Two updates of trainer 1 are lost.
        assert_eq!((clocks.enter(0, 4), clocks.enter(1, 5), clocks.enter(2, 0)), (5, 3, 0));
        assert_eq!(clocks.status().applied, [5, 5, 0]);
        assert_eq!(clocks.check_update(0, 5, 2).unwrap(), Due::Before);
        assert_eq!(clocks.check_update(0, 6, 2).unwrap(), Due::Now);
        assert!(clocks.check_update(1, 5, 2).is_err(), "the lost updates stay lost");
        assert_eq!(clocks.check_update(1, 6, 2).unwrap(), Due::Now);
        assert_eq!(clocks.dense(), [5.0, 4.0]);
        let mut anew = Clocks::new(Pace { staleness: Some(2), counts_pushes: true }, 2);
        assert_eq!((anew.enter(0, 4), anew.enter(1, 5)), (0, 0));
        anew.begin(109, vec![0.0; 2]).unwrap();
        assert_eq!(anew.check_update(1, 6, 2).unwrap(), Due::Now);
    }

    #[test]
    fn a_wish_to_stop_gives_one_step_for_all() {
        let mut clocks = clocks(Some(2), true);
        update(&mut clocks, 0, 4);
        clocks.record_update(1, false, &[], true);
        assert_eq!(clocks.stop_at(), 7);
        clocks.record_update(0, false, &[], true);
        assert_eq!(clocks.stop_at(), 7);
    }
}
