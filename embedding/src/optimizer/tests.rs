//! Every kernel against the formulas of its paper in `f64`, and against itself on other instruction sets.

use proptest::prelude::*;
use zillion_device::simd::{Level, vectorised_at};
use zillion_feature::Step;
use zillion_feature::random::{combine, unit_f32};

use super::*;

const STEPS: u64 = 25;
const L2: f32 = 0.05;
const CLIP: f32 = 0.7;

fn specs() -> Vec<OptimizerSpec> {
    vec![
        OptimizerSpec::Sgd { lr: 0.1 },
        OptimizerSpec::Adagrad { lr: 0.1, initial_accumulator: 0.1, eps: 1e-8 },
        OptimizerSpec::RowwiseAdagrad { lr: 0.1, initial_accumulator: 0.0, eps: 1e-8 },
        OptimizerSpec::adam(0.01),
        OptimizerSpec::Ftrl { lr: 0.2, beta: 1.0, l1: 0.3, l2: 0.1 },
    ]
}

fn gradient(step: u64, unit: usize) -> f32 {
    unit_f32(combine(step, unit as u64) as u32) * 4.0 - 2.0
}

fn initial(unit: usize) -> f32 {
    unit_f32(combine(99, unit as u64) as u32) - 0.5
}

fn run_row(kernel: &Kernel, w: &mut [f32], s: &mut [f32], raw: &[f32], shaping: Shaping) {
    match kernel {
        Kernel::Sgd(k) => k.row(w, s, raw, shaping),
        Kernel::Adagrad(k) => k.row(w, s, raw, shaping),
        Kernel::RowwiseAdagrad(k) => k.row(w, s, raw, shaping),
        Kernel::Adam(k) => k.row(w, s, raw, shaping),
        Kernel::Ftrl(k) => k.row(w, s, raw, shaping),
    }
}

/// Weights and state after all steps.
fn train(spec: OptimizerSpec, dim: usize, level: Level) -> (Vec<f32>, Vec<f32>) {
    let mut weights: Vec<f32> = (0..dim).map(initial).collect();
    let mut state = vec![spec.initial_state(); spec.state_len(dim)];
    for t in 1..=STEPS {
        let raw: Vec<f32> = (0..dim).map(|unit| gradient(t, unit)).collect();
        let kernel = spec.kernel(Step(t), Rates::default());
        let shaping = Shaping { l2: L2, scale: CLIP };
        vectorised_at(
            level,
            #[inline(always)]
            || run_row(&kernel, &mut weights, &mut state, &raw, shaping),
        );
    }
    (weights, state)
}

/// The same by the published formulas, in `f64`.
fn reference(spec: OptimizerSpec, dim: usize) -> Vec<f64> {
    let mut w: Vec<f64> = (0..dim).map(|unit| f64::from(initial(unit))).collect();
    let start = f64::from(spec.initial_state());
    let (mut a, mut b) = (vec![start; dim], vec![0.0f64; dim]);
    if let OptimizerSpec::Ftrl { lr, beta, l1, l2 } = spec {
        // The z whose proximal step gives the initial weights.
        let curvature = f64::from(beta) / f64::from(lr) + f64::from(l2);
        b = w.iter().map(|w| -w * curvature - f64::from(l1) * w.signum()).collect();
    }
    for t in 1..=STEPS {
        let g: Vec<f64> = (0..dim)
            .map(|u| (f64::from(gradient(t, u)) + f64::from(L2) * w[u]) * f64::from(CLIP))
            .collect();
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
                OptimizerSpec::Ftrl { lr, beta, l1, l2 } => {
                    let (alpha, l1) = (f64::from(lr), f64::from(l1));
                    // a is the paper's n, b its z.
                    let sigma = ((a[u] + g[u] * g[u]).sqrt() - a[u].sqrt()) / alpha;
                    b[u] += g[u] - sigma * w[u];
                    a[u] += g[u] * g[u];
                    w[u] = if b[u].abs() <= l1 {
                        0.0
                    } else {
                        let curvature = (f64::from(beta) + a[u].sqrt()) / alpha + f64::from(l2);
                        -(b[u] - b[u].signum() * l1) / curvature
                    };
                }
            }
        }
    }
    w
}

#[test]
fn kernels_follow_their_papers() {
    for spec in specs() {
        for dim in [1, 3, 8, 16, 19, 64] {
            let (weights, _) = train(spec, dim, Level::Avx512);
            for (unit, (got, wanted)) in weights.iter().zip(reference(spec, dim)).enumerate() {
                let error = (f64::from(*got) - wanted).abs();
                assert!(error < 2e-5, "{spec:?} dim {dim} unit {unit}: {got} instead of {wanted}");
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for spec in specs() {
        for dim in [1, 7, 16, 33] {
            let bits = |level| {
                let (w, s) = train(spec, dim, level);
                w.into_iter().chain(s).map(f32::to_bits).collect::<Vec<_>>()
            };
            assert_eq!(bits(Level::Scalar), bits(Level::Avx2), "{spec:?}");
            assert_eq!(bits(Level::Scalar), bits(Level::Avx512), "{spec:?}");
        }
    }
}

#[test]
fn ftrl_makes_weak_weights_exactly_zero_and_brings_strong_ones_back() {
    let spec = OptimizerSpec::Ftrl { lr: 0.5, beta: 1.0, l1: 1.0, l2: 0.0 };
    let (mut w, mut s) = ([0.0f32], [0.0f32; 2]);
    let shaping = Shaping { l2: 0.0, scale: 1.0 };
    let kernel = spec.kernel(Step(1), Rates::default());
    run_row(&kernel, &mut w, &mut s, &[0.4], shaping);
    assert_eq!(w, [0.0]);
    for _ in 0..5 {
        run_row(&kernel, &mut w, &mut s, &[0.4], shaping);
    }
    assert!(w[0] < 0.0);
}

#[test]
fn ftrl_keeps_its_weights_when_a_schedule_lowers_the_rate() {
    let spec = OptimizerSpec::Ftrl { lr: 0.5, beta: 1.0, l1: 0.01, l2: 0.01 };
    let (mut w, mut s) = ([0.8f32], [0.0f32; 2]);
    let shaping = Shaping { l2: 0.0, scale: 1.0 };
    run_row(&spec.kernel(Step(1), Rates::default()), &mut w, &mut s, &[0.1], shaping);
    let before = w[0];
    run_row(&spec.kernel(Step(2), Rates { scale: 0.01 }), &mut w, &mut s, &[0.0], shaping);
    assert!((w[0] - before).abs() < 1e-5, "{before} became {}", w[0]);
}

#[test]
fn rates_multiply_the_learning_rate() {
    for spec in specs() {
        let moved = |scale: f32| {
            let (mut w, mut s) = (vec![1.0f32; 4], vec![spec.initial_state(); spec.state_len(4)]);
            let kernel = spec.kernel(Step(1), Rates { scale });
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
        zillion_feature::config::section::<OptimizerSpec>(&job, "o").map_err(|e| e.to_string())
    };
    assert_eq!(read("[o]\nkind = 'adam'\nlr = 0.001"), Ok(OptimizerSpec::adam(0.001)));
    assert_eq!(
        read("[o]\nkind = 'rowwise_adagrad'\nlr = 1"),
        Ok(OptimizerSpec::RowwiseAdagrad { lr: 1.0, initial_accumulator: 0.0, eps: 1e-10 })
    );
    assert_eq!(
        read("[o]\nkind = 'ftrl'\nlr = 1\nlambda1 = 2").unwrap_err(),
        "unknown key `o.lambda1`; expected one of `beta`, `l1`, `l2`, `lr`"
    );
    let exact = read("[o]\nkind = 'adam'\nlr = 1\nscope = 'table'").unwrap();
    assert!(matches!(exact, OptimizerSpec::Adam { scope: Some(Scope::Table), .. }));
}

proptest! {
    #[test]
    fn sums_of_squares_are_right_at_every_length(values in prop::collection::vec(-10f32..10.0, 0..70)) {
        let exact: f64 = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let single = sum_of_squares_f32(values.len(), |i| values[i]);
        let double = sum_of_squares_f64(values.len(), |i| values[i]);
        prop_assert!((f64::from(single) - exact).abs() <= exact * 1e-5);
        prop_assert!((double - exact).abs() <= exact * 1e-14);
    }
}
