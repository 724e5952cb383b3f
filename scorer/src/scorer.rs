//! The scorer, which computes the scores of a batch from a graph and rows.

use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{Batch, LookupPlan, RowBuffer};
use zillion_nn::zoo::LOGITS;
use zillion_nn::{Executor, Graph, Inputs, NodeId, Params, Program, Settings};
use zillion_rows::RowSource;

use crate::error::{Error, Result};

/// A scorer of batches for one model. It holds the buffers of scoring, which all batches reuse.
#[derive(Debug)]
pub struct Scorer {
    executor: Executor,
    outputs: Vec<NodeId>,
    workers: Arc<Workers>,
    rows: RowBuffer,
}

/// The scores of the rows of a batch.
#[derive(Clone, Debug)]
pub struct Scores<'a> {
    /// The values of the scorer's outputs: one list for each output, with one value for each row of
    /// the batch. By default, the outputs are the log odds of the model's tasks.
    pub outputs: Vec<&'a [f32]>,
    /// The number of unique keys without a row, which were read as unknown.
    pub missing: u64,
}

impl Scorer {
    /// Creates a scorer for a graph that was built for inference.
    ///
    /// # Errors
    /// Returns an error if the graph has no logits.
    pub fn new(graph: &Graph, settings: Settings, workers: Arc<Workers>) -> Result<Self> {
        Self::with_results(graph, &[], settings, workers)
    }

    /// Creates a scorer that also keeps the values of the nodes `further` of the graph.
    /// [`Scorer::executor`] gives access to these values.
    ///
    /// # Errors
    /// Returns an error if the graph has no logits, or if the values of one of the nodes are not
    /// values of the rows of a batch.
    pub fn with_results(
        graph: &Graph,
        further: &[NodeId],
        settings: Settings,
        workers: Arc<Workers>,
    ) -> Result<Self> {
        if graph.output(LOGITS).is_none() {
            return Err(Error::NoLogits);
        }
        let of_task = |name: &str| {
            name.strip_prefix(LOGITS).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let outputs = graph.outputs.iter().filter(|(name, _)| of_task(name));
        let logits: Vec<NodeId> = outputs.map(|&(_, id)| id).collect();
        let results: Vec<NodeId> = logits.iter().chain(further).copied().collect();
        let executor = Executor::new(Program::infer(graph, &results, settings)?);
        Ok(Self { executor, outputs: logits, workers, rows: RowBuffer::default() })
    }

    /// Creates a scorer for the outputs of a graph whose names are in `outputs`.
    ///
    /// # Errors
    /// Returns an error if the graph does not have one of the outputs.
    pub fn with_outputs(
        graph: &Graph,
        outputs: &[&str],
        settings: Settings,
        workers: Arc<Workers>,
    ) -> Result<Self> {
        let missing = |name: &str| Error::NoOutput { name: name.to_owned() };
        let find = |name: &&str| graph.output(name).ok_or_else(|| missing(name));
        let outputs: Vec<NodeId> = outputs.iter().map(find).collect::<Result<_>>()?;
        let executor = Executor::new(Program::infer(graph, &outputs, settings)?);
        Ok(Self { executor, outputs, workers, rows: RowBuffer::default() })
    }

    /// Returns the executor, which holds the results of the last batch, including those of the
    /// further nodes.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Computes the scores of a batch: looks up its rows in `source`, and runs the dense model.
    ///
    /// # Errors
    /// Returns the errors of the source and of the model.
    pub fn score(
        &mut self,
        batch: &Batch,
        plan: &LookupPlan,
        source: &mut dyn RowSource,
        params: &Params,
    ) -> Result<Scores<'_>> {
        let report = source.lookup(plan, &mut self.rows)?;
        let inputs = Inputs::new(batch, plan, &self.rows, false);
        self.executor.infer(&self.workers, &inputs, params)?;
        let outputs =
            self.outputs.iter().map(|&id| self.executor.output(id).ok_or(Error::NoLogits));
        let outputs = outputs.collect::<Result<_>>()?;
        Ok(Scores { outputs, missing: report.total_missing() })
    }
}
