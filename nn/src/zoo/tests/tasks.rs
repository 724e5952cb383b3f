//! Tests of models with several labels: the masks and weights of labels, and the scores and
//! gradients, which are compared with separate formulas.

use std::num::NonZeroUsize;

use zillion_device::Workers;

use super::super::{EsmmSpec, LOGITS, LOSS, LabelInput, ModelSpec, PROBABILITIES, build, tasks};
use super::batch::{TestBatch, UNIQUE};
use super::reference::{Matrix, Reference, map, one};
use super::spec;
use crate::inputs::{Inputs, LabelView};
use crate::{Executor, Mode, Params, Program, Settings, StepSeed, differentiate};

pub(super) const SPECS: [&str; 5] = [
    "kind = 'shared_bottom'\nbottom = [7, 5]\ntower = [4]\nactivation = 'tanh'",
    "kind = 'shared_bottom'\nbottom = []\ntower = []",
    "kind = 'mmoe'\nexperts = 3\nexpert = [7, 5]\ntower = [4]\nactivation = 'silu'",
    "kind = 'mmoe'\nexperts = 1\nexpert = [6]\ntower = []\nbatch_norm = true\nactivation = 'tanh'",
    "kind = 'esmm'\nhidden = [7, 5]\nactivation = 'tanh'",
];
const WEIGHTS: [f32; 2] = [1.0, 0.5];

fn workers() -> Workers {
    Workers::new(NonZeroUsize::new(2).unwrap()).unwrap()
}

/// A batch with two labels. Each label is missing in some rows.
pub(super) struct Two {
    pub(super) batch: TestBatch,
    second: Vec<f32>,
    masks: [Vec<bool>; 2],
}

impl Two {
    pub(super) fn new(seed: u64, rows: usize) -> Self {
        let mut batch = TestBatch::new(seed, rows, 4, 3);
        let label = |(name, weight): (&str, f32)| LabelInput { weight, ..name.into() };
        batch.model.labels = ["click", "buy"].into_iter().zip(WEIGHTS).map(label).collect();
        let middle = &batch.columns[0].inverse;
        let second = middle.iter().map(|id| f32::from(u8::from(id % 2 == 0))).collect();
        let masks = [4, 3].map(|n| (0..rows).map(|row| row % n != 1).collect());
        Self { batch, second, masks }
    }

    pub(super) fn view(&self) -> Inputs<'_> {
        let label = |values, mask| LabelView { values, mask: Some(mask) };
        let labels = vec![
            label(&self.batch.labels[..], &self.masks[0][..]),
            label(&self.second[..], &self.masks[1][..]),
        ];
        Inputs { labels, ..self.batch.view() }
    }

    /// Returns the label with which the score of a task is compared in this row, or `None` if the
    /// row has no such label.
    fn label(&self, spec: &ModelSpec, task: usize, row: usize) -> Option<f64> {
        let first = self.masks[0][row].then_some(f64::from(self.batch.labels[row]));
        let second = self.masks[1][row].then_some(f64::from(self.second[row]));
        match (spec, task) {
            (_, 0) => first,
            (ModelSpec::Esmm(_), 1) => match first? {
                0.0 => Some(0.0),
                _ => second,
            },
            (ModelSpec::Esmm(_), _) => None,
            _ => second,
        }
    }

    fn loss(&self, spec: &ModelSpec, scores: &[Vec<f64>]) -> f64 {
        let mut loss = 0.0;
        for (task, weight) in WEIGHTS.into_iter().enumerate() {
            let (mut sum, mut total) = (0.0, 0.0);
            for (row, &logit) in scores[task].iter().enumerate() {
                let Some(label) = self.label(spec, task, row) else { continue };
                let p = 1.0 / (1.0 + (-logit).exp());
                let w = f64::from(self.batch.weight[row]);
                sum -= w * (label * p.ln() + (1.0 - label) * (1.0 - p).ln());
                total += w;
            }
            loss += f64::from(weight) * sum / total;
        }
        loss
    }
}

/// Computes the log odds of each task with separate formulas, in f64.
fn scores(reference: &Reference<'_>, spec: &ModelSpec) -> Vec<Vec<f64>> {
    let x = reference.deep();
    let tower = |label: &str, layers: usize, activation, x: Matrix| {
        let name = format!("tower.{label}");
        let x = reference.mlp(&name, layers, activation, x);
        one(reference.linear(&format!("{name}.output"), &x))
    };
    let each = |f: &dyn Fn(&str) -> Vec<f64>| ["click", "buy"].map(f).to_vec();
    match spec {
        ModelSpec::SharedBottom(s) => {
            let bottom = reference.mlp("bottom", s.bottom.len(), s.mlp.activation, x);
            each(&|label| tower(label, s.tower.len(), s.mlp.activation, bottom.clone()))
        }
        ModelSpec::Mmoe(s) => {
            let experts: Vec<Matrix> = (0..s.experts)
                .map(|e| {
                    let name = format!("expert.{e}");
                    reference.mlp(&name, s.expert.len(), s.mlp.activation, x.clone())
                })
                .collect();
            each(&|label| {
                let gates = reference.linear(&format!("gate.{label}.scores"), &x);
                let mixed = map(&gates, |row, gates| {
                    let total: f64 = gates.iter().map(|g| g.exp()).sum();
                    let unit = |unit: usize| {
                        let share = |e: usize| gates[e].exp() / total;
                        (0..s.experts).map(|e| share(e) * experts[e][row][unit]).sum()
                    };
                    (0..experts[0][row].len()).map(unit).collect()
                });
                tower(label, s.tower.len(), s.mlp.activation, mixed)
            })
        }
        ModelSpec::Esmm(EsmmSpec(s)) => {
            let mut two = each(&|label| tower(label, s.hidden.len(), s.mlp.activation, x.clone()));
            let sigma = |z: f64| 1.0 / (1.0 + (-z).exp());
            let both = two[0].iter().zip(&two[1]).map(|(&a, &b)| {
                let p = sigma(a) * sigma(b);
                (p / (1.0 - p)).ln()
            });
            let both = both.collect();
            let given = std::mem::replace(&mut two[1], both);
            two.push(given);
            two
        }
        other => unreachable!("{} has one", other.kind()),
    }
}

fn executor(text: &str, two: &Two, mode: Mode) -> Executor {
    let graph = build(&spec(text), &two.batch.model, mode).unwrap();
    let settings = Settings { lanes: 3, tile_rows: 4, ..Settings::default() };
    let program = match mode {
        Mode::Train => {
            let loss = graph.output(LOSS).unwrap();
            Program::train(&differentiate(&graph, loss).unwrap(), settings)
        }
        Mode::Infer => {
            let outputs: Vec<_> = graph.outputs.iter().map(|&(_, id)| id).collect();
            Program::infer(&graph, &outputs, settings)
        }
    };
    Executor::new(program.unwrap())
}

fn params_of(executor: &Executor, seed: u64) -> Params {
    let mut params = Params::init(&executor.program().graph().params, seed);
    for (index, (_, values)) in params.iter_mut().enumerate() {
        for (i, value) in values.iter_mut().enumerate() {
            let bits = zillion_feature::random::combine(seed + index as u64, i as u64);
            *value += 0.4 * (zillion_feature::random::unit_f32(bits as u32) - 0.4);
        }
    }
    params
}

#[test]
fn inference_gives_what_the_formulas_say() {
    for text in SPECS {
        let two = Two::new(21, 30);
        let mut executor = executor(text, &two, Mode::Infer);
        let params = params_of(&executor, 5);
        executor.infer(&workers(), &two.view(), &params).unwrap();
        let spec = spec(text);
        let expected = scores(&Reference::new(&two.batch, &params, false), &spec);
        let tasks = tasks(&spec, &["click", "buy"]);
        assert_eq!(tasks.len(), expected.len(), "{text}");
        for (index, (task, expected)) in tasks.iter().zip(&expected).enumerate() {
            let output = |of: &str| executor.named_output(&task.output(of, index)).unwrap();
            for ((&logit, &p), &expected) in
                output(LOGITS).iter().zip(output(PROBABILITIES)).zip(expected)
            {
                let error = (f64::from(logit) - expected).abs();
                assert!(error < 2e-5 * (1.0 + expected.abs()), "{text}: {logit} {expected}");
                let expected = 1.0 / (1.0 + (-expected).exp());
                assert!((f64::from(p) - expected).abs() < 1e-5, "{text}");
            }
        }
    }
}

#[test]
fn gradients_are_slopes() {
    let h = 1e-5;
    for text in SPECS {
        let spec = spec(text);
        let two = Two::new(22, 30);
        let mut executor = executor(text, &two, Mode::Train);
        let mut params = params_of(&executor, 6);
        let mut reference = Reference::new(&two.batch, &params, true);
        let mut rows = vec![f32::NAN; UNIQUE * two.batch.stride];
        let seed = StepSeed { seed: 7, step: 3 };
        executor.train(&workers(), &two.view(), &mut params, seed, &mut [&mut rows]).unwrap();
        let expected = two.loss(&spec, &scores(&reference, &spec));
        let loss = f64::from(executor.loss().unwrap());
        assert!((loss - expected).abs() < 1e-5, "{text}: {loss} {expected}");

        let close =
            |found: f32, slope: f64| (f64::from(found) - slope).abs() < 2e-5 + 1e-3 * slope.abs();
        for (id, found) in executor.param_grads() {
            let name = params.specs()[id.0 as usize].name.clone();
            for i in (0..found.len()).step_by(found.len().div_ceil(6)) {
                let mut at = |by: f64| {
                    reference.params.get_mut(&name).unwrap().1[i] += by;
                    let loss = two.loss(&spec, &scores(&reference, &spec));
                    reference.params.get_mut(&name).unwrap().1[i] -= by;
                    loss
                };
                let slope = (at(h) - at(-h)) / (2.0 * h);
                assert!(close(found[i], slope), "{text} {name}[{i}]: {} {slope}", found[i]);
            }
        }
        let trainable = params.specs().iter().filter(|param| param.trainable).count();
        assert_eq!(executor.param_grads().count(), trainable, "{text}");
        for (i, &found) in rows.iter().enumerate() {
            let mut at = |by: f64| {
                reference.table[i] += by;
                let loss = two.loss(&spec, &scores(&reference, &spec));
                reference.table[i] -= by;
                loss
            };
            let slope = (at(h) - at(-h)) / (2.0 * h);
            assert!(close(found, slope), "{text} row float {i}: {found} {slope}");
        }
    }
}

#[test]
fn masked_labels_are_not_read() {
    for text in SPECS {
        let losses = [0.0, 1.0].map(|fill| {
            let mut two = Two::new(23, 30);
            for row in 0..30 {
                if !two.masks[0][row] {
                    two.batch.labels[row] = fill;
                }
                if !two.masks[1][row] {
                    two.second[row] = fill;
                }
            }
            let mut executor = executor(text, &two, Mode::Train);
            let mut params = params_of(&executor, 6);
            let mut rows = vec![0.0; UNIQUE * two.batch.stride];
            let seed = StepSeed { seed: 7, step: 3 };
            executor.train(&workers(), &two.view(), &mut params, seed, &mut [&mut rows]).unwrap();
            (executor.loss().unwrap().to_bits(), rows)
        });
        assert!(losses[0] == losses[1], "{text}");
    }
}

/// Checks that the loss stays finite if both probabilities are close to 0 or 1. In f32, their
/// product would be rounded to 0 or 1, and its log odds would be infinite.
#[test]
fn the_product_of_two_probabilities_keeps_its_log_odds() {
    let text = "kind = 'esmm'\nhidden = []";
    let two = Two::new(24, 12);
    for (click, given, expected) in [
        (40.0, 50.0, 40.0),
        (-60.0, -70.0, -130.0),
        (30.0, 30.0, 30.0 - 2f64.ln()),
        (-45.0, 80.0, -45.0),
        (80.0, -45.0, -45.0),
    ] {
        let mut executor = executor(text, &two, Mode::Train);
        let mut params = Params::init(&executor.program().graph().params, 1);
        for (spec, values) in params.iter_mut() {
            let bias = if spec.name.contains("click") { click } else { given };
            values.fill(if spec.name.ends_with(".bias") { bias as f32 } else { 0.0 });
        }
        let mut rows = vec![0.0; UNIQUE * two.batch.stride];
        let seed = StepSeed::default();
        executor.train(&workers(), &two.view(), &mut params, seed, &mut [&mut rows]).unwrap();
        for &found in executor.named_output("logits/buy").unwrap() {
            assert!((f64::from(found) - expected).abs() < 1e-4, "{found} {expected}");
        }
        assert!(executor.loss().unwrap().is_finite());
        assert!(executor.param_grads().all(|(_, g)| g.iter().all(|g| g.is_finite())));
    }
}

#[test]
fn a_label_of_weight_zero_is_scored_and_not_learned() {
    for text in SPECS {
        let mut two = Two::new(25, 30);
        two.batch.model.labels[0].weight = 0.0;
        let graph = build(&spec(text), &two.batch.model, Mode::Train).unwrap();
        assert!(graph.output(LOGITS).is_some() && graph.output("logits/buy").is_some());
        let losses = [0.0, 1.0].map(|fill| {
            // In esmm, the second label has no meaning without the first.
            if !text.contains("esmm") {
                two.batch.labels.fill(fill);
            }
            let mut executor = executor(text, &two, Mode::Train);
            let mut params = params_of(&executor, 6);
            let mut rows = vec![0.0; UNIQUE * two.batch.stride];
            let seed = StepSeed { seed: 7, step: 3 };
            executor.train(&workers(), &two.view(), &mut params, seed, &mut [&mut rows]).unwrap();
            for (id, grad) in executor.param_grads() {
                let own = params.specs()[id.0 as usize].name.contains("click");
                let still = grad.iter().all(|&g| g == 0.0);
                assert_eq!(own && still, own && !text.contains("esmm"), "{text}");
            }
            executor.loss().unwrap()
        });
        assert_eq!(losses[0], losses[1], "{text}");
        two.batch.model.labels[1].weight = 0.0;
        let refused = build(&spec(text), &two.batch.model, Mode::Train).unwrap_err().to_string();
        assert!(refused.contains("every label has weight 0"), "{refused}");
    }
}

#[test]
fn too_many_and_too_few_labels_are_refused() {
    let refused = |text: &str, labels: usize| {
        let mut inputs = super::inputs(3, 4, 0);
        inputs.labels = (0..labels).map(|i| format!("y{i}").as_str().into()).collect();
        build(&spec(text), &inputs, Mode::Train).map_err(|error| error.to_string())
    };
    let message = refused("kind = 'deepfm'", 2).unwrap_err();
    assert!(message.contains("deepfm learns one label, but the job has 2"), "{message}");
    assert!(message.contains("shared_bottom, mmoe, esmm"), "{message}");
    for labels in [1, 3] {
        let message = refused("kind = 'esmm'", labels).unwrap_err();
        assert!(message.contains("learns two labels, the click and then"), "{message}");
    }
    for kind in ["shared_bottom", "mmoe"] {
        let message = refused(&format!("kind = '{kind}'"), 0).unwrap_err();
        assert!(message.contains("at least one label"), "{message}");
        for labels in [1, 2, 12] {
            refused(&format!("kind = '{kind}'"), labels).unwrap();
        }
    }
}
