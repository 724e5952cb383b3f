//! The parts of a step that several trainers give: their gradients, their dense gradients and their
//! decisions.
//!
//! # Invariants
//! * Sums are made in the order of the trainers, whatever the order of arrival.
//! * A step is applied once all trainers have sent the same decision.

use std::sync::Arc;

use zillion_feature::{LookupPlan, RowBuffer, Step};

use crate::error::{Error, Result};
use crate::merged::{MergedDense, MergedGradients};

/// The end of a step that a trainer has decided on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Decision {
    /// The gradients are applied with a factor.
    Apply {
        /// The factor of the learning rates.
        rate: f32,
        /// The factor of the gradients.
        scale: f32,
    },
    /// The gradients are dropped, and their keys count.
    Skip,
    /// The gradients are dropped.
    Discard,
}

/// One trainer's part of the exchange of a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    pub(super) rows: u64,
    pub(super) dense: Vec<f32>,
    pub(super) note: Vec<u8>,
}

/// The parts of all trainers together.
#[derive(Clone, Debug, Default)]
pub(super) struct Whole {
    pub(super) rows: u64,
    pub(super) dense: Vec<f32>,
    pub(super) notes: Vec<Vec<u8>>,
}

/// The state of the present step of several trainers.
#[derive(Debug)]
pub(super) struct Joint {
    staged: Vec<Option<(Arc<LookupPlan>, RowBuffer)>>,
    parts: Vec<Option<Part>>,
    decisions: Vec<Option<Decision>>,
    merged: MergedGradients,
    /// The buffer of the merged gradients, which is reused.
    buffer: RowBuffer,
}

impl Joint {
    pub(super) fn new(trainers: usize) -> Self {
        Self {
            staged: vec![None; trainers],
            parts: vec![None; trainers],
            decisions: vec![None; trainers],
            merged: MergedGradients::default(),
            buffer: RowBuffer::default(),
        }
    }

    /// Stages the gradients of a trainer. Returns the merged gradients of the step if all trainers
    /// have staged theirs.
    pub(super) fn stage(
        &mut self,
        trainer: usize,
        plan: Arc<LookupPlan>,
        gradients: RowBuffer,
    ) -> Option<(Arc<LookupPlan>, RowBuffer)> {
        self.staged[trainer] = Some((plan, gradients));
        if self.staged.iter().any(Option::is_none) {
            return None;
        }
        for (plan, gradients) in self.staged.iter_mut().filter_map(Option::take) {
            self.merged.add(&plan, &gradients);
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let plan = self.merged.finish(&mut buffer);
        self.merged.clear();
        Some((Arc::new(plan), buffer))
    }

    /// Takes back the memory of the merged gradients.
    pub(super) fn reuse(&mut self, buffer: RowBuffer) {
        self.buffer = buffer;
    }

    /// Records a trainer's part of the exchange. Returns the whole if it was the last one.
    ///
    /// # Errors
    /// Returns an error if the trainers have given different numbers of dense gradients.
    pub(super) fn exchange(&mut self, trainer: usize, part: Part) -> Result<Option<Whole>> {
        self.parts[trainer] = Some(part);
        if self.parts.iter().any(Option::is_none) {
            return Ok(None);
        }
        let parts: Vec<Part> = self.parts.iter_mut().filter_map(Option::take).collect();
        let floats = parts.iter().filter(|part| part.rows > 0).map(|part| part.dense.len());
        let floats: Vec<usize> = floats.collect();
        if floats.windows(2).any(|pair| pair[0] != pair[1]) {
            let reason = format!(
                "the trainers gave {floats:?} dense gradients; start all trainers with the same job"
            );
            return Err(Error::Argument { call: "exchange", reason });
        }
        let mut sum = MergedDense::default();
        for part in parts.iter().filter(|part| part.rows > 0) {
            sum.add(part.rows as usize, &part.dense);
        }
        let rows: u64 = parts.iter().map(|part| part.rows).sum();
        sum.finish(rows as usize);
        Ok(Some(Whole {
            rows,
            dense: sum.into_values(),
            notes: parts.into_iter().map(|part| part.note).collect(),
        }))
    }

    /// Records the decision of a trainer. Returns the common decision if it was the last one.
    ///
    /// # Errors
    /// Returns an error if the trainers have decided differently.
    pub(super) fn decide(
        &mut self,
        trainer: usize,
        decision: Decision,
        step: Step,
    ) -> Result<Option<Decision>> {
        self.decisions[trainer] = Some(decision);
        if self.decisions.iter().any(Option::is_none) {
            return Ok(None);
        }
        let decisions: Vec<Decision> = self.decisions.iter_mut().filter_map(Option::take).collect();
        // Steps that nobody pushed in are dropped with their decision.
        self.staged.iter_mut().for_each(|staged| *staged = None);
        if decisions.windows(2).any(|pair| pair[0] != pair[1]) {
            let reason = format!(
                "the trainers ended step {} in different ways ({decisions:?}); start all trainers \
                 with the same job and the same version of the program",
                step.0
            );
            return Err(Error::Argument { call: "apply", reason });
        }
        Ok(decisions.first().copied())
    }
}
