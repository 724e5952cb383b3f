//! The dense model of a run: its programs, its parameters and its optimizer.

use zillion_device::Workers;
use zillion_nn::optim::{Average, DenseOptimizer};
use zillion_nn::zoo::{self, LOGITS, LOSS};
use zillion_nn::{Mode, NodeId, Params, Program, differentiate};
use zillion_scorer::Scorer;

use super::TrainOptions;
use super::device::{find_reader_of_rows, make_executor};
use super::graph_executor::{GraphExecutor, Resident};
use super::step::{Inspection, StepBuffers};
use crate::error::{Error, Result};
use crate::fetch;
use crate::graph_inputs::find_output;
use crate::job::Job;
use crate::observer::InspectOptions;
use crate::retrieval::Towers;

/// The dense model of a run, with its parameters and their optimizer.
pub(super) struct Model {
    /// The executor of the training graph.
    pub(super) executor: GraphExecutor,
    /// One line that names the device of the executor, and the reason of its choice.
    pub(super) device: String,
    /// The scorer of validation.
    pub(super) scorer: Scorer,
    /// The two towers, if the job evaluates retrieval.
    pub(super) towers: Option<Towers>,
    /// The newest dense parameters.
    pub(super) params: Params,
    pub(super) optimizer: DenseOptimizer,
    /// The average of the parameters, if the job asks for one. Rows are then scored with the
    /// average instead of the newest parameters.
    pub(super) average: Option<Average>,
    /// The state of the parameters that stay on a GPU between steps; `None`: those of the host are
    /// the newest after each step.
    pub(super) resident: Option<Resident>,
    /// The reason for which the rows of tables stay on the host, if it is known before the tables
    /// are opened.
    pub(super) rows_on_host: Option<&'static str>,
}

impl Model {
    /// Builds the job's model, and the buffers of its steps.
    pub(super) fn build(
        job: &Job,
        inspect: &InspectOptions,
        options: &TrainOptions,
    ) -> Result<(Self, StepBuffers)> {
        let mut graph = job.graph(Mode::Train)?;
        job.freeze(&mut graph)?;
        let graph = job.quantize_layers(graph)?;
        // A two_tower model without labels has one task without a label.
        let tasks = job.tasks().into_iter().enumerate();
        let logits = tasks.map(|(index, task)| find_output(&graph, &task.output(LOGITS, index)));
        let logits = logits.collect::<Result<Vec<NodeId>>>()?;
        let loss = find_output(&graph, LOSS)?;
        let params = Params::init(&graph.params, job.seed);
        let mut optimizer =
            DenseOptimizer::new(job.train.optimizer, job.model.l2(), &graph.params)?;
        optimizer.set_rates(&job.rate_factors(&graph.params)?)?;
        let average = job.train.average.map(|spec| Average::new(spec, &params));
        let settings = job.train.settings()?;
        let mut differentiated = differentiate(&graph, loss)?;
        let nodes = fetch::find_nodes(&differentiated.graph, &inspect.nodes)?;
        let results = nodes.iter().map(|node| (String::new(), node.id));
        differentiated.graph.outputs.extend(results);
        let program = Program::train(&differentiated, settings)?;
        let (executor, device) = make_executor(job, options, program)?;
        // What reads the gradients or the parameters of every step on the host keeps them there.
        let is_read_by_step = job.train.accumulate.get() > 1
            || average.is_some()
            || !inspect.nodes.is_empty()
            || !job.streams.is_empty();
        let resident = (executor.is_on_gpu() && !is_read_by_step).then(Resident::default);
        let infer = job.graph(Mode::Infer)?;
        let scorer = Scorer::new(&infer, settings, options.workers.clone())?;
        let towers = Towers::new(job, &infer, settings, &options.workers)?;
        let item_column = job.item_column().filter(|_| zoo::reads_log_frequency(&job.model));
        let inspection = Inspection::new(inspect.steps, nodes);
        let buffers = StepBuffers::new(logits, item_column, inspection, job.compares_groups());
        let model = Self {
            executor,
            device,
            scorer,
            towers,
            params,
            optimizer,
            average,
            resident,
            rows_on_host: find_reader_of_rows(job, inspect),
        };
        Ok((model, buffers))
    }

    /// Returns the parameters for scoring: the average if the job asks for one, else the newest
    /// parameters.
    pub(super) fn scoring_params(&mut self) -> Result<&Params> {
        self.settle()?;
        Ok(select_scoring_params(self.average.as_ref(), &self.params))
    }

    /// Updates the average, if there is one, after step number `step` of the run.
    pub(super) fn update_average(&mut self, step: u64, workers: &Workers) -> Result<()> {
        let Some(average) = &mut self.average else { return Ok(()) };
        Ok(average.update(&self.params, step, workers)?)
    }

    /// Copies all dense parameters, with the running statistics, one after another.
    pub(super) fn copy_dense_to(&self, dense: &mut Vec<f32>) {
        dense.clear();
        self.params.iter().for_each(|(_, values)| dense.extend_from_slice(values));
    }

    /// Replaces all dense parameters.
    ///
    /// # Errors
    /// Returns an error if the number of values is wrong.
    pub(super) fn set_dense(&mut self, mut dense: &[f32]) -> Result<()> {
        let expected: usize = self.params.iter().map(|(_, values)| values.len()).sum();
        if dense.len() != expected {
            return Err(Error::Exchange {
                problem: format!(
                    "the servers have {} dense parameters, but the model has {expected}",
                    dense.len()
                ),
            });
        }
        for (_, values) in self.params.iter_mut() {
            let (own, rest) = dense.split_at(values.len());
            values.copy_from_slice(own);
            dense = rest;
        }
        Ok(())
    }

    /// Returns the number of dense parameters that are trained.
    pub(super) fn trained_parameters(&self) -> u64 {
        let trained = self.params.iter().filter(|(spec, _)| spec.trainable);
        trained.map(|(_, values)| values.len() as u64).sum()
    }
}

/// Returns the average of the parameters if there is one, else the newest parameters.
pub(super) fn select_scoring_params<'a>(
    average: Option<&'a Average>,
    params: &'a Params,
) -> &'a Params {
    average.and_then(Average::params).unwrap_or(params)
}
