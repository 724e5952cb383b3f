//! Tests of optimizers against references in f64, against formulas for the final result, and after
//! a restart from a checkpoint.

use std::num::NonZeroUsize;

use proptest::prelude::*;
use zillion_device::Workers;

use super::*;
use crate::error::Error;
use crate::graph::shape::ParamId;
use crate::graph::{ParamInit, ParamSpec};
use crate::params::Params;

fn specs() -> Vec<ParamSpec> {
    let spec = |name: &str, rows, cols, trainable| ParamSpec {
        name: name.to_owned(),
        rows,
        cols,
        init: ParamInit::Normal { std: 0.5 },
        trainable,
    };
    vec![
        spec("mlp.0.weight", 40, 13, true),
        spec("mlp.0.norm.running_mean", 1, 13, false),
        spec("mlp.0.bias", 1, 13, true),
        // This parameter has more than one block, and the last block is short.
        spec("cross.weight", 170, 211, true),
    ]
}

fn workers(threads: usize) -> Workers {
    Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

/// Returns gradients for step `step`. All their numbers are different.
fn gradients(params: &Params, step: u64) -> Vec<Vec<f32>> {
    let gradient = |index: usize, i: usize| {
        let bits = zillion_feature::random::combine(step * 100 + index as u64, i as u64);
        zillion_feature::random::unit_f32(bits as u32) - 0.5
    };
    (0..)
        .zip(params.iter())
        .map(|(index, (_, values))| (0..values.len()).map(|i| gradient(index, i)).collect())
        .collect()
}

fn of<'g>(gradients: &'g [Vec<f32>]) -> impl Fn(ParamId) -> Option<&'g [f32]> {
    |id| gradients.get(id.0 as usize).map(Vec::as_slice)
}

const ALL: [DenseOptimizerSpec; 10] = [
    DenseOptimizerSpec::Sgd { lr: 0.05, momentum: 0.0 },
    DenseOptimizerSpec::Sgd { lr: 0.05, momentum: 0.9 },
    DenseOptimizerSpec::Adagrad { lr: 0.02, initial_accumulator: 0.1, eps: 1e-10 },
    DenseOptimizerSpec::Adam { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8 },
    DenseOptimizerSpec::Momentum { lr: 0.05, momentum: 0.9, nesterov: false },
    DenseOptimizerSpec::Momentum { lr: 0.05, momentum: 0.9, nesterov: true },
    DenseOptimizerSpec::Adamw { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1 },
    DenseOptimizerSpec::Ftrl { lr: 0.05, beta: 1.0, l1: 0.0, l2: 0.0 },
    DenseOptimizerSpec::Ftrl { lr: 0.05, beta: 1.0, l1: 0.3, l2: 0.1 },
    DenseOptimizerSpec::Lamb { lr: 1e-2, beta1: 0.9, beta2: 0.999, eps: 1e-6, weight_decay: 0.1 },
];

fn lamb() -> DenseOptimizerSpec {
    ALL[9]
}

/// The optimizer of one weight, computed in f64 by the published formulas.
struct Reference {
    weight: f64,
    first: f64,
    second: f64,
}

impl Reference {
    fn step(&mut self, spec: &DenseOptimizerSpec, t: i32, gradient: f64, rate_scale: f64) {
        let g = gradient;
        match *spec {
            DenseOptimizerSpec::Sgd { lr, momentum } => {
                self.first = momentum * self.first + g;
                self.weight -= lr * rate_scale * self.first;
            }
            DenseOptimizerSpec::Adagrad { lr, eps, .. } => {
                self.first += g * g;
                self.weight -= lr * rate_scale * g / (self.first.sqrt() + eps);
            }
            DenseOptimizerSpec::Adam { lr, beta1, beta2, eps } => {
                self.first = beta1 * self.first + (1.0 - beta1) * g;
                self.second = beta2 * self.second + (1.0 - beta2) * g * g;
                let m_hat = self.first / (1.0 - beta1.powi(t));
                let v_hat = self.second / (1.0 - beta2.powi(t));
                self.weight -= lr * rate_scale * m_hat / (v_hat.sqrt() + eps);
            }
            // The formula is that of torch.optim.SGD with `dampening` 0.
            DenseOptimizerSpec::Momentum { lr, momentum, nesterov } => {
                self.first = momentum * self.first + g;
                let direction = if nesterov { g + momentum * self.first } else { self.first };
                self.weight -= lr * rate_scale * direction;
            }
            // The formula is that of torch.optim.AdamW. First, the weight decays with the current
            // learning rate.
            DenseOptimizerSpec::Adamw { lr, beta1, beta2, eps, weight_decay } => {
                self.weight *= 1.0 - lr * rate_scale * weight_decay;
                let adam = DenseOptimizerSpec::Adam { lr, beta1, beta2, eps };
                self.step(&adam, t, gradient, rate_scale);
            }
            // In McMahan et al. 2013, Algorithm 1, only z and n are state, and weights are computed
            // from them. If a parameter is not initially 0, its z is chosen so that it gives the
            // initial weight.
            DenseOptimizerSpec::Ftrl { lr, beta, l1, l2 } => {
                let alpha = lr * rate_scale;
                let (z, n) = (&mut self.first, &mut self.second);
                let sigma = ((*n + g * g).sqrt() - n.sqrt()) / alpha;
                *z += g - sigma * self.weight;
                *n += g * g;
                self.weight = match z.abs() <= l1 {
                    true => 0.0,
                    false => -(*z - z.signum() * l1) / ((beta + n.sqrt()) / alpha + l2),
                };
            }
            DenseOptimizerSpec::Lamb { .. } => unreachable!("of whole parameters: see `lamb_step`"),
        }
    }
}

#[test]
fn follow_the_textbook() {
    let workers = workers(2);
    let l2 = 0.01;
    for spec in ALL.into_iter().filter(|spec| *spec != lamb()) {
        let mut params = Params::init(&specs(), 3);
        let is_ftrl = matches!(spec, DenseOptimizerSpec::Ftrl { .. });
        if is_ftrl {
            // In the paper, all weights are initially 0. (Other initial weights follow the rule of
            // the tables.)
            params.iter_mut().for_each(|(_, values)| values.fill(0.0));
        }
        let start = match spec {
            DenseOptimizerSpec::Adagrad { initial_accumulator, .. } => initial_accumulator,
            _ => 0.0,
        };
        let mut references: Vec<Vec<Reference>> = params
            .iter()
            .map(|(_, values)| {
                let reference =
                    |&w: &f32| Reference { weight: f64::from(w), first: start, second: 0.0 };
                values.iter().map(reference).collect()
            })
            .collect();
        let mut optimizer = DenseOptimizer::new(spec, l2, params.specs()).unwrap();
        for step in 1..=25 {
            let (rate_scale, grad_scale) = match step > 10 {
                // In the paper, alpha is constant.
                true if is_ftrl => (1.0, 0.3),
                true => (0.1, 0.3),
                false => (1.0, 1.0),
            };
            let raw = gradients(&params, step as u64);
            optimizer.step(&mut params, of(&raw), rate_scale, grad_scale, &workers).unwrap();
            for (index, references) in references.iter_mut().enumerate() {
                if !params.specs()[index].trainable {
                    continue;
                }
                for (reference, &g) in references.iter_mut().zip(&raw[index]) {
                    let g = (f64::from(g) + l2 * reference.weight) * f64::from(grad_scale);
                    reference.step(&spec, step, g, f64::from(rate_scale));
                }
            }
        }
        for (references, (param, values)) in references.iter().zip(params.iter()) {
            for (reference, &value) in references.iter().zip(values) {
                let error = (reference.weight - f64::from(value)).abs();
                assert!(error < 3e-6, "{spec:?} {} {} {value}", param.name, reference.weight);
            }
        }
    }
}

/// Makes one step for one parameter by Algorithm 2 of You et al. 2019. The function phi of the
/// paper is the identity.
fn lamb_step(references: &mut [Reference], t: i32, gradients: &[f64], rate_scale: f64) {
    let DenseOptimizerSpec::Lamb { lr, beta1, beta2, eps, weight_decay } = lamb() else {
        unreachable!()
    };
    let mut direction = Vec::new();
    for (r, &g) in references.iter_mut().zip(gradients) {
        r.first = beta1 * r.first + (1.0 - beta1) * g;
        r.second = beta2 * r.second + (1.0 - beta2) * g * g;
        let m_hat = r.first / (1.0 - beta1.powi(t));
        let v_hat = r.second / (1.0 - beta2.powi(t));
        direction.push(m_hat / (v_hat.sqrt() + eps) + weight_decay * r.weight);
    }
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let weights = length(&mut references.iter().map(|r| r.weight));
    let trust = if weights > 0.0 { weights / length(&mut direction.iter().copied()) } else { 1.0 };
    for (r, u) in references.iter_mut().zip(direction) {
        r.weight -= lr * rate_scale * trust * u;
    }
}

#[test]
fn lamb_follows_the_paper_parameter_by_parameter() {
    let workers = workers(2);
    let mut params = Params::init(&specs(), 3);
    // A bias is initially 0. With a ratio of lengths, it would never change.
    params.value_mut(ParamId(2)).fill(0.0);
    let mut references: Vec<Vec<Reference>> = params
        .iter()
        .map(|(_, values)| {
            let reference = |&w: &f32| Reference { weight: f64::from(w), first: 0.0, second: 0.0 };
            values.iter().map(reference).collect()
        })
        .collect();
    let mut optimizer = DenseOptimizer::new(lamb(), 0.01, params.specs()).unwrap();
    for step in 1..=20 {
        let (rate_scale, grad_scale) = if step > 10 { (0.1, 0.3) } else { (1.0, 1.0) };
        let raw = gradients(&params, step as u64);
        optimizer.step(&mut params, of(&raw), rate_scale, grad_scale, &workers).unwrap();
        for (index, references) in references.iter_mut().enumerate() {
            if params.specs()[index].trainable {
                let shaped: Vec<f64> = references
                    .iter()
                    .zip(&raw[index])
                    .map(|(r, &g)| (f64::from(g) + 0.01 * r.weight) * f64::from(grad_scale))
                    .collect();
                lamb_step(references, step, &shaped, f64::from(rate_scale));
            }
        }
    }
    for (references, (param, values)) in references.iter().zip(params.iter()) {
        for (reference, &value) in references.iter().zip(values) {
            let error = (reference.weight - f64::from(value)).abs();
            assert!(error < 5e-6, "{} {} {value}", param.name, reference.weight);
        }
    }
    assert!(params.value(ParamId(2)).iter().all(|&bias| bias != 0.0));
}

#[test]
fn ftrl_begins_at_initial_weights_and_zeroes_weak_ones() {
    let workers = workers(1);
    let step = |value: f32, l1: f64, gradient: [f32; 2]| {
        let init = ParamInit::Constant { value };
        let specs = [ParamSpec { name: "w".into(), rows: 1, cols: 2, init, trainable: true }];
        let mut params = Params::init(&specs, 0);
        let spec = DenseOptimizerSpec::Ftrl { lr: 0.1, beta: 1.0, l1, l2: 0.0 };
        let mut ftrl = DenseOptimizer::new(spec, 0.0, &specs).unwrap();
        let raw = [gradient.to_vec()];
        ftrl.step(&mut params, of(&raw), 1.0, 1.0, &workers).unwrap();
        params.value(ParamId(0)).to_vec()
    };
    // With z = -w·beta/alpha the expected weight is w = 0.5 - g / ((beta + |g|) / alpha).
    let moved = step(0.5, 0.0, [0.0, 1.0]);
    assert_eq!(moved[0], 0.5);
    assert!((moved[1] - (0.5 - 1.0 / 20.0)).abs() < 1e-6, "{moved:?}");
    // A z below l1 leaves the weight at zero, and a z above l1 moves the weight by the difference.
    let moved = step(0.0, 0.5, [0.3, 1.0]);
    assert_eq!(moved[0], 0.0);
    assert!((moved[1] + 0.5 / 20.0).abs() < 1e-6, "{moved:?}");
}

#[test]
fn each_parameter_has_its_own_rate() {
    let workers = workers(2);
    for spec in ALL {
        let run = |factors: Option<[f32; 4]>, rate_scale: f32| {
            let mut params = Params::init(&specs(), 3);
            let mut optimizer = DenseOptimizer::new(spec, 0.0, params.specs()).unwrap();
            if let Some(factors) = factors {
                optimizer.set_rates(&factors).unwrap();
            }
            for step in 1..=3 {
                let raw = gradients(&params, step);
                optimizer.step(&mut params, of(&raw), rate_scale, 1.0, &workers).unwrap();
            }
            params
        };
        let (whole, half) = (run(None, 1.0), run(None, 0.5));
        let mixed = run(Some([0.5, 1.0, 1.0, 1.0]), 1.0);
        assert_eq!(mixed.value(ParamId(0)), half.value(ParamId(0)), "{spec:?}");
        assert_eq!(mixed.value(ParamId(2)), whole.value(ParamId(2)), "{spec:?}");
        assert_eq!(mixed.value(ParamId(3)), whole.value(ParamId(3)), "{spec:?}");
        assert_ne!(whole.value(ParamId(0)), half.value(ParamId(0)), "{spec:?}");
    }
    let mut optimizer = DenseOptimizer::new(ALL[3], 0.0, &specs()).unwrap();
    for bad in [&[1.0f32; 3][..], &[1.0, 0.0, 1.0, 1.0], &[1.0, f32::NAN, 1.0, 1.0]] {
        assert!(optimizer.set_rates(bad).is_err());
    }
}

#[test]
fn closed_forms() {
    let workers = workers(1);
    let spec = |init| vec![ParamSpec { name: "w".into(), rows: 1, cols: 3, init, trainable: true }];
    let ones = spec(ParamInit::Constant { value: 1.0 });
    let gradient = [vec![2.0f32, -0.5, 0.0]];

    // The first step of Adam is lr · sign(g), for any size of g.
    let mut params = Params::init(&ones, 0);
    let mut adam = DenseOptimizer::new(DenseOptimizerSpec::default(), 0.0, &ones).unwrap();
    adam.step(&mut params, of(&gradient), 1.0, 1.0, &workers).unwrap();
    for (value, expected) in params.value(ParamId(0)).iter().zip([0.999, 1.001, 1.0]) {
        assert!((value - expected).abs() < 1e-7);
    }

    // SGD with only weight decay shrinks a weight by the factor (1 - lr · λ) in each step.
    let mut params = Params::init(&ones, 0);
    let sgd = DenseOptimizerSpec::Sgd { lr: 0.5, momentum: 0.0 };
    let mut sgd = DenseOptimizer::new(sgd, 0.5, &ones).unwrap();
    let zero = [vec![0.0f32; 3]];
    for _ in 0..3 {
        sgd.step(&mut params, of(&zero), 1.0, 1.0, &workers).unwrap();
    }
    assert_eq!(params.value(ParamId(0)), [0.75f32.powi(3); 3]);
    // The regulariser is (λ/2)·|w|² of three weights. The norm is the norm of its gradient.
    let w = f64::from(0.75f32.powi(3));
    assert!((sgd.regulariser(&params) - 0.25 * 3.0 * w * w).abs() < 1e-12);
    let norm = sgd.sq_norm(&params, of(&zero), &workers).unwrap();
    assert!((norm - 3.0 * (0.5 * w) * (0.5 * w)).abs() < 1e-7);

    // With a constant gradient of 1, a step of AdaGrad changes a weight by lr/√t.
    let mut params = Params::init(&ones, 0);
    let adagrad = DenseOptimizerSpec::Adagrad { lr: 0.1, initial_accumulator: 0.0, eps: 0.0 };
    let mut adagrad = DenseOptimizer::new(adagrad, 0.0, &ones).unwrap();
    let unit = [vec![1.0f32; 3]];
    for _ in 0..4 {
        adagrad.step(&mut params, of(&unit), 1.0, 1.0, &workers).unwrap();
    }
    let expected = 1.0 - 0.1 * (1..=4).map(|t| 1.0 / f64::from(t).sqrt()).sum::<f64>();
    assert!((f64::from(params.value(ParamId(0))[0]) - expected).abs() < 1e-6);
}

/// Compares five steps of every rule that PyTorch (2.14, 2.15) has with PyTorch's results on the
/// same numbers. Before each step, `clip_grad_norm_` clips to 2.
#[test]
fn match_torch() {
    let workers = workers(1);
    let gradients: [[f32; 4]; 5] = [
        [0.1, -2.0, 1e-4, 3.0],
        [0.3, 1.0, -1e-4, -2.5],
        [-0.2, 0.5, 2e-4, 1e-6],
        [0.0, -4.0, 1e-3, 0.7],
        [1.5, 0.25, -3e-4, -0.1],
    ];
    let torch: [[f64; 4]; 7] = [
        [0.421_154_38, -1.170_459_03, 1.999_981_28, -0.002_134_460_26],
        [0.402_665_883, -1.042_962_19, 1.999_942_42, -0.050_014_864_7],
        [0.475_118_101, -1.234_362_01, 1.999_976_4, -0.005_847_902_5],
        [0.497_398_615, -1.248_268_13, 1.997_717_38, 0.000_180_065_981],
        // PyTorch's SGD with momentum is the reference for two rules of this crate.
        [0.402_665_883, -1.042_962_19, 1.999_942_42, -0.050_014_864_7],
        [0.333_553_642, -0.984_124_78, 1.999_929_55, -0.048_047_829_4],
        [0.497_149_348, -1.247_643_47, 1.996_717_93, 0.000_179_920_025],
    ];
    let init = ParamInit::Constant { value: 0.0 };
    let specs = [ParamSpec { name: "w".into(), rows: 1, cols: 4, init, trainable: true }];
    assert!(matches!(ALL[torch.len()], DenseOptimizerSpec::Ftrl { .. }), "the first that it lacks");
    for (spec, expected) in ALL.into_iter().zip(torch) {
        let mut params = Params::init(&specs, 0);
        params.value_mut(ParamId(0)).copy_from_slice(&[0.5, -1.25, 2.0, 1e-3]);
        let mut optimizer = DenseOptimizer::new(spec, 0.0, &specs).unwrap();
        for gradient in gradients {
            let raw = [gradient.to_vec()];
            let norm = optimizer.sq_norm(&params, of(&raw), &workers).unwrap().sqrt();
            let scale = clip_scale(norm, 2.0);
            optimizer.step(&mut params, of(&raw), 1.0, scale, &workers).unwrap();
        }
        for (found, expected) in params.value(ParamId(0)).iter().zip(expected) {
            let error = (f64::from(*found) - expected).abs();
            assert!(error <= 2e-7 * expected.abs().max(0.1), "{spec:?}: {found} {expected}");
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for spec in ALL {
        let run = |threads| {
            let workers = workers(threads);
            let mut params = Params::init(&specs(), 3);
            let mut optimizer = DenseOptimizer::new(spec, 0.1, params.specs()).unwrap();
            let mut norms = Vec::new();
            for step in 1..=3 {
                let raw = gradients(&params, step);
                norms.push(optimizer.sq_norm(&params, of(&raw), &workers).unwrap());
                optimizer.step(&mut params, of(&raw), 1.0, 0.5, &workers).unwrap();
            }
            (write_dense(&params, &optimizer).unwrap(), norms)
        };
        assert_eq!(run(1), run(3));
    }
}

proptest! {
    #[test]
    fn the_norm_is_the_norm(l2 in 0.0f64..0.5, seed in 0u64..1000) {
        let params = Params::init(&specs(), seed);
        let optimizer = DenseOptimizer::new(DenseOptimizerSpec::default(), l2, params.specs()).unwrap();
        let raw = gradients(&params, seed);
        let mut expected = 0.0f64;
        for ((spec, weights), raw) in params.iter().zip(&raw) {
            for (&w, &g) in weights.iter().zip(raw).filter(|_| spec.trainable) {
                expected += (f64::from(g) + l2 * f64::from(w)).powi(2);
            }
        }
        let found = optimizer.sq_norm(&params, of(&raw), &workers(2)).unwrap();
        prop_assert!((found - expected).abs() < 1e-6 * expected, "{} {}", found, expected);
    }
}

#[test]
fn goes_on_from_a_checkpoint() {
    let workers = workers(2);
    for spec in ALL {
        let mut params = Params::init(&specs(), 3);
        let mut optimizer = DenseOptimizer::new(spec, 0.0, params.specs()).unwrap();
        let mut middle = Vec::new();
        for step in 1..=8 {
            if step == 5 {
                middle = write_dense(&params, &optimizer).unwrap();
            }
            let raw = gradients(&params, step);
            optimizer.step(&mut params, of(&raw), 1.0, 1.0, &workers).unwrap();
        }
        let mut again = read_params(&specs(), &middle).unwrap();
        let mut resumed = DenseOptimizer::new(spec, 0.0, again.specs()).unwrap();
        resumed.read(&middle).unwrap();
        assert_eq!(resumed.steps(), 4);
        for step in 5..=8 {
            let raw = gradients(&again, step);
            resumed.step(&mut again, of(&raw), 1.0, 1.0, &workers).unwrap();
        }
        assert_eq!(
            write_dense(&again, &resumed).unwrap(),
            write_dense(&params, &optimizer).unwrap()
        );
    }
}

#[test]
fn state_stands_under_the_parameters_name() {
    let params = Params::init(&specs(), 3);
    let optimizer =
        DenseOptimizer::new(DenseOptimizerSpec::default(), 0.0, params.specs()).unwrap();
    let bytes = write_dense(&params, &optimizer).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names: Vec<&str> = file.names();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "adam.m/cross.weight",
            "adam.m/mlp.0.bias",
            "adam.m/mlp.0.weight",
            "adam.step/",
            "adam.v/cross.weight",
            "adam.v/mlp.0.bias",
            "adam.v/mlp.0.weight",
            "cross.weight",
            "mlp.0.bias",
            "mlp.0.norm.running_mean",
            "mlp.0.weight",
        ]
    );
}

#[test]
fn a_checkpoint_that_does_not_fit_is_refused() {
    let params = Params::init(&specs(), 3);
    let adam = DenseOptimizerSpec::default();
    let optimizer = DenseOptimizer::new(adam, 0.0, params.specs()).unwrap();
    let bytes = write_dense(&params, &optimizer).unwrap();

    let mut other = DenseOptimizer::new(ALL[2], 0.0, params.specs()).unwrap();
    let message = other.read(&bytes).unwrap_err().to_string();
    assert!(message.contains("adagrad.step/"), "{message}");

    let mut wider = specs();
    wider[2].cols = 14;
    let mut other = DenseOptimizer::new(adam, 0.0, &wider).unwrap();
    let before = other.clone();
    let message = other.read(&bytes).unwrap_err().to_string();
    assert!(message.contains("adam.m/mlp.0.bias"), "{message}");
    assert_eq!(other, before);
    assert!(read_params(&wider, &bytes).is_err());

    let mut fewer = DenseOptimizer::new(adam, 0.0, &specs()[..3]).unwrap();
    let message = fewer.read(&bytes).unwrap_err().to_string();
    assert!(message.contains("adam.m/cross.weight"), "{message}");
    assert!(other.read(&bytes[..bytes.len() - 1]).is_err());
}

#[test]
fn a_step_that_is_refused_changes_nothing() {
    let workers = workers(1);
    let mut params = Params::init(&specs(), 3);
    let mut optimizer = DenseOptimizer::new(ALL[3], 0.0, params.specs()).unwrap();
    let raw = gradients(&params, 1);
    let (params_before, optimizer_before) = (params.clone(), optimizer.clone());

    let scale = clip_scale(f64::NAN, 10.0);
    assert!(optimizer.step(&mut params, of(&raw), 1.0, scale, &workers).is_err());
    assert!(optimizer.step(&mut params, |_| None, 1.0, 1.0, &workers).is_err());
    let mut short = raw.clone();
    short[3].pop();
    let refused = optimizer.step(&mut params, of(&short), 1.0, 1.0, &workers);
    assert!(matches!(refused, Err(Error::Param { name, .. }) if name == "cross.weight"));
    let mut renamed = specs();
    renamed[0].name = "other".into();
    let mut other = Params::init(&renamed, 3);
    assert!(optimizer.step(&mut other, of(&raw), 1.0, 1.0, &workers).is_err());

    assert_eq!((params, optimizer), (params_before, optimizer_before));
    assert!(DenseOptimizer::new(ALL[3], -1.0, &specs()).is_err());
}

#[test]
fn a_gradient_that_is_not_a_number_shows_in_the_norm() {
    let params = Params::init(&specs(), 3);
    let optimizer = DenseOptimizer::new(ALL[3], 0.0, params.specs()).unwrap();
    let mut raw = gradients(&params, 1);
    raw[3][35_000] = f32::NAN;
    assert!(optimizer.sq_norm(&params, of(&raw), &workers(1)).unwrap().is_nan());
}

#[test]
fn jobs_speak_the_vocabulary() {
    let read = |text: &str| {
        let value = toml::Value::Table(toml::from_str(text).unwrap());
        zillion_config::from_value::<DenseOptimizerSpec>(&value, "train.optimizer")
            .map_err(|error| error.to_string())
    };
    assert_eq!(read("kind = 'adam'").unwrap(), DenseOptimizerSpec::default());
    assert_eq!(read("kind = 'adam'\nlr = 1e-3").unwrap(), ALL[3]);
    assert_eq!(read("kind = 'sgd'\nlr = 0.05\nmomentum = 0.9").unwrap(), ALL[1]);
    let adagrad = DenseOptimizerSpec::Adagrad { lr: 1e-2, initial_accumulator: 0.0, eps: 1e-10 };
    assert_eq!(read("kind = 'adagrad'").unwrap(), adagrad);
    assert_eq!(read("kind = 'momentum'\nlr = 0.05\nnesterov = true").unwrap(), ALL[5]);
    assert_eq!(read("kind = 'adamw'\nweight_decay = 0.1").unwrap(), ALL[6]);
    assert_eq!(read("kind = 'ftrl'\nlr = 0.05").unwrap(), ALL[7]);
    assert_eq!(read("kind = 'lamb'\nlr = 1e-2\nweight_decay = 0.1").unwrap(), lamb());
    for (text, message) in [
        ("kind = 'adam'\nbeta = 1", "unknown key `train.optimizer.beta`"),
        ("kind = 'adam'\nlr = 0", "above 0"),
        ("kind = 'adam'\nbeta2 = 1", "below 1"),
        ("kind = 'sgd'\nmomentum = -0.1", "at least 0"),
        ("kind = 'momentum'\nmomentum = 1", "below 1"),
        ("kind = 'adamw'\nweight_decay = -1", "0 or above"),
        ("kind = 'ftrl'", "lr"),
        ("kind = 'ftrl'\nlr = 1\nbeta = 0", "above 0"),
        ("kind = 'rmsprop'", "expected one of"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(message), "{text}: {error}");
    }
}
