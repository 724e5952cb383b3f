//! The programs of a model: one for batches in which all columns have all rows, and one for each
//! set of columns that have one row for the whole batch.
//!
//! A client chooses which inputs it gives once for all candidates. Usually, all requests for a
//! model make the same choice. The number of programs is limited, because a program takes memory
//! and because planning takes longer than scoring a small request. A new set takes the place of
//! the oldest one, at most once in [`PAUSE`]. So a client that sends many sets neither ends the
//! sharing for the others nor makes the server plan all the time. A batch whose set has no program
//! is scored by the plain program, with its columns copied to all rows. Nobody waits for a plan.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use zillion_device::matmul;
use zillion_feature::{Batch, SharedColumns};
use zillion_nn::{Cost, Graph, NodeId, Program, Settings, Sizes};

use crate::error::Result;

/// The largest number of sets of shared columns that have a program.
pub(crate) const MOST_SETS: usize = 8;
/// The minimum time between two replacements of a program.
const PAUSE: Duration = Duration::from_secs(1);

/// The programs of a model, which all scorers of the model use.
#[derive(Debug)]
pub(crate) struct Programs {
    graph: Graph,
    /// The nodes whose values the programs keep.
    results: Vec<NodeId>,
    settings: Settings,
    shared: Mutex<SharedPrograms>,
}

/// The programs that were planned for sets of shared columns.
#[derive(Debug, Default)]
struct SharedPrograms {
    /// The sets with their programs. The oldest program comes first.
    planned: Vec<(SharedColumns, Arc<Program>)>,
    /// Whether a thread plans a program now.
    is_planning: bool,
    /// The time of the last plan.
    planned_at: Option<Instant>,
}

impl SharedPrograms {
    /// Returns whether a new set may get a program at this time.
    fn may_plan(&self, now: Instant) -> bool {
        let is_full = self.planned.len() >= MOST_SETS;
        let is_soon = self.planned_at.is_some_and(|before| now < before + PAUSE);
        !(self.is_planning || (is_full && is_soon))
    }
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
    /// shared, a new program cannot be planned now, or products of one row are rounded differently
    /// on this machine.
    ///
    /// # Errors
    /// Returns an error if a result does not have one row for each row of a batch.
    pub(crate) fn of(&self, shared: &SharedColumns) -> Result<Option<Arc<Program>>> {
        if shared.is_empty() || !matmul::can_resume() {
            return Ok(None);
        }
        let lock = || self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        {
            let mut programs = lock();
            if let Some((_, known)) = programs.planned.iter().find(|(of, _)| of == shared) {
                return Ok(Some(known.clone()));
            }
            if !programs.may_plan(now) {
                return Ok(None);
            }
            programs.is_planning = true;
        }
        let planning = Planning { shared: &self.shared, began: now };
        let program = Program::infer_shared(&self.graph, &self.results, self.settings, shared);
        drop(planning);
        let program = Arc::new(program?);
        let mut programs = lock();
        if programs.planned.len() >= MOST_SETS {
            programs.planned.remove(0);
        }
        programs.planned.push((shared.clone(), program.clone()));
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

/// The right of one thread to plan, which ends when the value is dropped, even by a panic.
struct Planning<'a> {
    shared: &'a Mutex<SharedPrograms>,
    began: Instant,
}

impl Drop for Planning<'_> {
    fn drop(&mut self) {
        let mut programs = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        programs.is_planning = false;
        programs.planned_at = Some(self.began);
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
        let node = graph().output(LOGITS).unwrap();
        assert!(scorer.output(node).is_some());
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
    fn a_new_set_takes_the_place_of_the_oldest_one_after_a_pause() {
        if !matmul::can_resume() {
            return;
        }
        let id = graph().output(LOGITS).unwrap();
        let programs = Programs::new(graph(), vec![id], Settings::default());
        let set =
            |bits: usize| SharedColumns::new((0..FIELDS).filter(|at| bits >> at & 1 == 1), []);
        for bits in 1..=MOST_SETS {
            assert!(programs.of(&set(bits)).unwrap().is_some(), "{bits}");
        }
        let next = MOST_SETS + 1;
        assert!(programs.of(&set(next)).unwrap().is_none(), "the last plan was just made");
        programs.shared.lock().unwrap().planned_at = Some(Instant::now() - PAUSE);
        assert!(programs.of(&set(next)).unwrap().is_some());
        let planned = programs.shared.lock().unwrap();
        let known = |bits: usize| planned.planned.iter().any(|(of, _)| *of == set(bits));
        assert!(!known(1) && (2..=next).all(known));
        assert_eq!(planned.planned.len(), MOST_SETS);
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
