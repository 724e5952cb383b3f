//! A comparison of the gradients of a job's model with finite differences, on rows of its own data.
//!
//! The loss is computed again after one parameter has changed by a small step in one direction. The
//! change of the loss is compared with the gradient of the backward pass. The directions are the
//! gradient itself, random halves of the gradient, single elements with the largest gradients, and
//! the elements with a zero gradient.
//!
//! The comparison does not use the job's own initial values (for example vectors of 1e-4 and zero
//! biases), because they make most gradients too small for differences of 32-bit numbers. It draws
//! random values for the parameters instead. So it checks the structure of the model, and not the
//! initial values of the job.

use std::sync::Arc;

use serde::Serialize;
use zillion_device::Workers;
use zillion_feature::{Cursor, LookupPlan, PlanScratch, RowBuffer, random};
use zillion_nn::zoo::LOSS;
use zillion_nn::{
    Executor, Graph, Inputs, Mode, NodeId, Params, Program, Settings, StepSeed, differentiate,
};
use zillion_reader::{BatchOrder, Dataset};

use crate::error::{Error, Result};
use crate::graph_inputs::find_output;
use crate::groups::number_groups;
use crate::job::Job;

/// The largest relative error that the rounding of 32-bit numbers can cause.
const TOLERANCE: f64 = 0.02;
/// The smallest derivative by which an error is divided to make it relative. The rounding of the
/// loss hides smaller derivatives.
const FLOOR: f64 = 1e-3;
/// The lengths of the steps that are tried along a direction of length 1. Rounding makes short
/// steps inexact, and curvature makes long steps inexact. Only the step with the smallest error is
/// used.
const STEPS: [f32; 5] = [0.1, 0.03, 0.01, 0.003, 0.001];
/// The number of single elements that are tried for each parameter and each table.
const ELEMENTS: usize = 4;

/// The comparison of gradients with finite differences.
#[derive(Clone, Debug, Serialize)]
pub struct GradientCheck {
    /// The number of rows in the batch.
    pub rows: usize,
    /// The loss with the randomly drawn values of the parameters.
    pub loss: f64,
    /// The largest relative error that passes.
    pub tolerance: f64,
    /// The groups of floats: first the parameters in the model's order, then the tables.
    pub groups: Vec<GradientGroup>,
}

/// The comparison of one parameter, or of the rows of one table that the batch reads.
#[derive(Clone, Debug, Serialize)]
pub struct GradientGroup {
    /// The parameter's or the table's name.
    pub name: String,
    /// Whether the group holds rows of a table. Otherwise it holds a parameter.
    pub is_table: bool,
    /// The number of floats in the group.
    pub elements: usize,
    /// The norm of the gradient.
    pub norm: f64,
    /// The number of directions that were compared.
    pub compared: usize,
    /// The largest relative error of the compared directions.
    pub worst: f64,
}

impl GradientCheck {
    /// Returns whether every error is within the tolerance.
    pub fn passed(&self) -> bool {
        self.groups.iter().all(|group| group.worst <= self.tolerance)
    }
}

/// Compares the gradients of the job's model with finite differences on the first `rows` rows.
///
/// # Errors
/// Returns an error if the job or its data cannot be trained on.
pub fn gradients(job: &Job, rows: usize, workers: &Arc<Workers>) -> Result<GradientCheck> {
    let files = job.data.files(&job.data.train)?;
    let mut dataset = Dataset::open(&job.data, &files, &job.schema)?;
    if job.schema.features.iter().any(|f| f.needs_statistics()) {
        let statistics = zillion_reader::statistics(&dataset, workers)?;
        dataset = dataset.with_statistics(statistics);
    }
    if job.compares_groups() {
        dataset = dataset.with_whole_groups();
    }
    let order = BatchOrder {
        seed: job.seed,
        shuffle: job.data.shuffle,
        batch_rows: rows.max(1),
        drop_last: false,
    };
    let mut batches = dataset.batches(order, Cursor::default(), workers.clone())?;
    let Some(first) = batches.next() else {
        let problem = "the training data has no rows; check `data.train`".to_owned();
        return Err(Error::Unsupported(problem));
    };
    let (mut batch, _) = first?;
    if job.compares_groups() {
        // The training graph reads the numbers of groups as a numeric column after the features.
        let mut numbers = Vec::new();
        number_groups(&batch, &mut numbers);
        batch.numeric.push(numbers);
    }
    let plan = LookupPlan::build(&batch, &job.schema, &mut PlanScratch::default());

    let graph = job.graph(Mode::Train)?;
    let loss = find_output(&graph, LOSS)?;
    let mut table_rows = RowBuffer::default();
    let strides = job.tables.iter().map(|t| t.layout().stride);
    let shapes: Vec<_> = plan.tables.iter().map(|t| t.keys.len()).zip(strides).collect();
    table_rows.reshape(shapes.iter().copied());
    for (at, table) in (0..).zip(&mut table_rows.tables) {
        draw(&mut table.values, random::combine(job.seed, at), 0.0, 0.5);
    }
    let mut params = Params::init(&graph.params, job.seed);
    for (spec, values) in params.iter_mut().filter(|(spec, _)| spec.trainable) {
        draw(values, random::text_seed(job.seed, &spec.name), 1.0, 0.1);
    }
    let settings = job.train.settings()?;
    Check::new(&graph, loss, settings, workers, params, table_rows)?.run(&batch, &plan)
}

/// Multiplies each value by `keep`, and adds uniform random noise between `-by` and `by`.
fn draw(values: &mut [f32], seed: u64, keep: f32, by: f32) {
    for (at, value) in (0..).zip(values) {
        let unit = random::unit_f32((random::combine(seed, at) >> 32) as u32);
        *value = keep * *value + by * (2.0 * unit - 1.0);
    }
}

/// The parameter or the table that holds a group's floats.
#[derive(Clone, Copy)]
enum Place {
    Param(zillion_nn::ParamId),
    Table(usize),
}

impl Place {
    /// Returns the floats of the group.
    fn values<'a>(self, params: &'a mut Params, rows: &'a mut RowBuffer) -> &'a mut [f32] {
        match self {
            Self::Param(id) => params.value_mut(id),
            Self::Table(index) => &mut rows.tables[index].values,
        }
    }
}

struct Check<'a> {
    graph: &'a Graph,
    loss: NodeId,
    backward: Executor,
    forward: Executor,
    workers: &'a Workers,
    params: Params,
    rows: RowBuffer,
}

impl<'a> Check<'a> {
    fn new(
        graph: &'a Graph,
        loss: NodeId,
        settings: Settings,
        workers: &'a Workers,
        params: Params,
        rows: RowBuffer,
    ) -> Result<Self> {
        let train = differentiate(graph, loss)?;
        Ok(Self {
            graph,
            loss,
            backward: Executor::new(Program::train(&train, settings)?),
            forward: Executor::new(Program::infer(graph, &[loss], settings)?),
            workers,
            params,
            rows,
        })
    }

    fn run(mut self, batch: &zillion_feature::Batch, plan: &LookupPlan) -> Result<GradientCheck> {
        let mut grads = RowBuffer::default();
        grads.reshape(self.rows.tables.iter().map(|t| (t.rows(), t.stride)));
        let inputs = Inputs::new(batch, plan, &self.rows, true);
        let mut by_table: Vec<&mut [f32]> =
            grads.tables.iter_mut().map(|t| t.values.as_mut_slice()).collect();
        // The parameters are a copy, because a step moves running statistics. The same seed draws
        // the same dropout masks.
        let mut moved = self.params.clone();
        let seed = StepSeed::default();
        self.backward.train(self.workers, &inputs, &mut moved, seed, &mut by_table)?;
        let loss = self.backward.loss().map_or(f64::NAN, f64::from);

        let mut groups = Vec::new();
        let trainable = self.graph.params.iter().enumerate().filter(|(_, spec)| spec.trainable);
        for (index, spec) in trainable {
            let id = zillion_nn::ParamId(index as u32);
            let zeros = vec![0.0; spec.rows * spec.cols];
            let gradient = self.backward.param_grad(id).map_or(zeros, <[f32]>::to_vec);
            groups.push((spec.name.clone(), Place::Param(id), gradient));
        }
        for (index, table) in grads.tables.into_iter().enumerate() {
            let name = self.graph.inputs.tables[index].name.clone();
            groups.push((name, Place::Table(index), table.values));
        }
        let groups = groups
            .into_iter()
            .map(|(name, place, gradient)| self.group(name, place, &gradient, batch, plan))
            .collect::<Result<_>>()?;
        Ok(GradientCheck { rows: batch.rows, loss, tolerance: TOLERANCE, groups })
    }

    fn group(
        &mut self,
        name: String,
        place: Place,
        gradient: &[f32],
        batch: &zillion_feature::Batch,
        plan: &LookupPlan,
    ) -> Result<GradientGroup> {
        let directions = directions(gradient, random::text_seed(1, &name));
        let compared = directions.len();
        let mut worst = 0.0f64;
        let nowhere = vec![0.0; gradient.len()];
        let here = self.loss_at(place, &nowhere, 0.0, batch, plan)?;
        for direction in directions {
            let claimed: f64 =
                gradient.iter().zip(&direction).map(|(&g, &d)| f64::from(g) * f64::from(d)).sum();
            let mut best = f64::INFINITY;
            for step in STEPS {
                let above = self.loss_at(place, &direction, step, batch, plan)?;
                let below = self.loss_at(place, &direction, -step, batch, plan)?;
                let step = f64::from(step);
                // The loss has a kink where a relu begins. Beyond the kink, only one of the two
                // sides has the derivative.
                let sides = [(above - here) / step, (here - below) / step];
                for found in [(above - below) / (2.0 * step), sides[0], sides[1]] {
                    let size = found.abs().max(claimed.abs()).max(FLOOR);
                    let error = (found - claimed).abs() / size;
                    // The comparison must also fail for a value that is not a number.
                    best = if error < best { error } else { best };
                }
            }
            worst = worst.max(best);
        }
        Ok(GradientGroup {
            name,
            is_table: matches!(place, Place::Table(_)),
            elements: gradient.len(),
            norm: norm(gradient),
            compared,
            worst,
        })
    }

    /// Computes the loss with one group changed by `step` along `direction`, and restores the
    /// group.
    fn loss_at(
        &mut self,
        place: Place,
        direction: &[f32],
        step: f32,
        batch: &zillion_feature::Batch,
        plan: &LookupPlan,
    ) -> Result<f64> {
        let values = place.values(&mut self.params, &mut self.rows);
        let kept = values.to_vec();
        values.iter_mut().zip(direction).for_each(|(value, d)| *value += step * d);
        let inputs = Inputs::new(batch, plan, &self.rows, true);
        self.forward.infer(self.workers, &inputs, &self.params)?;
        let loss = self.forward.output(self.loss).and_then(|l| l.first()).copied();
        place.values(&mut self.params, &mut self.rows).copy_from_slice(&kept);
        Ok(loss.map_or(f64::NAN, f64::from))
    }
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// Returns the directions to compare, each of length 1.
fn directions(gradient: &[f32], seed: u64) -> Vec<Vec<f32>> {
    let mut directions = vec![gradient.to_vec()];
    for half in 0..2 {
        let kept = |(at, &g): (u64, &f32)| {
            let bit = random::combine(random::combine(seed, half), at) >> 63;
            if bit == 0 { g } else { 0.0 }
        };
        directions.push((0..).zip(gradient).map(kept).collect());
    }
    let mut largest: Vec<usize> = (0..gradient.len()).collect();
    largest.sort_by(|&a, &b| gradient[b].abs().total_cmp(&gradient[a].abs()).then(a.cmp(&b)));
    for &at in largest.iter().take(ELEMENTS) {
        let mut single = vec![0.0; gradient.len()];
        single[at] = gradient[at];
        directions.push(single);
    }
    let sign = |at: u64| if random::combine(seed, at) >> 63 == 0 { 1.0 } else { -1.0 };
    let idle = |(at, &g): (u64, &f32)| if g == 0.0 { sign(at) } else { 0.0 };
    directions.push((0..).zip(gradient).map(idle).collect());
    directions.retain_mut(|direction| {
        let length = norm(direction);
        direction.iter_mut().for_each(|d| *d = (f64::from(*d) / length) as f32);
        length.is_finite() && length > 0.0
    });
    directions
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use zillion_feature::{Batch, LabelColumn};
    use zillion_nn::{GraphBuilder, GraphInputs, ParamId};

    use super::*;

    #[test]
    fn right_gradients_agree_and_wrong_ones_do_not() {
        let inputs = GraphInputs {
            numeric: vec!["x".into(), "y".into()],
            labels: vec!["click".into()],
            ..GraphInputs::default()
        };
        let mut b = GraphBuilder::new(inputs, Mode::Train);
        let x = b.numeric("x", &[0, 1]).unwrap();
        let h = b.linear("h", x, 3).unwrap();
        let h = b.sigmoid("s", h).unwrap();
        let logits = b.linear("out", h, 1).unwrap();
        let loss = b.bce_with_logits(LOSS, logits, 0).unwrap();
        let graph = b.finish();
        let batch = Batch {
            rows: 4,
            numeric: vec![vec![1.0, -2.0, 0.5, 0.1], vec![0.3, 0.2, -1.0, 2.0]],
            labels: vec![LabelColumn { values: vec![1.0, 0.0, 0.0, 1.0], mask: None }],
            ..Batch::default()
        };
        let plan = LookupPlan { rows: 4, ..LookupPlan::default() };
        let workers = Workers::new(NonZeroUsize::MIN).unwrap();
        let check = || {
            let params = Params::init(&graph.params, 3);
            let settings = Settings::default();
            Check::new(&graph, loss, settings, &workers, params, RowBuffer::default()).unwrap()
        };
        let report = check().run(&batch, &plan).unwrap();
        assert!(report.passed(), "{report:?}");
        assert_eq!(report.groups.len(), 4);

        let mut backward = check();
        let mut moved = backward.params.clone();
        let rows = RowBuffer::default();
        let inputs = Inputs::new(&batch, &plan, &rows, true);
        let seed = StepSeed::default();
        backward.backward.train(&workers, &inputs, &mut moved, seed, &mut []).unwrap();
        let right = backward.backward.param_grad(ParamId(0)).unwrap().to_vec();
        let mut judge = |gradient: &[f32]| {
            let place = Place::Param(ParamId(0));
            backward.group("h.weight".into(), place, gradient, &batch, &plan).unwrap().worst
        };
        assert!(judge(&right) < TOLERANCE);
        let scaled: Vec<f32> = right.iter().map(|g| 1.1 * g).collect();
        assert!(judge(&scaled) > TOLERANCE);
        let mut one_off = right.clone();
        one_off[2] = 0.0;
        assert!(judge(&one_off) > TOLERANCE, "a gradient that is left out");
    }
}
