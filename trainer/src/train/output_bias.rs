//! The start of a model's output at the mean of its label.
//!
//! A model whose output begins at a probability of 0.5 spends its first epochs on learning that a
//! label is rare, and its small learning rates may never get there. So the bias of the output
//! begins where a model without features would end. The means are computed in a pass over the
//! labels of the training files before the first step, over at most [`MOST_ROWS`] rows, or the job
//! gives them. The bias is a parameter like any other from then on: a checkpoint holds it, and a
//! resumed run needs no second pass.
//!
//! A pass over more rows was rejected: a rate of one in ten thousand is known from 4 million rows
//! to a twentieth, which training corrects in a few steps.

use zillion_feature::LabelKind;
use zillion_nn::zoo::{self, LOGITS, LossSpec, ModelSpec, Task, TaskLabel};
use zillion_nn::{Mode, ParamId};

use super::Run;
use super::warm_start::Origin;
use crate::error::Result;
use crate::graph_inputs::find_output;
use crate::job::{Job, OutputBias};
use crate::observer::Observer;
use crate::tasks::{Truth, kept};

/// The largest number of rows whose labels are read, except for the rest of the last piece.
const MOST_ROWS: u64 = 1 << 22;

/// The weighted sum of a label.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    labels: f64,
    weights: f64,
    rows: u64,
}

impl Sum {
    fn add(&mut self, labels: &[f32], weights: Option<&[f32]>) {
        for (row, &label) in labels.iter().enumerate() {
            let weight = weights.map_or(1.0, |weights| f64::from(weights[row]));
            self.labels += weight * f64::from(label);
            self.weights += weight;
        }
        self.rows += labels.len() as u64;
    }

    /// Returns the mean, or `None` if no row counts. Half a row above zero is added to the mean of
    /// a label that cannot be below zero, because its logarithm must be finite.
    fn mean(&self, kind: LabelKind) -> Option<f64> {
        let row = self.weights / self.rows as f64;
        let mean = match kind {
            LabelKind::Number => self.labels / self.weights,
            LabelKind::Binary | LabelKind::Count | LabelKind::Class => {
                (self.labels + row / 2.0) / (self.weights + row)
            }
        };
        (self.rows > 0 && self.weights > 0.0 && mean.is_finite()).then_some(mean)
    }
}

/// The mean of a label.
struct Mean {
    value: f64,
    /// The number of rows from which the mean was computed; absent if the job gives the mean.
    rows: Option<u64>,
}

/// A task whose output has a bias.
struct Output {
    task: Task,
    /// The parameter, and the index of its element.
    bias: (ParamId, usize),
}

impl Run {
    /// Sets the biases of the outputs to the means of the labels. A bias that the version `origin`
    /// has is left out, because the run takes it from the version.
    pub(super) fn begin_at_means(
        &mut self,
        origin: Option<&Origin>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        if self.job.train.output_bias == OutputBias::Zero {
            return Ok(());
        }
        let mut outputs = find_outputs(&self.job)?;
        outputs.retain(|output| {
            let name = &self.model.params.specs()[output.bias.0.0 as usize].name;
            origin.is_none_or(|origin| !origin.has_parameter(name))
        });
        for (output, mean) in outputs.iter().zip(self.find_means(&outputs, observer)?) {
            let Some(Mean { value, rows }) = mean else { continue };
            let score = self.job.score_of_mean(&output.task, value)?;
            let (bias, element) = output.bias;
            self.model.params.value_mut(bias)[element] = score as f32;
            let name = &output.task.name;
            let source = rows.map_or_else(|| "in the job".to_owned(), |n| format!("in {n} rows"));
            observer.note(&format!(
                "label {name} has the mean {value:.6} {source}; its score begins at {score:.4}"
            ));
        }
        Ok(())
    }

    /// Returns for each output the mean of its label, or `None` if no row has the label.
    fn find_means(
        &self,
        outputs: &[Output],
        observer: &mut dyn Observer,
    ) -> Result<Vec<Option<Mean>>> {
        let given: Vec<Option<f64>> =
            outputs.iter().map(|output| self.job.given_mean(output.task.label)).collect();
        let mut sums = vec![Sum::default(); outputs.len()];
        if let (true, Some(train)) = (given.contains(&None), self.data.train_files()) {
            observer.note("computing the means of labels");
            let workers = &self.options.workers;
            zillion_reader::labels(train, self.job.seed, MOST_ROWS, workers, |batch| {
                for (sum, output) in sums.iter_mut().zip(outputs) {
                    let truth = Truth::of(output.task.label, &batch.labels);
                    let known = truth.known.as_deref();
                    let weights = batch.weight.as_deref().map(|weights| kept(weights, known));
                    sum.add(&kept(&truth.labels, known), weights.as_deref());
                }
                Ok::<(), crate::error::Error>(())
            })?;
        }
        let means = outputs.iter().zip(given).zip(sums).map(|((output, given), sum)| {
            let kind = self.job.schema.labels[output.task.label.of()].kind;
            let counted = || sum.mean(kind).map(|value| Mean { value, rows: Some(sum.rows) });
            given.map(|value| Mean { value, rows: None }).or_else(counted)
        });
        Ok(means.collect())
    }
}

/// Returns the tasks of a job whose scores have a bias of their own.
fn find_outputs(job: &Job) -> Result<Vec<Output>> {
    // The scores of two towers are compared with each other and not with a label.
    if matches!(job.model, ModelSpec::TwoTower(_)) {
        return Ok(Vec::new());
    }
    let mut graph = job.graph(Mode::Train)?;
    job.freeze(&mut graph)?;
    let mut outputs: Vec<Output> = Vec::new();
    for (index, task) in job.tasks().into_iter().enumerate() {
        let score = find_output(&graph, &task.output(LOGITS, index))?;
        let bias = zoo::find_output_bias(&graph, score);
        // A loss that compares scores with each other does not move such a bias.
        let is_compared = job.loss_of_task(&task).compares_groups();
        if let Some(bias) = bias
            .filter(|_| !is_compared)
            .filter(|&bias| outputs.iter().all(|other| other.bias != bias))
        {
            outputs.push(Output { task, bias });
        }
    }
    Ok(outputs)
}

impl Job {
    /// Returns the mean of a task's label, if the job gives it.
    fn given_mean(&self, label: TaskLabel) -> Option<f64> {
        let mean = |label: usize| self.schema.labels[label].mean;
        match label {
            TaskLabel::Own { label } | TaskLabel::Class { label, .. } => mean(label),
            TaskLabel::Both { second, .. } => mean(second),
            // The second label is 1 only in rows whose first label is 1.
            TaskLabel::Given { first, second } => {
                Some(mean(second)? / mean(first)?).filter(|&share| share < 1.0)
            }
        }
    }

    /// Returns the loss of a task.
    fn loss_of_task(&self, task: &Task) -> LossSpec {
        let label = self.schema.labels.get(task.label.of());
        label.map(|label| self.loss_of(&label.name)).unwrap_or_default()
    }

    /// Returns the score that stands for the mean of a task's label in training, which may leave
    /// out a share of the rows with label 0.
    fn score_of_mean(&self, task: &Task, mean: f64) -> Result<f64> {
        let score = self.loss_of_task(task).score_of_mean(mean);
        let is_thinned =
            |&(thinned, _): &(usize, f64)| task.label == TaskLabel::Own { label: thinned };
        let thinned = self.data.negatives(&self.schema)?.filter(is_thinned);
        Ok(score - thinned.map_or(0.0, |(_, keep)| keep.ln()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_weighted_and_never_zero_for_rates() {
        let mut sum = Sum::default();
        sum.add(&[1.0, 0.0, 0.0], Some(&[2.0, 1.0, 1.0]));
        assert_eq!(sum.mean(LabelKind::Number), Some(0.5));
        let mut none = Sum::default();
        none.add(&[0.0; 99], None);
        assert_eq!(none.mean(LabelKind::Binary), Some(0.005));
        assert_eq!(none.mean(LabelKind::Number), Some(0.0));
        assert_eq!(Sum::default().mean(LabelKind::Binary), None);
        let mut unweighted = Sum::default();
        unweighted.add(&[1.0], Some(&[0.0]));
        assert_eq!(unweighted.mean(LabelKind::Count), None);
    }
}
