//! The programs of a model: one for batches in which all columns have all rows, and one for each
//! set of columns that have one row for the whole batch.
//!
//! A client chooses which inputs it gives once for all candidates. Usually, all requests for a
//! model make the same choice. The number of programs is limited, because a program takes memory
//! and because planning takes longer than scoring a small request. A batch with another set of
//! shared columns is scored by the plain program, with its columns copied to all rows.

use std::sync::{Arc, Mutex, PoisonError};

use zillion_device::matmul;
use zillion_feature::{Batch, SharedColumns};
use zillion_nn::{Cost, Graph, NodeId, Program, Settings, Sizes};

use crate::error::Result;

/// The largest number of sets of shared columns that have a program.
pub(crate) const MOST_SETS: usize = 8;

/// The programs of a model, which all scorers of the model use.
#[derive(Debug)]
pub(crate) struct Programs {
    graph: Graph,
    /// The nodes whose values the programs keep.
    results: Vec<NodeId>,
    settings: Settings,
    /// The programs that were planned for sets of shared columns.
    shared: Mutex<Vec<(SharedColumns, Arc<Program>)>>,
}

impl Programs {
    /// Creates the programs of the nodes `results` of a graph. None is planned yet.
    pub(crate) fn new(graph: Graph, results: Vec<NodeId>, settings: Settings) -> Self {
        Self { graph, results, settings, shared: Mutex::default() }
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings
    }

    /// Plans the program for batches in which all columns have all rows.
    ///
    /// # Errors
    /// Returns an error if a result does not have one row for each row of a batch.
    pub(crate) fn plan(&self) -> Result<Program> {
        Ok(Program::infer(&self.graph, &self.results, self.settings)?)
    }

    /// Returns the program for batches in which the columns `shared` have one row, and plans it if
    /// it is new. Returns `None` if such batches are scored by the plain program: no column is
    /// shared, this many sets have programs already, or products of one row are rounded
    /// differently on this machine.
    ///
    /// # Errors
    /// Returns an error if a result does not have one row for each row of a batch.
    pub(crate) fn of(&self, shared: &SharedColumns) -> Result<Option<Arc<Program>>> {
        if shared.is_empty() || !matmul::can_resume() {
            return Ok(None);
        }
        let mut programs = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, program)) = programs.iter().find(|(columns, _)| columns == shared) {
            return Ok(Some(program.clone()));
        }
        if programs.len() >= MOST_SETS {
            return Ok(None);
        }
        let program = Program::infer_shared(&self.graph, &self.results, self.settings, shared)?;
        let program = Arc::new(program);
        programs.push((shared.clone(), program.clone()));
        Ok(Some(program))
    }

    /// Returns the cost of scoring a batch.
    ///
    /// # Errors
    /// Returns an error if a result does not have one row for each row of a batch.
    pub(crate) fn cost(&self, batch: &Batch) -> Result<Cost> {
        let list_len = batch.sparse.iter().enumerate().map(|(at, column)| {
            let rows = if batch.shared.has_sparse(at) { 1 } else { batch.rows };
            column.keys.len().div_ceil(rows.max(1))
        });
        let sizes = Sizes { rows: batch.rows, list_len: list_len.collect() };
        Ok(match self.of(&batch.shared)? {
            Some(program) => program.cost(&sizes),
            None => self.plan()?.cost(&sizes),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use zillion_device::Workers;
    use zillion_feature::random::{combine, unit_f32};
    use zillion_feature::{
        FeatureKey, KeyColumn, LookupPlan, PlanScratch, Pooling, RowBuffer, Schema,
    };
    use zillion_nn::zoo::LOGITS;
    use zillion_nn::{ColumnInput, GraphBuilder, GraphInputs, Mode, Params, TableInput};
    use zillion_rows::{LookupReport, RowSource, TableLayout};

    use super::*;
    use crate::scorer::Scorer;

    const FIELDS: usize = 4;

    /// A source in which each key has its own row.
    struct KeyRows;

    impl RowSource for KeyRows {
        fn tables(&self) -> &[TableLayout] {
            &[]
        }

        fn lookup(
            &mut self,
            plan: &LookupPlan,
            rows: &mut RowBuffer,
        ) -> zillion_rows::Result<LookupReport> {
            rows.reshape(plan.tables.iter().map(|table| (table.keys.len(), 4)));
            for (table, rows) in plan.tables.iter().zip(&mut rows.tables) {
                for (at, value) in rows.values.iter_mut().enumerate() {
                    let number = combine(table.keys[at / 4].0, at as u64 % 4);
                    *value = unit_f32((number >> 32) as u32) - 0.5;
                }
            }
            Ok(LookupReport { missing: vec![0; plan.tables.len()] })
        }
    }

    fn schema() -> Schema {
        let id = r#"{"kind": "id", "table": "ids"}"#;
        let job = format!(
            r#"{{"features": {{"a": {id}, "b": {id}, "c": {id},
            "list": {{"kind": "ids", "table": "ids"}}, "x": {{"kind": "numeric"}}}},
            "labels": {{"y": {{}}}}}}"#
        );
        Schema::from_job(&serde_json::from_str(&job).unwrap()).unwrap()
    }

    /// Returns a graph in which the list is pooled, and each of its values is also weighted by the
    /// first id.
    fn graph() -> Graph {
        let column = |name: &str| ColumnInput { name: name.into(), table: 0 };
        let inputs = GraphInputs {
            tables: vec![TableInput { name: "ids".into(), stride: 4 }],
            columns: ["a", "b", "c", "list"].map(column).to_vec(),
            numeric: vec!["x".into()],
            ..GraphInputs::default()
        };
        let mut b = GraphBuilder::new(inputs, Mode::Infer);
        let mut parts = Vec::new();
        for at in 0..FIELDS {
            parts.push(b.gather(&format!("vector.{at}"), at, 0, 4, Pooling::Mean).unwrap());
        }
        let values = b.gather_values("values", 3, 0, 4).unwrap();
        let first = b.repeat("first", parts[0], 3).unwrap();
        let weighted = b.mul("weighted", first, values).unwrap();
        parts.push(b.segment_sum("attention", weighted).unwrap());
        parts.push(b.numeric("x", &[0]).unwrap());
        let deep = b.concat("deep", &parts).unwrap();
        let hidden = b.linear("hidden", deep, 8).unwrap();
        let hidden = b.relu("active", hidden).unwrap();
        let logits = b.linear("last", hidden, 1).unwrap();
        b.output(LOGITS, logits).unwrap();
        b.finish()
    }

    fn batch(rows: usize, shared: SharedColumns) -> Batch {
        let rows_of = |at: usize| if shared.has_sparse(at) { 1 } else { rows as u64 };
        let ids =
            |at: usize| (0..rows_of(at)).map(move |row| FeatureKey::from_u64(row * 7 + at as u64));
        let mut sparse: Vec<KeyColumn> =
            (0..3).map(|at| KeyColumn::single(ids(at).collect())).collect();
        let lists: Vec<FeatureKey> = ids(3).flat_map(|id| [id, FeatureKey(9)]).collect();
        sparse.push(KeyColumn::ragged((0..=rows_of(3) as i32).map(|row| 2 * row).collect(), lists));
        let numeric = vec![(0..rows).map(|row| row as f32 / 8.0).collect()];
        Batch { rows, shared, sparse, numeric, ..Batch::empty(&schema()) }
    }

    fn logits(scorer: &mut Scorer, batch: &Batch, params: &Params) -> Vec<u32> {
        let plan = LookupPlan::build(batch, &schema(), &mut PlanScratch::default());
        let scores = scorer.score(batch, &plan, &mut KeyRows, params).unwrap();
        let bits = scores.outputs[0].iter().map(|x| x.to_bits()).collect();
        assert!(scorer.executor().named_output(LOGITS).is_some());
        bits
    }

    #[test]
    fn every_set_scores_the_same_and_only_some_have_programs() {
        let graph = graph();
        let params = Params::init(&graph.params, 1);
        let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
        let scorer = || Scorer::new(&graph, Settings::default(), workers.clone()).unwrap();
        let (mut plain, mut scorer) = (scorer(), scorer());
        let sets = (1..1usize << FIELDS)
            .map(|set| SharedColumns::new((0..FIELDS).filter(|at| set >> at & 1 == 1), []));
        for _ in 0..2 {
            for shared in sets.clone() {
                let shared = batch(300, shared);
                let copied = shared.clone().expand();
                let expected = logits(&mut plain, &copied, &params);
                assert_eq!(logits(&mut scorer, &shared, &params), expected, "{:?}", shared.shared);
            }
            assert_eq!(scorer.sets(), if matmul::can_resume() { MOST_SETS } else { 0 });
            assert_eq!(plain.sets(), 0);
            scorer.release();
            assert_eq!((scorer.sets(), scorer.buffer_bytes()), (0, 0));
        }
    }

    #[test]
    fn the_cost_counts_shared_work_once() {
        let id = graph().output(LOGITS).unwrap();
        let programs = Programs::new(graph(), vec![id], Settings::default());
        let shared = batch(100, SharedColumns::new([0, 1], []));
        let (once, copied) =
            (programs.cost(&shared).unwrap(), programs.cost(&shared.expand()).unwrap());
        if matmul::can_resume() {
            assert_eq!(copied.flops - once.flops, 99 * 2 * 8 * 8);
        }
    }
}
