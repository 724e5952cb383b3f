//! The optimizer of a model's dense parameters.
//!
//! # Invariants
//! The state belongs to a parameter by its name, and has the shape of the parameter. Parameters
//! that are not trainable (running statistics) have no state. Neither a step nor the regulariser
//! changes them. A step that is refused changes nothing.

use zillion_device::workers::Workers;

use super::device::check_factors;
use super::lamb::SqLengths;
use super::rule::Rule;
use super::shaping::{Block, Shaping, sq_norm};
use super::spec::DenseOptimizerSpec;
use crate::error::{Error, Result};
use crate::graph::ParamSpec;
use crate::graph::shape::ParamId;
use crate::params::Params;

/// The number of floats that one task of the pool updates. The result depends on this number,
/// because the squared norm is summed block by block.
pub(super) const BLOCK: usize = 16 * 1024;

/// A dense optimizer and its state.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseOptimizer {
    spec: DenseOptimizerSpec,
    pub(super) l2: f32,
    steps: u64,
    /// The state of each parameter, in the order of parameters.
    slots: Vec<Slot>,
}

/// The state of one parameter. It is empty if the rule has no state or the parameter is not
/// trainable.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) shape: [usize; 2],
    pub(super) trainable: bool,
    /// The factor by which the learning rate of the parameter is multiplied. It is a setting, and a
    /// checkpoint does not store it.
    pub(super) rate: f32,
    pub(super) first: Vec<f32>,
    pub(super) second: Vec<f32>,
}

impl DenseOptimizer {
    /// Creates the initial state of these parameters. `l2` is the λ of the loss term `(λ/2)·|w|²`
    /// over all trainable parameters.
    ///
    /// # Errors
    /// Returns an error if `l2` is negative or infinite.
    pub fn new(spec: DenseOptimizerSpec, l2: f64, params: &[ParamSpec]) -> Result<Self> {
        if !(l2.is_finite() && l2 >= 0.0) {
            let reason = format!("must be 0 or above, found {l2}");
            return Err(Error::Setting { name: "l2", reason });
        }
        let [first, second] = Rule::state_names(&spec);
        let start = match spec {
            DenseOptimizerSpec::Adagrad { initial_accumulator, .. } => initial_accumulator as f32,
            _ => 0.0,
        };
        let slots = params.iter().map(|param| {
            let len = if param.trainable { param.rows * param.cols } else { 0 };
            let state = |name: Option<&str>| vec![start; if name.is_some() { len } else { 0 }];
            Slot {
                name: param.name.clone(),
                shape: [param.rows, param.cols],
                trainable: param.trainable,
                rate: 1.0,
                first: state(first),
                second: state(second),
            }
        });
        Ok(Self { spec, l2: l2 as f32, steps: 0, slots: slots.collect() })
    }

    /// Returns the rule and its settings.
    #[must_use]
    pub fn spec(&self) -> &DenseOptimizerSpec {
        &self.spec
    }

    /// Returns the number of steps made so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Makes one step, which updates every trainable parameter with the gradient `(g + λ·w) ·
    /// grad_scale`. The learning rate is multiplied by `rate_scale`. The function `gradient`
    /// returns the gradient `g` of a parameter, or `None` if there is none.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if the optimizer was created for different
    /// parameters, if a gradient is missing or has the wrong length, or if a scale is not finite.
    pub fn step<'g>(
        &mut self,
        params: &mut Params,
        gradient: impl Fn(ParamId) -> Option<&'g [f32]>,
        rate_scale: f32,
        grad_scale: f32,
        workers: &Workers,
    ) -> Result<()> {
        check_factors(rate_scale, grad_scale)?;
        let gradients = self.gradients(params, gradient)?;
        self.count_steps(1);
        let shaping = Shaping { l2: self.l2, scale: grad_scale };

        let params_len = self.slots.len();
        let mut blocks = Vec::new();
        for ((param, (slot, (_, weights))), raw) in
            self.slots.iter_mut().zip(params.iter_mut()).enumerate().zip(gradients)
        {
            let rule = Rule::at(&self.spec, self.steps, rate_scale * slot.rate);
            let mut first = slot.first.chunks_mut(BLOCK);
            let mut second = slot.second.chunks_mut(BLOCK);
            for (weights, raw) in weights.chunks_mut(BLOCK).zip(raw.chunks(BLOCK)) {
                let first = first.next().unwrap_or_default();
                let second = second.next().unwrap_or_default();
                let lengths = SqLengths::default();
                let block = Block { weights, first, second, raw };
                blocks.push(Task { param, rule, block, lengths });
            }
        }
        workers.for_each_mut(&mut blocks, |_, task| {
            task.rule.apply(&mut task.block, shaping);
            if let Rule::Lamb(rule) = task.rule {
                task.lengths = rule.sq_lengths(&task.block);
            }
        });
        if matches!(self.spec, DenseOptimizerSpec::Lamb { .. }) {
            apply_trust_ratios(&mut blocks, params_len, workers);
        }
        Ok(())
    }

    /// Sets the factors of the learning rates, with one factor for each parameter, in order.
    ///
    /// # Errors
    /// Returns an error if the number of factors is not the number of parameters, or if a factor is
    /// not a positive number.
    pub fn set_rates(&mut self, factors: &[f32]) -> Result<()> {
        let refuse = |reason| Err(Error::Setting { name: "train.rates", reason });
        if factors.len() != self.slots.len() {
            return refuse(format!(
                "found {} factors for {} parameters; give one factor for each parameter",
                factors.len(),
                self.slots.len()
            ));
        }
        if let Some(factor) = factors.iter().find(|&&f| !(f.is_finite() && f > 0.0)) {
            return refuse(format!("a factor must be a positive number, found {factor}"));
        }
        self.slots.iter_mut().zip(factors).for_each(|(slot, &factor)| slot.rate = factor);
        Ok(())
    }

    /// Returns the squared norm of `g + λ·w` over every trainable parameter, in f64 and in a fixed
    /// order. The result is not finite if a gradient is not finite.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`Self::step`].
    pub fn sq_norm<'g>(
        &self,
        params: &Params,
        gradient: impl Fn(ParamId) -> Option<&'g [f32]>,
        workers: &Workers,
    ) -> Result<f64> {
        let gradients = self.gradients(params, gradient)?;
        let mut blocks = Vec::new();
        for ((_, weights), raw) in params.iter().zip(gradients) {
            blocks.extend(weights.chunks(BLOCK).zip(raw.chunks(BLOCK)).map(|pair| (pair, 0.0)));
        }
        workers.for_each_mut(&mut blocks, |_, ((weights, raw), sum)| {
            *sum = sq_norm(weights, raw, self.l2);
        });
        Ok(blocks.iter().map(|&(_, sum)| sum).sum())
    }

    /// Returns the regulariser's part of the loss, `(λ/2)·|w|²` over every trainable parameter.
    #[must_use]
    pub fn regulariser(&self, params: &Params) -> f64 {
        if self.l2 == 0.0 {
            return 0.0;
        }
        let trainable = params.iter().filter(|(spec, _)| spec.trainable);
        let squares: f64 = trainable
            .flat_map(|(_, weights)| weights.chunks(BLOCK))
            .map(|weights| sq_norm(weights, weights, 0.0))
            .sum();
        0.5 * f64::from(self.l2) * squares
    }

    /// Returns the gradient of each parameter, in order. The gradient of a parameter that is not
    /// trainable is empty.
    fn gradients<'g>(
        &self,
        params: &Params,
        gradient: impl Fn(ParamId) -> Option<&'g [f32]>,
    ) -> Result<Vec<&'g [f32]>> {
        let wrong = |name: &str, reason: &str| {
            Err(Error::Param { name: name.to_owned(), reason: reason.to_owned() })
        };
        if params.len() != self.slots.len() {
            let name = params.specs().get(self.slots.len()).map_or("", |spec| &spec.name);
            return wrong(name, "the optimizer was made for another model");
        }
        let mut gradients = Vec::with_capacity(self.slots.len());
        for (id, (slot, (spec, weights))) in (0..).zip(self.slots.iter().zip(params.iter())) {
            if slot.name != spec.name || slot.shape != [spec.rows, spec.cols] {
                return wrong(&spec.name, "the optimizer was made for another model");
            }
            if !slot.trainable {
                gradients.push(&[][..]);
                continue;
            }
            match gradient(ParamId(id)) {
                Some(raw) if raw.len() == weights.len() => gradients.push(raw),
                Some(_) => {
                    return wrong(
                        &spec.name,
                        "its gradient does not have the length of the \
                                              parameter; use the gradients of this model",
                    );
                }
                None => {
                    return wrong(&spec.name, "it has no gradient; run the backward pass first");
                }
            }
        }
        Ok(gradients)
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub(super) fn slots_mut(&mut self) -> &mut [Slot] {
        &mut self.slots
    }

    /// Counts steps, and returns the number of the last one.
    pub(super) fn count_steps(&mut self, steps: u64) -> u64 {
        self.steps += steps;
        self.steps
    }

    pub(super) fn restore(&mut self, steps: u64, slots: Vec<Slot>) {
        self.steps = steps;
        self.slots = slots;
    }
}

/// A block of a parameter that one task of the pool updates.
struct Task<'a> {
    /// The index of the parameter.
    param: usize,
    rule: Rule,
    block: Block<'a>,
    /// The squared lengths of the block's weights and direction, which LAMB needs.
    lengths: SqLengths,
}

/// Makes the second pass of LAMB. For each parameter, it adds up the squared lengths of the blocks
/// in block order, and then updates the weights.
fn apply_trust_ratios(tasks: &mut [Task<'_>], params: usize, workers: &Workers) {
    let mut lengths = vec![SqLengths::default(); params];
    for task in &*tasks {
        lengths[task.param].weights += task.lengths.weights;
        lengths[task.param].direction += task.lengths.direction;
    }
    workers.for_each_mut(tasks, |_, task| {
        if let Rule::Lamb(rule) = task.rule {
            let step_size = rule.step_size(lengths[task.param]);
            rule.update_weights(&mut task.block, step_size);
        }
    });
}
