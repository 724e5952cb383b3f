//! The scorer, which computes the scores of a batch from a graph and rows.

use std::sync::Arc;

use zillion_device::Workers;
use zillion_device::gpu::Gpu;
use zillion_feature::{Batch, LookupPlan, RowBuffer, SharedColumns};
use zillion_nn::zoo::LOGITS;
use zillion_nn::{
    ColumnCopies, DenseType, Executor, GpuExecutor, Graph, Inputs, NodeId, PackedParams, Params,
    Settings,
};
use zillion_rows::{FetchedRows, RowSource};

use crate::error::{Error, Result};
use crate::late::{LateCheck, check_time};
use crate::onnx::OnnxModel;
use crate::programs::{MOST_SETS, Programs};

/// A scorer of batches for one model. It holds the buffers of scoring, which all batches reuse.
#[derive(Debug)]
pub struct Scorer {
    programs: Arc<Programs>,
    /// The executors, each with the shared columns of its batches. The first one is for batches in
    /// which all columns have all rows.
    executors: Vec<(SharedColumns, Executor)>,
    /// The index of the executor of the last batch.
    last: usize,
    outputs: Vec<NodeId>,
    workers: Arc<Workers>,
    rows: RowBuffer,
    /// The packed weights of the next batches.
    packed: Option<Arc<PackedParams>>,
    /// The executor on a device that computes the batches instead; `None` on processors.
    on_device: Option<Box<GpuExecutor>>,
    /// The ONNX model that computes the scores from the outputs of the graph, if there is one.
    onnx: Option<Arc<OnnxModel>>,
    /// The scores of the last batch that the ONNX model has computed.
    scores: Vec<Vec<f32>>,
}

/// The largest number of batches whose rows [`Scorer::score_each`] fetches with one lookup. It
/// bounds the memory of the rows.
const FETCHED_TOGETHER: usize = 256;

/// The scores of a batch.
#[derive(Clone, Debug)]
pub struct Scores<'a> {
    /// The values of the scorer's outputs: one list for each output, with one value for each row of
    /// the batch. By default, the outputs are the log odds of the model's tasks.
    pub outputs: Vec<&'a [f32]>,
    /// The number of unique keys that have no row. They are scored as unknown keys.
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
    /// Returns an error if the graph has no logits, or if one of the nodes does not have one value
    /// for each row of a batch.
    pub fn with_results(
        graph: &Graph,
        further: &[NodeId],
        settings: Settings,
        workers: Arc<Workers>,
    ) -> Result<Self> {
        let logits = logits(graph)?;
        let results: Vec<NodeId> = logits.iter().chain(further).copied().collect();
        let programs = Programs::new(graph.clone(), results, settings);
        Self::with_programs(Arc::new(programs), logits, workers)
    }

    /// Creates a scorer of the nodes `outputs`, which must be results of the programs.
    ///
    /// # Errors
    /// Returns an error if a result does not have one row for each row of a batch.
    pub(crate) fn with_programs(
        programs: Arc<Programs>,
        outputs: Vec<NodeId>,
        workers: Arc<Workers>,
    ) -> Result<Self> {
        let executors = vec![(SharedColumns::default(), Executor::new(programs.plan()?))];
        let rows = RowBuffer::default();
        Ok(Self {
            programs,
            executors,
            last: 0,
            outputs,
            workers,
            rows,
            packed: None,
            on_device: None,
            onnx: None,
            scores: Vec::new(),
        })
    }

    /// Creates a scorer that computes the outputs with the names `outputs` of a graph.
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
        let programs = Programs::new(graph.clone(), outputs.clone(), settings);
        Self::with_programs(Arc::new(programs), outputs, workers)
    }

    /// Lets a device compute the batches from now on. Their results have the same bits. The rows
    /// are looked up on the host. Packed weights are not used.
    ///
    /// # Errors
    /// Returns an error that names the first node that a device cannot compute, or an error of the
    /// device.
    pub fn set_device(&mut self, gpu: Arc<dyn Gpu>) -> Result<()> {
        self.on_device = Some(Box::new(GpuExecutor::new(self.programs.plan()?, gpu)?));
        Ok(())
    }

    /// Lets an ONNX model compute the scores of the next batches from the outputs of the graph,
    /// which are its inputs.
    pub fn set_onnx(&mut self, onnx: Option<Arc<OnnxModel>>) {
        self.onnx = onnx;
    }

    /// Returns whether an ONNX model computes the scores.
    pub fn has_onnx(&self) -> bool {
        self.onnx.is_some()
    }

    /// Returns a result of the last batch: an output, or one of the further nodes. Returns `None`
    /// if the node is not a result.
    pub fn output(&self, node: NodeId) -> Option<&[f32]> {
        match &self.on_device {
            Some(executor) => executor.output(node),
            None => self.executors[self.last].1.output(node),
        }
    }

    /// Packs the weights of `params` in a number type, for [`Scorer::set_packed`]. `piece` is
    /// called after each part of a weight, so that the caller can pause.
    ///
    /// # Panics
    /// Panics if the parameters are not those of the scorer's graph.
    pub fn pack(
        &self,
        dense: DenseType,
        params: &Params,
        piece: &mut dyn FnMut(),
    ) -> Arc<PackedParams> {
        Arc::new(PackedParams::with_type(dense, self.executors[0].1.program(), params, piece))
    }

    /// Returns the number of columns of the first output, or `None` if there is no output.
    pub(crate) fn output_columns(&self) -> Option<usize> {
        self.outputs.first().map(|&id| self.programs.graph().shape(id).cols)
    }

    /// Sets the packed weights that the next batches read, or `None` so that each batch packs its
    /// own. They must have been made from the parameters of these batches. Dense layers are
    /// computed in the number type of the packed weights.
    pub fn set_packed(&mut self, packed: Option<Arc<PackedParams>>) {
        self.packed = packed;
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
        self.score_unless(batch, plan, source, params, None)
    }

    /// Scores a batch as [`Scorer::score`] does, and stops when `is_late` returns `true`. The check
    /// is made before the lookup, before the model, and before each tile of rows.
    ///
    /// # Errors
    /// Returns [`Error::Late`] if the work was stopped, and the errors of the source and of the
    /// model.
    pub fn score_unless(
        &mut self,
        batch: &Batch,
        plan: &LookupPlan,
        source: &mut dyn RowSource,
        params: &Params,
        is_late: Option<LateCheck<'_>>,
    ) -> Result<Scores<'_>> {
        check_time(is_late)?;
        let report = source.lookup(plan, &mut self.rows)?;
        check_time(is_late)?;
        let outputs = self.infer(batch, plan, params, is_late)?;
        Ok(Scores { outputs, missing: report.total_missing() })
    }

    /// Scores batches one by one, and looks up the rows of up to 256 batches at once. Returns one
    /// list for each output, with the values of all batches in order. They are the same bits as
    /// those of [`Scorer::score`] for each batch.
    ///
    /// # Errors
    /// Returns the errors of the source and of the model.
    pub fn score_each(
        &mut self,
        batches: &[(Batch, LookupPlan)],
        source: &mut dyn RowSource,
        params: &Params,
    ) -> Result<Vec<Vec<f32>>> {
        let lists = self.onnx.as_ref().map_or(self.outputs.len(), |onnx| onnx.score_count());
        let mut all: Vec<Vec<f32>> = vec![Vec::new(); lists];
        for batches in batches.chunks(FETCHED_TOGETHER) {
            let fetched = FetchedRows::fetch(source, batches.iter().map(|(_, plan)| plan))?;
            for (number, (batch, plan)) in batches.iter().enumerate() {
                fetched.copy_rows(number, &mut self.rows)?;
                let outputs = self.infer(batch, plan, params, None)?;
                for (all, scored) in all.iter_mut().zip(outputs) {
                    all.extend_from_slice(scored);
                }
            }
        }
        Ok(all)
    }

    /// Computes the scores of a batch whose rows are in the buffer.
    fn infer(
        &mut self,
        batch: &Batch,
        plan: &LookupPlan,
        params: &Params,
        is_late: Option<LateCheck<'_>>,
    ) -> Result<Vec<&[f32]>> {
        let Some(onnx) = self.onnx.clone() else {
            return self.infer_outputs(batch, plan, params, is_late);
        };
        let mut scores = std::mem::take(&mut self.scores);
        let inputs = self.infer_outputs(batch, plan, params, is_late)?;
        onnx.score(batch.rows, &inputs, &mut scores, is_late)?;
        self.scores = scores;
        Ok(self.scores.iter().map(Vec::as_slice).collect())
    }

    /// Computes the outputs of the graph for a batch whose rows are in the buffer.
    fn infer_outputs(
        &mut self,
        batch: &Batch,
        plan: &LookupPlan,
        params: &Params,
        is_late: Option<LateCheck<'_>>,
    ) -> Result<Vec<&[f32]>> {
        if let Some(executor) = &mut self.on_device {
            let mut inputs = Inputs::new(batch, plan, &self.rows, false);
            let copies = ColumnCopies::new(&inputs, &batch.shared, &SharedColumns::default())?;
            copies.apply(&mut inputs);
            executor.infer(&inputs, params)?;
            return self.outputs.iter().map(|&id| self.output(id).ok_or(Error::NoLogits)).collect();
        }
        self.last = self.executor_for(&batch.shared)?;
        let executor = &mut self.executors[self.last].1;
        let mut inputs = Inputs::new(batch, plan, &self.rows, false);
        let kept = executor.program().one_row_columns();
        let copies = ColumnCopies::new(&inputs, &batch.shared, kept)?;
        copies.apply(&mut inputs);
        executor.set_packed(self.packed.clone());
        executor.infer_unless(&self.workers, &inputs, params, is_late)?;
        self.outputs.iter().map(|&id| self.output(id).ok_or(Error::NoLogits)).collect()
    }

    /// Returns the index of the executor for batches with these shared columns.
    fn executor_for(&mut self, shared: &SharedColumns) -> Result<usize> {
        if let Some(index) = self.executors.iter().position(|(columns, _)| columns == shared) {
            return Ok(index);
        }
        let Some(program) = self.programs.of(shared)? else { return Ok(0) };
        if self.executors.len() > MOST_SETS {
            // The first executor is the one of the plain program.
            self.executors.remove(1);
        }
        self.executors.push((shared.clone(), Executor::new((*program).clone())));
        Ok(self.executors.len() - 1)
    }

    /// Returns the number of sets of shared columns for which the scorer has an executor.
    #[cfg(test)]
    pub(crate) fn sets(&self) -> usize {
        self.executors.len() - 1
    }

    /// Drops all buffers and the results of the last batch. The next batch allocates the buffers
    /// that it needs.
    pub fn release(&mut self) {
        self.executors.truncate(1);
        self.executors[0].1.release();
        self.last = 0;
        self.rows = RowBuffer::default();
        self.scores = Vec::new();
    }

    /// Returns the number of bytes of the buffers that grow with a batch.
    pub fn buffer_bytes(&self) -> usize {
        let floats: usize = self.rows.tables.iter().map(|table| table.values.capacity()).sum();
        let executors = self.executors.iter().map(|(_, executor)| executor.buffer_bytes());
        let scores: usize = self.scores.iter().map(Vec::capacity).sum();
        executors.sum::<usize>() + (floats + scores) * size_of::<f32>()
    }
}

/// Returns the nodes of the log odds of a graph's tasks.
///
/// # Errors
/// Returns an error if the graph has no logits.
pub(crate) fn logits(graph: &Graph) -> Result<Vec<NodeId>> {
    if graph.output(LOGITS).is_none() {
        return Err(Error::NoLogits);
    }
    let of_task = |name: &str| {
        name.strip_prefix(LOGITS).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let outputs = graph.outputs.iter().filter(|(name, _)| of_task(name));
    Ok(outputs.map(|&(_, id)| id).collect())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use zillion_feature::PlanScratch;
    use zillion_rows::{LookupReport, TableLayout};

    use super::*;
    use crate::testing::{Example, TILE_ROWS};

    /// A source that counts its lookups.
    struct Counted<'a>(zillion_rows::layer::LayerSource, &'a Cell<usize>);

    impl RowSource for Counted<'_> {
        fn tables(&self) -> &[TableLayout] {
            self.0.tables()
        }

        fn lookup(
            &mut self,
            plan: &LookupPlan,
            rows: &mut RowBuffer,
        ) -> zillion_rows::Result<LookupReport> {
            self.1.set(self.1.get() + 1);
            self.0.lookup(plan, rows)
        }
    }

    #[test]
    fn a_late_request_stops_between_its_stages_and_tiles() {
        let example = Example::new();
        let mut scorer = example.scorer();
        let batch = example.batch(10 * TILE_ROWS);
        let plan = LookupPlan::build(&batch, &example.schema, &mut PlanScratch::default());
        let (lookups, checks) = (Cell::new(0), AtomicUsize::new(0));
        let mut source = Counted(example.source.clone(), &lookups);
        let expected =
            scorer.score(&batch, &plan, &mut source, &example.params).unwrap().outputs[0].to_vec();
        // One check is made before the lookup, one before the model, and one before each tile.
        for (last, looked_up) in [(1, 0), (2, 1), (3, 1), (7, 1)] {
            lookups.set(0);
            checks.store(0, Ordering::Relaxed);
            let is_late = || checks.fetch_add(1, Ordering::Relaxed) + 1 >= last;
            let late: Option<LateCheck<'_>> = Some(&is_late);
            let stopped = scorer.score_unless(&batch, &plan, &mut source, &example.params, late);
            assert!(matches!(stopped, Err(Error::Late)));
            assert_eq!((lookups.get(), checks.load(Ordering::Relaxed)), (looked_up, last));
        }
        let never = || false;
        let in_time: Option<LateCheck<'_>> = Some(&never);
        let scores = scorer.score_unless(&batch, &plan, &mut source, &example.params, in_time);
        assert_eq!(scores.unwrap().outputs[0], expected);
    }

    #[test]
    fn scores_of_one_lookup_are_those_of_single_lookups() {
        let example = Example::new();
        let mut scorer = example.scorer();
        let mut scratch = PlanScratch::default();
        let batches: Vec<(Batch, LookupPlan)> = (0..FETCHED_TOGETHER + 3)
            .map(|number| {
                let batch = example.batch(1 + number % 5);
                let plan = LookupPlan::build(&batch, &example.schema, &mut scratch);
                (batch, plan)
            })
            .collect();
        let lookups = Cell::new(0);
        let mut source = Counted(example.source.clone(), &lookups);
        let mut single = Vec::new();
        for (batch, plan) in &batches {
            let scores = scorer.score(batch, plan, &mut source, &example.params).unwrap();
            single.extend_from_slice(scores.outputs[0]);
        }
        assert_eq!(lookups.replace(0), batches.len());
        let each = scorer.score_each(&batches, &mut source, &example.params).unwrap();
        assert_eq!(lookups.replace(0), 2);
        let bits = |scores: &[f32]| scores.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!((each.len(), bits(&each[0])), (1, bits(&single)));
        scorer.score_each(&batches[..64], &mut source, &example.params).unwrap();
        assert_eq!(lookups.get(), 1);
    }

    #[test]
    fn a_released_scorer_scores_the_same() {
        let example = Example::new();
        let mut scorer = example.scorer();
        let batch = example.batch(1000);
        let plan = LookupPlan::build(&batch, &example.schema, &mut PlanScratch::default());
        let score = |scorer: &mut Scorer| {
            let mut source = example.source.clone();
            let scores = scorer.score(&batch, &plan, &mut source, &example.params).unwrap();
            scores.outputs[0].to_vec()
        };
        let expected = score(&mut scorer);
        scorer.release();
        assert_eq!(scorer.buffer_bytes(), 0);
        assert_eq!(score(&mut scorer), expected);
    }
}
