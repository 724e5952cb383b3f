//! The averages of dense parameters over training steps. Validation, the scores of a checkpoint and
//! published versions use the average instead of the newest weights.
//!
//! Training continues from the weights themselves and does not read the average. The running
//! statistics of batch norm are averaged like weights, so that they fit the averaged weights. The
//! rows of tables are not averaged.
//!
//! # Invariants
//! An average depends only on the weights after each step. It is part of the checkpoint, so a
//! resumed run computes the same bits.

use safetensors::tensor::{SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use zillion_device::simd::vectorised;
use zillion_device::workers::Workers;

use super::tensors::{SEPARATOR, count_tensor, read_count, read_params, wrong};
use crate::checks::{at_least_one, inner_share};
use crate::error::Result;
use crate::graph::ParamSpec;
use crate::params::{Params, float_tensor};

/// The prefix of the name under which a checkpoint stores the average of a parameter.
const VALUE: &str = "average.value";
const COUNT: &str = "average.count/";

/// The number of floats that one task of the pool averages.
const BLOCK: usize = 16 * 1024;

/// The settings of averaging the dense parameters: `{ kind = "ema", decay = 0.999 }`. Steps are
/// counted from the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum AverageSpec {
    /// An exponential moving average: after each step, `a = d * a + (1 - d) * w`. In the `n`th
    /// step, `d` is the smaller of `decay` and `(1 + n) / (10 + n)`, as in TensorFlow's
    /// `ExponentialMovingAverage`. So the influence of the first steps soon becomes small.
    Ema {
        /// The share of the old average in the new average, above 0 and below 1.
        #[serde(default = "default_decay", deserialize_with = "inner_share")]
        decay: f64,
        /// The number of steps at the start of the run that are not averaged.
        #[serde(default)]
        start: u64,
    },
    /// The mean of the weights after every `every`th step (Izmailov et al. 2018, "Averaging Weights
    /// Leads to Wider Optima").
    Swa {
        /// The interval between two averaged steps, in steps.
        #[serde(default = "one", deserialize_with = "at_least_one")]
        every: u64,
        /// The number of steps at the start of the run that are not averaged.
        #[serde(default)]
        start: u64,
    },
}

/// An average of the weights, and the number of steps in the average.
#[derive(Clone, Debug, PartialEq)]
pub struct Average {
    spec: AverageSpec,
    count: u64,
    values: Params,
}

impl Average {
    /// Creates an average that contains no step yet.
    #[must_use]
    pub fn new(spec: AverageSpec, params: &Params) -> Self {
        Self { spec, count: 0, values: params.clone() }
    }

    /// Returns the averaged parameters, or `None` if no step has been averaged yet.
    #[must_use]
    pub fn params(&self) -> Option<&Params> {
        (self.count > 0).then_some(&self.values)
    }

    /// Adds the weights after step `step` of the run, counted from 1.
    ///
    /// # Errors
    /// Returns an error if the average was created for other parameters.
    pub fn update(&mut self, params: &Params, step: u64, workers: &Workers) -> Result<()> {
        let share = match self.spec {
            AverageSpec::Ema { start, .. } if step <= start => return Ok(()),
            AverageSpec::Swa { start, every }
                if step <= start || !(step - start).is_multiple_of(every) =>
            {
                return Ok(());
            }
            AverageSpec::Ema { decay, .. } => {
                let n = self.count as f64;
                1.0 - decay.min((1.0 + n) / (10.0 + n))
            }
            AverageSpec::Swa { .. } => 1.0 / (self.count as f64 + 1.0),
        };
        if self.count == 0 {
            self.values.copy_from(params)?;
        } else {
            params.fits(self.values.specs())?;
            let share = share as f32;
            let pairs = self.values.iter_mut().zip(params.iter());
            let mut blocks: Vec<(&mut [f32], &[f32])> = pairs
                .flat_map(|((_, a), (_, w))| a.chunks_mut(BLOCK).zip(w.chunks(BLOCK)))
                .collect();
            workers.for_each_mut(&mut blocks, |_, (average, weights)| {
                vectorised(
                    #[inline(always)]
                    || {
                        for (a, &w) in average.iter_mut().zip(*weights) {
                            *a += share * (w - *a);
                        }
                    },
                );
            });
        }
        self.count += 1;
        Ok(())
    }

    /// Restores the average from a checkpoint, so that training continues as if it had not been
    /// interrupted.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if the bytes are not a file of dense parameters. Also
    /// returns an error if they contain no average of these parameters.
    pub fn read(&mut self, bytes: &[u8]) -> Result<()> {
        let file = SafeTensors::deserialize(bytes)?;
        let Some(count) = count(&file) else {
            return Err(wrong(
                COUNT,
                "the checkpoint has no averaged parameters; resume without `train.average`",
            ));
        };
        self.values = averaged(self.values.specs(), &file)?;
        self.count = count;
        Ok(())
    }

    /// Returns the tensors with which a checkpoint stores the average.
    pub(super) fn tensors<'a>(
        &'a self,
        count: &'a [u8; 8],
    ) -> Result<Vec<(String, TensorView<'a>)>> {
        let mut tensors = vec![(COUNT.to_owned(), count_tensor(count)?)];
        for (spec, values) in self.values.iter() {
            let name = format!("{VALUE}{SEPARATOR}{}", spec.name);
            tensors.push((name, float_tensor([spec.rows, spec.cols], values)?));
        }
        Ok(tensors)
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

/// Returns whether a tensor with this name is a part of an average.
pub(super) fn is_average(name: &str) -> bool {
    name.starts_with("average.")
}

/// Returns the parameters for scoring. They are the average if the file contains an average of at
/// least one step, and otherwise the weights.
///
/// # Errors
/// Returns an error for the same reasons as [`read_params`].
pub fn read_scoring_params(specs: &[ParamSpec], bytes: &[u8]) -> Result<Params> {
    let file = SafeTensors::deserialize(bytes)?;
    match count(&file) {
        Some(count) if count > 0 => averaged(specs, &file),
        _ => read_params(specs, bytes),
    }
}

fn count(file: &SafeTensors<'_>) -> Option<u64> {
    read_count(&file.tensor(COUNT).ok()?)
}

fn averaged<'a>(specs: &[ParamSpec], file: &SafeTensors<'a>) -> Result<Params> {
    let own = |(name, tensor): (String, TensorView<'a>)| {
        let (before, name) = name.split_once(SEPARATOR)?;
        (before == VALUE).then(|| (name.to_owned(), tensor))
    };
    Params::from_tensors(specs, file.tensors().into_iter().filter_map(own), &mut || {})
}

fn default_decay() -> f64 {
    0.999
}

fn one() -> u64 {
    1
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::graph::ParamInit;
    use crate::graph::shape::ParamId;
    use crate::optim::{DenseOptimizer, DenseOptimizerSpec, write_dense_with};

    fn specs() -> Vec<ParamSpec> {
        let init = ParamInit::Constant { value: 0.0 };
        let spec = |name: &str, cols, trainable| ParamSpec {
            name: name.into(),
            rows: 1,
            cols,
            init,
            trainable,
        };
        vec![spec("w", 20_000, true), spec("norm.running_mean", 3, false)]
    }

    /// Returns the weights after step `step`.
    fn weights(step: u64) -> Params {
        let mut params = Params::init(&specs(), 0);
        for (index, (_, values)) in params.iter_mut().enumerate() {
            for (i, value) in values.iter_mut().enumerate() {
                *value = ((step as f32) * 0.37 + i as f32 * 0.001 + index as f32).sin();
            }
        }
        params
    }

    fn workers(threads: usize) -> Workers {
        Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    fn run(spec: AverageSpec, steps: u64, threads: usize) -> Average {
        let mut average = Average::new(spec, &weights(0));
        let workers = workers(threads);
        (1..=steps).for_each(|step| average.update(&weights(step), step, &workers).unwrap());
        average
    }

    fn close(found: f32, expected: f64) {
        assert!((f64::from(found) - expected).abs() < 1e-6, "{found} {expected}");
    }

    #[test]
    fn are_what_their_formulas_say() {
        let at = |step: u64, i: usize| f64::from(weights(step).value(ParamId(0))[i]);
        let ema = run(AverageSpec::Ema { decay: 0.8, start: 2 }, 40, 2);
        let swa = run(AverageSpec::Swa { every: 5, start: 10 }, 41, 2);
        for i in [0, 17, 19_999] {
            let mut expected = at(3, i);
            for (n, step) in (1..).zip(4..=40) {
                let decay = 0.8f64.min((1.0 + f64::from(n)) / (10.0 + f64::from(n)));
                expected = decay * expected + (1.0 - decay) * at(step, i);
            }
            close(ema.params().unwrap().value(ParamId(0))[i], expected);
            let mean = (15..=40).step_by(5).map(|step| at(step, i)).sum::<f64>() / 6.0;
            close(swa.params().unwrap().value(ParamId(0))[i], mean);
        }
        // The running statistics are averaged too.
        assert_ne!(swa.params().unwrap().value(ParamId(1)), weights(41).value(ParamId(1)));
        assert_eq!(run(AverageSpec::Swa { every: 5, start: 10 }, 14, 1).params(), None);
    }

    #[test]
    fn threads_and_checkpoints_keep_the_bits() {
        for spec in
            [AverageSpec::Ema { decay: 0.9, start: 1 }, AverageSpec::Swa { every: 3, start: 0 }]
        {
            let whole = run(spec, 20, 3);
            assert_eq!(whole, run(spec, 20, 1));
            let (half, params) = (run(spec, 9, 1), weights(9));
            let optimizer =
                DenseOptimizer::new(DenseOptimizerSpec::default(), 0.0, &specs()).unwrap();
            let bytes = write_dense_with(&params, &optimizer, Some(&half)).unwrap();
            let mut again = Average::new(spec, &weights(0));
            again.read(&bytes).unwrap();
            assert_eq!(again, half);
            (10..=20).for_each(|step| again.update(&weights(step), step, &workers(1)).unwrap());
            assert_eq!(again, whole);
            // Scoring uses the average, and training continues from the weights. The optimizer does
            // not read the average.
            assert_eq!(read_scoring_params(&specs(), &bytes).unwrap(), *half.params().unwrap());
            assert_eq!(read_params(&specs(), &bytes).unwrap(), params);
            let mut fresh = optimizer.clone();
            fresh.read(&bytes).unwrap();
            assert_eq!(fresh, optimizer);
        }
    }

    #[test]
    fn a_file_without_one_scores_with_the_weights() {
        let params = weights(1);
        let optimizer = DenseOptimizer::new(DenseOptimizerSpec::default(), 0.0, &specs()).unwrap();
        let none = Average::new(AverageSpec::Swa { every: 1, start: 9 }, &params);
        for average in [None, Some(&none)] {
            let bytes = write_dense_with(&params, &optimizer, average).unwrap();
            assert_eq!(read_scoring_params(&specs(), &bytes).unwrap(), params);
            assert_eq!(none.clone().read(&bytes).is_ok(), average.is_some());
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let read = |text: &str| toml::from_str::<AverageSpec>(text);
        assert_eq!(read("kind = 'ema'").unwrap(), AverageSpec::Ema { decay: 0.999, start: 0 });
        assert_eq!(read("kind = 'swa'").unwrap(), AverageSpec::Swa { every: 1, start: 0 });
        for bad in [
            "kind = 'ema'\ndecay = 1",
            "kind = 'ema'\ndecay = 0",
            "kind = 'swa'\nevery = 0",
            "kind = 'swa'\ndecay = 0.5",
            "kind = 'polyak'",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
