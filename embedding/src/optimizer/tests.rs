//! Tests that compare every kernel with the formulas of its paper in `f64`, and the results on
//! different instruction sets with each other.

use proptest::prelude::*;
use serde::Deserialize;
use zillion_device::simd::{Level, vectorised_at};
use zillion_feature::Step;
use zillion_feature::random::{combine, unit_f32};

use super::*;
use zillion_rows::{Bounds, ClipSpec, OptimizerSpec, Scope};

const STEPS: u64 = 25;
const L2: f32 = 0.05;
const CLIP: f32 = 0.7;

fn specs() -> Vec<OptimizerSpec> {
    vec![
        OptimizerSpec::Sgd { lr: 0.1 },
        OptimizerSpec::Adagrad { lr: 0.1, initial_accumulator: 0.1, eps: 1e-8 },
        OptimizerSpec::RowwiseAdagrad { lr: 0.1, initial_accumulator: 0.0, eps: 1e-8 },
        OptimizerSpec::adam(0.01),
        OptimizerSpec::Ftrl { lr: 0.2, beta: 1.0, l1: 0.3, l2: 0.1, l21: 0.0 },
        OptimizerSpec::Ftrl { lr: 0.2, beta: 1.0, l1: 0.3, l2: 0.1, l21: 0.4 },
        OptimizerSpec::Momentum { lr: 0.02, momentum: 0.9, nesterov: false, scope: None },
        OptimizerSpec::Momentum { lr: 0.02, momentum: 0.8, nesterov: true, scope: None },
    ]
}

fn gradient(step: u64, unit: usize) -> f32 {
    unit_f32(combine(step, unit as u64) as u32) * 4.0 - 2.0
}

fn initial(unit: usize) -> f32 {
    unit_f32(combine(99, unit as u64) as u32) - 0.5
}

/// Returns the clips and bounds of these tests: none, each kind alone, and all together.
fn guards() -> Vec<(Option<ClipSpec>, Option<Bounds>)> {
    let norm = Some(ClipSpec { norm: Some(0.9), value: None });
    let value = Some(ClipSpec { norm: None, value: Some(0.6) });
    let both = Some(ClipSpec { norm: Some(0.9), value: Some(0.6) });
    let bounds = Some(Bounds { low: -0.3, high: 0.2 });
    vec![(None, None), (norm, None), (value, None), (None, bounds), (both, bounds)]
}

fn run_row(kernel: &Kernel, w: &mut [f32], s: &mut [f32], raw: &[f32], shaping: Shaping) {
    with_kernel!(kernel, k => k.row(w, s, raw, shaping))
}

/// Returns a rule without a guard.
fn bare(spec: OptimizerSpec, step: u64, rates: Rates) -> Kernel {
    Kernel { rule: Rule::new(&spec, Step(step), rates), guard: None }
}

/// Returns the weights and the state after all steps of a rule.
fn train(
    spec: OptimizerSpec,
    (clip, bounds): (Option<ClipSpec>, Option<Bounds>),
    dim: usize,
    level: Level,
) -> (Vec<f32>, Vec<f32>) {
    let mut weights: Vec<f32> = (0..dim).map(initial).collect();
    let mut state = vec![spec.initial_state(); spec.state_len(dim)];
    for t in 1..=STEPS {
        let raw: Vec<f32> = (0..dim).map(|unit| gradient(t, unit)).collect();
        let rule = Rule::new(&spec, Step(t), Rates::default());
        let kernel = Kernel { rule, guard: Guard::new(clip, bounds) };
        let shaping = Shaping { l2: L2, scale: CLIP };
        vectorised_at(
            level,
            #[inline(always)]
            || run_row(&kernel, &mut weights, &mut state, &raw, shaping),
        );
    }
    (weights, state)
}

/// Returns the weights after the same steps, computed in `f64` by the published formulas.
fn reference(
    spec: OptimizerSpec,
    (clip, bounds): (Option<ClipSpec>, Option<Bounds>),
    dim: usize,
) -> Vec<f64> {
    let mut w: Vec<f64> = (0..dim).map(|unit| f64::from(initial(unit))).collect();
    let start = f64::from(spec.initial_state());
    let (mut a, mut b) = (vec![start; dim], vec![0.0f64; dim]);
    if let OptimizerSpec::Ftrl { .. } = spec {
        b = evidence(spec, &w, &a);
    }
    for t in 1..=STEPS {
        let mut g: Vec<f64> = (0..dim)
            .map(|u| (f64::from(gradient(t, u)) + f64::from(L2) * w[u]) * f64::from(CLIP))
            .collect();
        if let Some(value) = clip.and_then(|c| c.value).map(f64::from) {
            g.iter_mut().for_each(|g| *g = g.clamp(-value, value));
        }
        if let Some(norm) = clip.and_then(|c| c.norm).map(f64::from) {
            let length = g.iter().map(|g| g * g).sum::<f64>().sqrt();
            g.iter_mut().for_each(|g| *g *= (norm / length).min(1.0));
        }
        let mean_square = g.iter().map(|g| g * g).sum::<f64>() / dim as f64;
        for u in 0..dim {
            match spec {
                OptimizerSpec::Sgd { lr } => w[u] -= f64::from(lr) * g[u],
                OptimizerSpec::Adagrad { lr, eps, .. } => {
                    a[u] += g[u] * g[u];
                    w[u] -= f64::from(lr) * g[u] / (a[u].sqrt() + f64::from(eps));
                }
                OptimizerSpec::RowwiseAdagrad { lr, eps, .. } => {
                    a[u] += mean_square;
                    w[u] -= f64::from(lr) * g[u] / (a[u].sqrt() + f64::from(eps));
                }
                OptimizerSpec::Adam { lr, eps, .. } => {
                    let (beta1, beta2) = (0.9f64, 0.999f64);
                    a[u] = beta1 * a[u] + (1.0 - beta1) * g[u];
                    b[u] = beta2 * b[u] + (1.0 - beta2) * g[u] * g[u];
                    let m_hat = a[u] / (1.0 - beta1.powi(t as i32));
                    let v_hat = b[u] / (1.0 - beta2.powi(t as i32));
                    w[u] -= f64::from(lr) * m_hat / (v_hat.sqrt() + f64::from(eps));
                }
                OptimizerSpec::Momentum { lr, momentum, nesterov, .. } => {
                    let momentum = f64::from(momentum);
                    a[u] = momentum * a[u] + g[u];
                    let ahead = g[u] + momentum * a[u];
                    w[u] -= f64::from(lr) * if nesterov { ahead } else { a[u] };
                }
                OptimizerSpec::Ftrl { lr, .. } => {
                    // `a` is the paper's n, and `b` is its z.
                    let sigma = ((a[u] + g[u] * g[u]).sqrt() - a[u].sqrt()) / f64::from(lr);
                    b[u] += g[u] - sigma * w[u];
                    a[u] += g[u] * g[u];
                }
            }
        }
        if let OptimizerSpec::Ftrl { .. } = spec {
            w = proximal(spec, &b, &a);
        }
        if let Some(bounds) = bounds {
            let free = w.clone();
            w.iter_mut().for_each(|w| *w = w.clamp(bounds.low.into(), bounds.high.into()));
            if matches!(spec, OptimizerSpec::Ftrl { .. }) && free != w {
                // If a bound has changed a weight, `z` is computed back from the bounded weight.
                let implied = evidence(spec, &w, &a);
                (0..dim).filter(|&u| w[u] != 0.0).for_each(|u| b[u] = implied[u]);
            }
        }
    }
    w
}

/// Returns the weights of FTRL with the sparse group lasso, computed from the sums `z` and `n` of
/// the paper.
fn proximal(spec: OptimizerSpec, z: &[f64], n: &[f64]) -> Vec<f64> {
    let OptimizerSpec::Ftrl { lr, beta, l1, l2, l21 } = spec else { unreachable!() };
    let [lr, beta, l1, l2, l21] = [lr, beta, l1, l2, l21].map(f64::from);
    let soft: Vec<f64> = z.iter().map(|z| z.signum() * (z.abs() - l1).max(0.0)).collect();
    let length = soft.iter().map(|s| s * s).sum::<f64>().sqrt();
    let kept = 1.0 - l21 * (z.len() as f64).sqrt() / length;
    let curvature = |n: f64| (beta + n.sqrt()) / lr + l2;
    let weight = |(s, n): (&f64, &f64)| if kept > 0.0 { -kept * s / curvature(*n) } else { 0.0 };
    soft.iter().zip(n).map(weight).collect()
}

/// Returns the sums `z` whose proximal step gives these weights. No weight may be zero.
fn evidence(spec: OptimizerSpec, w: &[f64], n: &[f64]) -> Vec<f64> {
    let OptimizerSpec::Ftrl { lr, beta, l1, l2, l21 } = spec else { unreachable!() };
    let [lr, beta, l1, l2, l21] = [lr, beta, l1, l2, l21].map(f64::from);
    let curvature = |n: f64| (beta + n.sqrt()) / lr + l2;
    let scaled: Vec<f64> = w.iter().zip(n).map(|(w, n)| -w * curvature(*n)).collect();
    let length = scaled.iter().map(|u| u * u).sum::<f64>().sqrt();
    let grown = 1.0 + l21 * (w.len() as f64).sqrt() / length;
    scaled.iter().map(|u| u * grown + l1 * u.signum()).collect()
}

#[test]
fn kernels_follow_their_papers() {
    for (spec, guard) in specs().into_iter().flat_map(|s| guards().into_iter().map(move |g| (s, g)))
    {
        for dim in [1, 3, 8, 16, 19, 64] {
            let (weights, _) = train(spec, guard, dim, Level::Avx512);
            for (unit, (got, wanted)) in weights.iter().zip(reference(spec, guard, dim)).enumerate()
            {
                let error = (f64::from(*got) - wanted).abs();
                assert!(
                    error < 3e-5,
                    "{spec:?} {guard:?} dim {dim} unit {unit}: {got} instead of {wanted}"
                );
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for (spec, guard) in specs().into_iter().flat_map(|s| guards().into_iter().map(move |g| (s, g)))
    {
        for dim in [1, 7, 16, 33] {
            let bits = |level| {
                let (w, s) = train(spec, guard, dim, level);
                w.into_iter().chain(s).map(f32::to_bits).collect::<Vec<_>>()
            };
            assert_eq!(bits(Level::Scalar), bits(Level::Avx2), "{spec:?}");
            assert_eq!(bits(Level::Scalar), bits(Level::Avx512), "{spec:?}");
        }
    }
}

#[test]
fn ftrl_makes_weak_weights_exactly_zero_and_brings_strong_ones_back() {
    let spec = OptimizerSpec::Ftrl { lr: 0.5, beta: 1.0, l1: 1.0, l2: 0.0, l21: 0.0 };
    let (mut w, mut s) = ([0.0f32], [0.0f32; 2]);
    let shaping = Shaping { l2: 0.0, scale: 1.0 };
    let kernel = bare(spec, 1, Rates::default());
    run_row(&kernel, &mut w, &mut s, &[0.4], shaping);
    assert_eq!(w, [0.0]);
    for _ in 0..5 {
        run_row(&kernel, &mut w, &mut s, &[0.4], shaping);
    }
    assert!(w[0] < 0.0);
}

#[test]
fn ftrl_keeps_its_weights_when_a_schedule_lowers_the_rate() {
    for l21 in [0.0, 0.03] {
        let spec = OptimizerSpec::Ftrl { lr: 0.5, beta: 1.0, l1: 0.01, l2: 0.01, l21 };
        let (mut w, mut s) = ([0.8f32, -0.3, 0.1], [0.0f32; 6]);
        let shaping = Shaping { l2: 0.0, scale: 1.0 };
        run_row(&bare(spec, 1, Rates::default()), &mut w, &mut s, &[0.1; 3], shaping);
        let before = w;
        run_row(&bare(spec, 2, Rates { scale: 0.01 }), &mut w, &mut s, &[0.0; 3], shaping);
        for (now, before) in w.iter().zip(before) {
            assert!((now - before).abs() < 1e-5, "{before} became {now}");
        }
    }
}

#[test]
fn the_group_lasso_makes_weak_rows_zero_as_a_whole_and_brings_strong_ones_back() {
    let spec = OptimizerSpec::Ftrl { lr: 0.5, beta: 1.0, l1: 0.0, l2: 0.0, l21: 1.0 };
    let kernel = bare(spec, 1, Rates::default());
    let shaping = Shaping { l2: 0.0, scale: 1.0 };
    let (mut w, mut s) = ([0.1f32, -0.1, 0.1, -0.1], [0.0f32; 8]);
    // The length of z for these weights is 2.2, and the threshold is 2: a push of 0.3 in each unit
    // brings it below.
    run_row(&kernel, &mut w, &mut s, &[0.3, -0.3, 0.3, -0.3], shaping);
    assert_eq!(w, [0.0; 4]);
    // One strong unit is enough to bring back all units of the row except those without evidence.
    let mut alone = [0.0f32; 4];
    s = [0.0; 8];
    for _ in 0..4 {
        run_row(&kernel, &mut alone, &mut s, &[0.6, 0.01, 0.0, 0.0], shaping);
    }
    assert!(alone[0] < 0.0 && alone[1] < 0.0 && alone[2..] == [0.0; 2], "{alone:?}");
}

#[test]
fn the_group_lasso_is_the_minimum_of_what_it_says_to_minimise() {
    // The objective is z·w + (c/2)|w|² + l1 |w|₁ + l21 sqrt(d) |w|₂ with one curvature for all
    // units; its slope is measured by finite differences.
    let (dim, l1, l2, l21) = (5, 0.2f64, 0.1f64, 0.3f64);
    let (lr, beta) = (0.5f64, 1.0f64);
    let spec = OptimizerSpec::Ftrl { lr: 0.5, beta: 1.0, l1: 0.2, l2: 0.1, l21: 0.3 };
    let raw = [1.5f32, -1.5, 1.5, -1.5, 1.5];
    let (mut w, mut s) = (vec![0.0f32; dim], vec![0.0f32; 2 * dim]);
    run_row(
        &bare(spec, 1, Rates::default()),
        &mut w,
        &mut s,
        &raw,
        Shaping { l2: 0.0, scale: 1.0 },
    );
    let curvature = (beta + 1.5) / lr + l2;
    let objective = |w: &[f64]| {
        let length = w.iter().map(|w| w * w).sum::<f64>().sqrt();
        let units: f64 = w
            .iter()
            .zip(raw)
            .map(|(w, z)| f64::from(z) * w + 0.5 * curvature * w * w + l1 * w.abs())
            .sum();
        units + l21 * (dim as f64).sqrt() * length
    };
    let w: Vec<f64> = w.into_iter().map(f64::from).collect();
    assert!(w.iter().all(|w| *w != 0.0), "{w:?}");
    for unit in 0..dim {
        let mut moved = [w.clone(), w.clone()];
        moved[0][unit] -= 1e-3;
        moved[1][unit] += 1e-3;
        let slope = (objective(&moved[1]) - objective(&moved[0])) / 2e-3;
        assert!(slope.abs() < 1e-4, "unit {unit}: {slope}");
        assert!(moved.iter().all(|m| objective(m) > objective(&w)), "unit {unit}");
    }
}

#[test]
fn a_clip_holds_however_large_the_gradient_is() {
    let clip = Some(ClipSpec { norm: Some(2.0), value: None });
    let rule = Rule::new(&OptimizerSpec::Sgd { lr: 1.0 }, Step(1), Rates::default());
    let kernel = Kernel { rule, guard: Guard::new(clip, None) };
    let shaping = Shaping { l2: 0.0, scale: 1.0 };
    for (raw, scale) in [([3e38f32, 0.0], 1.0), ([3e38, 0.0], 1e9), ([6.0, 0.0], 1.0)] {
        let mut w = [0.0f32; 2];
        run_row(&kernel, &mut w, &mut [], &raw, Shaping { scale, ..shaping });
        assert!((w[0] + 2.0).abs() < 1e-5 && w[1] == 0.0, "{raw:?} × {scale}: {w:?}");
    }
    let mut w = [0.0f32; 2];
    run_row(&kernel, &mut w, &mut [], &[1.0, -1.0], shaping);
    assert_eq!(w, [-1.0, 1.0], "what is short enough stays as it is");
}

#[test]
fn a_guard_that_never_acts_changes_no_bit() {
    let wide = Some(ClipSpec { norm: Some(1e9), value: Some(1e9) });
    let far = Some(Bounds { low: -1e9, high: 1e9 });
    for spec in specs() {
        let free = train(spec, (None, None), 19, Level::Avx512);
        assert_eq!(train(spec, (wide, far), 19, Level::Avx512), free, "{spec:?}");
    }
}

#[test]
fn rates_multiply_the_learning_rate() {
    for spec in specs() {
        let moved = |scale: f32| {
            let (mut w, mut s) = (vec![1.0f32; 4], vec![spec.initial_state(); spec.state_len(4)]);
            let kernel = bare(spec, 1, Rates { scale });
            run_row(&kernel, &mut w, &mut s, &[1.0; 4], Shaping { l2: 0.0, scale: 1.0 });
            1.0 - w[0]
        };
        assert!(moved(0.1) < moved(1.0) * 0.5, "{spec:?}");
    }
}

#[test]
fn job_files_have_defaults_and_name_what_they_do_not_know() {
    let read = |text: &str| {
        let job: toml::Value = toml::from_str::<toml::Table>(text).unwrap().into();
        zillion_config::section::<OptimizerSpec>(&job, "o").map_err(|e| e.to_string())
    };
    assert_eq!(read("[o]\nkind = 'adam'\nlr = 0.001"), Ok(OptimizerSpec::adam(0.001)));
    assert_eq!(
        read("[o]\nkind = 'rowwise_adagrad'\nlr = 1"),
        Ok(OptimizerSpec::RowwiseAdagrad { lr: 1.0, initial_accumulator: 0.0, eps: 1e-10 })
    );
    assert_eq!(
        read("[o]\nkind = 'ftrl'\nlr = 1\nlambda1 = 2").unwrap_err(),
        "unknown key `o.lambda1`; expected one of `beta`, `l1`, `l21`, `l2`, `lr`"
    );
    let exact = read("[o]\nkind = 'adam'\nlr = 1\nscope = 'table'").unwrap();
    assert!(matches!(exact, OptimizerSpec::Adam { scope: Some(Scope::Table), .. }));
    assert_eq!(
        read("[o]\nkind = 'momentum'\nlr = 1\nnesterov = true\nscope = 'touched'"),
        Ok(OptimizerSpec::Momentum {
            lr: 1.0,
            momentum: 0.9,
            nesterov: true,
            scope: Some(Scope::Touched)
        })
    );
}

#[test]
fn guards_are_read_from_job_files() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Segment {
        clip: Option<ClipSpec>,
        bounds: Option<Bounds>,
    }
    let read = |text: &str| {
        let job: toml::Value = toml::from_str::<toml::Table>(text).unwrap().into();
        zillion_config::section::<Segment>(&job, "s").map_err(|e| e.to_string())
    };
    let both = read("[s]\nclip = { norm = 1, value = 0.5 }\nbounds = [-1, 2.5]").unwrap();
    assert_eq!(both.clip, Some(ClipSpec { norm: Some(1.0), value: Some(0.5) }));
    assert_eq!(both.bounds, Some(Bounds { low: -1.0, high: 2.5 }));
    assert!(read("[s]\nclip = { norms = 1 }").unwrap_err().contains("s.clip.norms"));
    assert!(read("[s]\nbounds = [1]").unwrap_err().contains("s.bounds"));
    assert_eq!(toml::Value::try_from(both.bounds).unwrap().to_string(), "[-1.0, 2.5]");
}

proptest! {
    #[test]
    fn sums_of_squares_are_right_at_every_length(values in prop::collection::vec(-10f32..10.0, 0..70)) {
        let exact: f64 = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let pairs = sum_of_squares_of(&values, &values, |a, b| 0.5 * (a + b));
        assert_eq!(pairs.to_bits(), sum_of_squares::<f32>(values.len(), |i| values[i]).to_bits());
        let single = sum_of_squares::<f32>(values.len(), |i| values[i]);
        let double = sum_of_squares::<f64>(values.len(), |i| values[i]);
        prop_assert!((f64::from(single) - exact).abs() <= exact * 1e-5);
        prop_assert!((double - exact).abs() <= exact * 1e-14);
    }
}
