//! Tests of rows that begin narrow and grow after a number of pushes. They are compared with a
//! `BTreeMap`, restored on other numbers of shards, and read from layers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use zillion_device::{Files, Workers};
use zillion_feature::{FeatureKey, RowBuffer, TableId};

use crate::TableSet;
use crate::shape::TableShape;
use crate::testing::LiveRows;
use crate::testing::fixtures::*;
use zillion_rows::conformance::plan_of;
use zillion_rows::layer::{
    Layer, LayerManifest, LayerSource, Unthrottled, layer_of_checkpoint, merge_layers, verify_layer,
};
use zillion_rows::{
    Dtype, Eviction, OptimizerSpec, PartSource, RowSource, TableParts, TableSpec, Unknown,
};

const LR: f32 = 0.25;
const EPS: f32 = 1e-8;
const FIRST: f32 = 0.5;

/// The floats of a narrow row: the linear weight, the first float of a vector, or some floats of
/// the vector and the linear weight.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Linear,
    First,
    Both,
}

impl Kind {
    fn spec(self, dtype: Dtype, at: u32, steps: u64) -> TableSpec {
        let adagrad = OptimizerSpec::Adagrad { lr: LR, initial_accumulator: FIRST, eps: EPS };
        let (dim, from) = match self {
            Self::Linear | Self::First => (6, None),
            Self::Both => (6, Some(4)),
        };
        let mut segments = vec![segment("v", dim, adagrad, 0.0)];
        if !matches!(self, Self::First) {
            segments.push(segment("linear", 1, adagrad, 0.0));
        }
        let eviction = Eviction::Unseen { steps };
        let spec = TableSpec { dtype, eviction, ..table("t", false, segments) };
        growing(at, from, TableSpec { unknown: Unknown::Zero, ..spec })
    }

    /// Returns the positions, in a full row, of the floats that a narrow row has.
    fn narrow(self) -> Vec<usize> {
        match self {
            Self::Linear => vec![6],
            Self::First => vec![0],
            Self::Both => vec![0, 1, 2, 3, 6],
        }
    }
}

/// A row of the model. It has all floats even while the row of the table is narrow.
#[derive(Clone, Debug)]
struct Row {
    weights: Vec<f32>,
    sums: Vec<f32>,
    count: u32,
    last_step: u64,
    is_narrow: bool,
}

#[derive(Clone, Debug)]
enum Act {
    Step(Vec<FeatureKey>),
    Publish,
    /// A checkpoint and a restart from it on this number of shards.
    Restart(usize),
}

fn any_key() -> impl Strategy<Value = FeatureKey> {
    prop_oneof![
        Just(FeatureKey(0)),
        Just(FeatureKey(u64::MAX)),
        (0u64..30).prop_map(key),
        (0u64..12).prop_map(|low| FeatureKey(9 << 52 | low)),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => prop::collection::vec(any_key(), 0..30).prop_map(Act::Step),
        1 => Just(Act::Publish),
        1 => (1usize..6).prop_map(Act::Restart),
    ]
}

/// The rows of a set by key. Each row has its stored floats, their optimizer state, the number of
/// pushes, and whether the row is narrow.
type Live = BTreeMap<FeatureKey, (Vec<f32>, Vec<f32>, u32, bool)>;

/// A set of tables and its model, which go through the same history.
struct Twin {
    spec: TableSpec,
    shape: TableShape,
    narrow: Vec<usize>,
    set: TableSet,
    rows: BTreeMap<FeatureKey, Row>,
    step: u64,
    narrow_gradients: u64,
    grown: u64,
}

impl Twin {
    fn new(kind: Kind, spec: TableSpec, n: usize) -> Self {
        Self {
            shape: TableShape::new(spec.clone()).unwrap(),
            narrow: kind.narrow(),
            set: TableSet::new(vec![spec.clone()], shards(n)).unwrap(),
            spec,
            rows: BTreeMap::new(),
            step: 0,
            narrow_gradients: 0,
            grown: 0,
        }
    }

    fn initial(&self, key: FeatureKey) -> Vec<f32> {
        let mut row = vec![f32::NAN; self.shape.stride()];
        self.shape.fill_initial(key, &mut row);
        row.truncate(self.shape.width);
        row
    }

    /// Runs a step on the set and on the model.
    fn step(&mut self, workers: &Workers, keys: &[FeatureKey]) -> Result<(), TestCaseError> {
        self.step += 1;
        let step = self.step;
        let plan = plan_of(&[keys.to_vec()]);
        let keys = &plan.tables[0].keys;
        let mut pulled = RowBuffer::default();
        self.set.pull(workers, &plan, true, &mut pulled).unwrap();
        for (i, key) in keys.iter().enumerate() {
            let wanted =
                self.rows.get(key).map_or_else(|| self.initial(*key), |r| r.weights.clone());
            prop_assert_eq!(&pulled.tables[0].row(i)[..self.shape.width], &wanted[..]);
            let count = self.rows.get(key).map_or(0, |row| row.count);
            prop_assert_eq!(pulled.tables[0].counts.as_ref().unwrap()[i], count);
        }
        let raw = gradients(&self.set, &plan, step);
        let squares: f64 = keys
            .iter()
            .enumerate()
            .map(|(i, key)| {
                let is_full = self.rows.get(key).is_some_and(|row| !row.is_narrow);
                let row = raw.tables[0].row(i);
                let has = |unit: &usize| is_full || self.narrow.contains(unit);
                let units = (0..self.shape.width).filter(has);
                units.map(|unit| f64::from(row[unit]).powi(2)).sum::<f64>()
            })
            .sum();
        let now = update(step, 1.0);
        let norm = self.set.grad_sq_norm(workers, &plan, &raw, now.step).unwrap();
        prop_assert!((norm - squares).abs() <= 1e-9 * squares, "{} and {}", norm, squares);
        self.set.push(workers, &plan, &raw, now).unwrap();
        for (i, &key) in keys.iter().enumerate() {
            self.push(key, raw.tables[0].row(i), LR * now.rates.scale);
        }
        self.set.sweep(workers, now).unwrap();
        // The exact step of an eviction is tested elsewhere; this checks that the row was due.
        let Eviction::Unseen { steps } = self.spec.eviction else { return Ok(()) };
        let live = self.live();
        for (key, row) in &self.rows {
            prop_assert!(live.contains_key(key) || row.last_step + steps < step);
        }
        self.rows.retain(|key, _| live.contains_key(key));
        self.compare(&live)
    }

    /// Applies a push to a row of the model.
    fn push(&mut self, key: FeatureKey, gradient: &[f32], rate: f32) {
        let first = Row {
            weights: self.initial(key),
            sums: vec![FIRST; self.shape.width],
            count: 0,
            last_step: 0,
            is_narrow: true,
        };
        let row = self.rows.entry(key).or_insert(first);
        let units: Vec<usize> = match row.is_narrow {
            true => self.narrow.clone(),
            false => (0..self.shape.width).collect(),
        };
        self.narrow_gradients += u64::from(row.is_narrow);
        for (place, unit) in units.into_iter().enumerate() {
            let g = gradient[unit];
            row.sums[unit] += g * g;
            let weight = row.weights[unit] - rate * g / (row.sums[unit].sqrt() + EPS);
            let (dtype, seed) = (self.spec.dtype, self.spec.seed);
            row.weights[unit] = dtype.round_pushed(seed, key.0, self.step, place, weight);
        }
        row.count += 1;
        row.last_step = self.step;
        if row.is_narrow && row.count >= self.spec.grow.unwrap().at {
            row.is_narrow = false;
            self.grown += 1;
        }
    }

    fn live(&self) -> Live {
        let mut rows = BTreeMap::new();
        for shard in &self.set.shards {
            for slot in shard.slots() {
                let mut narrow = 0;
                let add = |key, row: zillion_rows::row::StoredRow<'_>| {
                    let weights = row.weights.to_floats().into_owned();
                    narrow += usize::from(row.is_narrow);
                    rows.insert(key, (weights, row.state.to_vec(), row.meta.count, row.is_narrow));
                };
                shard.tables[0].for_each_in_slot(slot, add).unwrap();
                assert_eq!(narrow, shard.tables[0].slot_narrow_rows(slot));
            }
        }
        rows
    }

    fn compare(&self, live: &Live) -> Result<(), TestCaseError> {
        prop_assert_eq!(live.len(), self.rows.len());
        let all: Vec<usize> = (0..self.shape.width).collect();
        for ((key, row), (other, wanted)) in live.iter().zip(&self.rows) {
            prop_assert_eq!(key, other);
            let units = if wanted.is_narrow { &self.narrow } else { &all };
            let of = |floats: &[f32]| units.iter().map(|&unit| floats[unit]).collect::<Vec<_>>();
            let wanted = (of(&wanted.weights), of(&wanted.sums), wanted.count, wanted.is_narrow);
            prop_assert_eq!(row, &wanted);
        }
        let statistics = &self.set.statistics()[0];
        let narrow = self.rows.values().filter(|row| row.is_narrow).count() as u64;
        prop_assert_eq!(
            (statistics.rows, statistics.narrow_rows),
            (self.rows.len() as u64, narrow)
        );
        prop_assert_eq!(statistics.counters.narrow_gradients, self.narrow_gradients);
        prop_assert_eq!(statistics.counters.grown, self.grown);
        Ok(())
    }

    /// Checks that a layer has the same rows as the table.
    fn check_layers(
        &self,
        folder: &Path,
        workers: &Arc<Workers>,
        manifests: &[&LayerManifest],
    ) -> Result<(), TestCaseError> {
        let layouts = self.set.layouts();
        let open = |manifest: &&LayerManifest| {
            verify_layer(folder, manifest, layouts, &mut Unthrottled).unwrap();
            Layer::open(folder, manifest, layouts).unwrap()
        };
        let layers = manifests.iter().map(open).collect();
        let specs = std::slice::from_ref(&self.spec);
        let mut source = LayerSource::new(specs, layers, workers.clone()).unwrap();
        check(&self.rows, &mut source)?;
        let whole = source.rows_of(0).map(|(key, row)| (key, source.whole(0, key, row).to_vec()));
        let wanted = self.rows.iter().map(|(&key, row)| (key, row.weights.clone()));
        prop_assert_eq!(whole.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
        Ok(())
    }
}

/// Checks that every way to read the rows for evaluation gives the expected rows.
fn check(
    rows: &BTreeMap<FeatureKey, Row>,
    source: &mut dyn RowSource,
) -> Result<(), TestCaseError> {
    let width = source.tables()[0].width();
    let rows = rows.iter().map(|(&key, row)| (key, row.weights.clone()));
    let absent = vec![(1000..1010).map(key).collect()];
    let zero = |_: TableId, _: FeatureKey| vec![0.0; width];
    zillion_rows::conformance::check(source, &vec![rows.collect()], &absent, &zero)
        .map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    #[test]
    fn rows_grow_when_they_have_been_pushed_often_enough(
        kind in prop::sample::select(vec![Kind::Linear, Kind::First, Kind::Both]),
        dtype in prop::sample::select(vec![Dtype::F32, Dtype::Bf16]),
        at in 2u32..5,
        steps in 2u64..9,
        n in 1usize..6,
        acts in prop::collection::vec(act(), 1..24),
    ) {
        let workers = Arc::new(workers(2));
        let spec = kind.spec(dtype, at, steps);
        let mut twin = Twin::new(kind, spec.clone(), n);
        let folder = tempfile::tempdir().unwrap();
        let (files, pace) = (Files::new(), &mut Unthrottled);
        twin.set.track_changes(&workers, 3).unwrap();
        let mut published: Option<(u32, LayerManifest)> = None;
        for act in acts.into_iter().chain([Act::Publish, Act::Restart(n)]) {
            match act {
                Act::Step(keys) => twin.step(&workers, &keys)?,
                Act::Publish => {
                    check(&twin.rows, &mut LiveRows::new(&mut twin.set, &workers))?;
                    let base = twin.set.write_base(&workers, &files, folder.path(), pace).unwrap();
                    twin.check_layers(folder.path(), &workers, &[&base])?;
                    if let Some((since, before)) = published.take() {
                        let layouts = twin.set.layouts();
                        let delta = twin.set.write_delta(&workers, since, &files, folder.path(), pace);
                        let delta = delta.unwrap().expect("changes are known since the last one");
                        twin.check_layers(folder.path(), &workers, &[&before, &delta])?;
                        let [before, delta] = [&before, &delta]
                            .map(|manifest| Layer::open(folder.path(), manifest, layouts).unwrap());
                        let merged = merge_layers(
                            &files, folder.path(), layouts, &[&before, &delta], true, pace,
                        ).unwrap();
                        twin.check_layers(folder.path(), &workers, &[&merged])?;
                    }
                    published = Some((twin.set.advance_dirty_epoch(), base));
                }
                Act::Restart(other) => {
                    let folder = tempfile::tempdir().unwrap();
                    let (parts, bytes) = checkpoint(&twin.set, &workers, folder.path());
                    let narrow = twin.rows.values().filter(|row| row.is_narrow).count() as u64;
                    prop_assert_eq!(parts[0].narrow.as_ref().map(|n| n.rows), Some(narrow));
                    prop_assert_eq!(parts[0].rows, twin.rows.len() as u64);
                    let specs = vec![spec.clone()];
                    let mut stored =
                        PartSource::open(&workers, folder.path(), specs.clone(), &parts).unwrap();
                    check(&twin.rows, &mut stored)?;
                    let base = twin.set.write_base(&workers, &files, folder.path(), pace).unwrap();
                    let of_checkpoint = layer_of_checkpoint(
                        &workers, folder.path(), &specs, &parts, &files, folder.path(), pace,
                    ).unwrap();
                    prop_assert_eq!(base, of_checkpoint);
                    let mut restored = TableSet::new(specs, shards(other)).unwrap();
                    restored.track_changes(&workers, 3).unwrap();
                    restored.restore(&workers, folder.path(), &parts).unwrap();
                    let again = tempfile::tempdir().unwrap();
                    prop_assert!(checkpoint(&restored, &workers, again.path()) == (parts, bytes));
                    twin.set = restored;
                    (twin.narrow_gradients, twin.grown, published) = (0, 0, None);
                    twin.compare(&twin.live())?;
                }
            }
        }
    }
}

/// Returns a set with full and narrow rows. The ids below 20 are pushed twice, and the other ids
/// below 60 once.
fn mixed(workers: &Workers, spec: TableSpec, n: usize) -> TableSet {
    let mut set = TableSet::new(vec![spec], shards(n)).unwrap();
    for (step, ids) in [(1, 0..60), (2, 0..20)] {
        let plan = plan_of(&[ids.map(key).collect()]);
        let raw = gradients(&set, &plan, step);
        set.push(workers, &plan, &raw, update(step, 1.0)).unwrap();
    }
    set
}

#[test]
fn a_narrow_row_takes_less_than_half() {
    let workers = workers(1);
    let rowwise = OptimizerSpec::rowwise_adagrad(0.02);
    let segments = vec![segment("vector", 16, rowwise, 0.0), segment("linear", 1, rowwise, 0.0)];
    let full = table("ids", false, segments);
    let rows = 200_000;
    let bytes = |spec: TableSpec| {
        let mut set = TableSet::new(vec![spec], shards(1)).unwrap();
        let plan = plan_of(&[(0..rows).map(key).collect()]);
        let raw = gradients(&set, &plan, 1);
        set.push(&workers, &plan, &raw, update(1, 1.0)).unwrap();
        set.statistics().remove(0)
    };
    let (all, narrow) = (bytes(full.clone()), bytes(growing(9, None, full)));
    assert_eq!((all.narrow_rows, narrow.narrow_rows), (0, rows));
    // A full row has 17 floats and five words of state and metadata, in units of 16 bytes; a narrow
    // row has one and four.
    assert_eq!((all.payload_bytes, all.state_bytes), (80 * rows, 32 * rows));
    assert_eq!((narrow.payload_bytes, narrow.state_bytes), (16 * rows, 16 * rows));
    assert_eq!(all.index_bytes, narrow.index_bytes);
    let (all, narrow) = (all.total_bytes() / rows, narrow.total_bytes() / rows);
    assert!(narrow * 2 < all, "{narrow} bytes a row against {all}");
}

#[test]
fn growing_changes_no_answer_and_keeps_what_was_learned() {
    let workers = workers(1);
    let spec = Kind::Both.spec(Dtype::F32, 2, 1 << 20);
    let mut set = mixed(&workers, spec, 3);
    let row = |set: &mut TableSet, id: u64| {
        let mut rows = RowBuffer::default();
        set.pull(&workers, &plan_of(&[vec![key(id)]]), false, &mut rows).unwrap();
        rows.tables[0].row(0).to_vec()
    };
    let statistics = set.statistics().remove(0);
    assert_eq!((statistics.rows, statistics.narrow_rows), (60, 40));
    assert_eq!((statistics.counters.narrow_gradients, statistics.counters.grown), (80, 20));
    // The push that makes a row full changes the floats that the row had, and not the others.
    let initial = row(&mut set, 1 << 30);
    let (narrow, grown) = (row(&mut set, 30), row(&mut set, 3));
    let shape = TableShape::new(set.specs().next().unwrap().clone()).unwrap();
    for (id, row) in [(30, &narrow), (3, &grown)] {
        let mut first = vec![0.0; initial.len()];
        shape.fill_initial(key(id), &mut first);
        assert!(row[..4].iter().zip(&first).all(|(a, b)| a != b) && row[6] != first[6]);
        assert_eq!(row[4..6], first[4..6], "id {id}");
    }
}

#[test]
fn memory_of_rows_that_grew_or_went_is_given_back() {
    let workers = workers(1);
    let mut set = TableSet::new(vec![Kind::Linear.spec(Dtype::F32, 2, 3)], shards(1)).unwrap();
    let push = |set: &mut TableSet, step: u64, ids: std::ops::Range<u64>| {
        let plan = plan_of(&[ids.map(key).collect()]);
        let raw = gradients(set, &plan, step);
        set.push(&workers, &plan, &raw, update(step, 1.0)).unwrap();
        set.sweep(&workers, update(step, 1.0)).unwrap();
        set.statistics().remove(0)
    };
    let ids = 400_000;
    let narrow = push(&mut set, 1, 0..ids);
    let full = push(&mut set, 2, 0..ids);
    assert_eq!((narrow.narrow_rows, full.narrow_rows, full.counters.grown), (ids, 0, ids));
    assert!(full.slack_bytes < full.total_bytes() / 10, "{full:?}");
    // Half of the next rows are evicted again, from all places of the slabs.
    push(&mut set, 3, 0..ids);
    let both = push(&mut set, 4, ids..2 * ids);
    assert_eq!((both.rows, both.narrow_rows), (2 * ids, ids));
    (5..20).for_each(|step| drop(push(&mut set, step, 0..10)));
    let left = push(&mut set, 20, 0..10);
    assert_eq!((left.rows, left.narrow_rows), (10, 0));
    assert!(left.payload_bytes + left.state_bytes + left.slack_bytes < 16 << 20, "{left:?}");
}

#[test]
fn what_cannot_grow_is_refused_by_its_key() {
    let sgd = OptimizerSpec::Sgd { lr: 0.1 };
    let vector = || vec![segment("v", 4, sgd, 0.0)];
    let problem = |spec: TableSpec| TableSet::new(vec![spec], shards(1)).unwrap_err().to_string();
    let one = table("t", false, vec![segment("linear", 1, sgd, 0.0)]);
    for (spec, named) in [
        (growing(5, None, table("t", true, vector())), "tables.t.grow: "),
        (growing(0, None, table("t", false, vector())), "tables.t.grow.at: "),
        (growing(u32::MAX, None, table("t", false, vector())), "tables.t.grow.at: "),
        (growing(5, None, one), "tables.t.grow: "),
        (growing(5, Some(4), table("t", false, vector())), "tables.t.grow.from: "),
        (growing(5, Some(0), table("t", false, vector())), "tables.t.grow.from: "),
    ] {
        let said = problem(spec);
        assert!(said.contains(named.trim_end_matches(": ")), "{said}");
    }
    let spills = growing(5, None, table("t", false, vector())).check_spill();
    assert!(spills.unwrap_err().to_string().contains("begin narrow"));
}

#[test]
fn checkpoints_of_other_widths_are_refused() {
    let workers = workers(2);
    let spec = Kind::Linear.spec(Dtype::F32, 2, 1 << 20);
    let folder = tempfile::tempdir().unwrap();
    let set = mixed(&workers, spec.clone(), 2);
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    let restore = |spec: TableSpec, parts: &[TableParts]| {
        let mut set = TableSet::new(vec![spec], shards(3)).unwrap();
        set.restore(&workers, folder.path(), parts).map_err(|e| e.to_string())
    };
    let said = restore(TableSpec { grow: None, ..spec.clone() }, &parts).unwrap_err();
    assert!(said.contains("narrow rows") && said.contains("table `t`"), "{said}");
    let without = vec![TableParts { narrow: None, rows: 20, ..parts[0].clone() }];
    assert!(restore(spec.clone(), &without).unwrap_err().contains("only full rows"));
    let wider = growing(2, Some(2), TableSpec { grow: None, ..spec.clone() });
    assert!(restore(wider, &parts).unwrap_err().contains("column `weights`"));
    // The parts have a key with rows of both widths.
    let mut doubled = parts.clone();
    let narrow = doubled[0].narrow.as_ref().unwrap().rows;
    assert_eq!(narrow, 40);
    let other = tempfile::tempdir().unwrap();
    let mut again = mixed(&workers, spec.clone(), 2);
    let plan = plan_of(&[(0..60).map(key).collect()]);
    let raw = gradients(&again, &plan, 3);
    again.push(&workers, &plan, &raw, update(3, 1.0)).unwrap();
    let (full, _) = checkpoint(&again, &workers, other.path());
    for part in &full[0].parts {
        std::fs::copy(other.path().join(&part.file), folder.path().join(&part.file)).unwrap();
    }
    doubled[0].parts = full[0].parts.clone();
    doubled[0].rows = 60 + narrow;
    let said = restore(spec.clone(), &doubled).unwrap_err();
    assert!(said.contains("a full row and a narrow row"), "{said}");
    // The number of pushes at which rows grow does not change the widths.
    let folder = tempfile::tempdir().unwrap();
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    let mut later = TableSet::new(vec![growing(9, None, spec.clone())], shards(1)).unwrap();
    later.restore(&workers, folder.path(), &parts).unwrap();
    assert_eq!(later.statistics()[0].narrow_rows, 40);
    // A row that has enough pushes by another setting grows at its next push.
    let rare = mixed(&workers, growing(9, None, spec.clone()), 2);
    let folder = tempfile::tempdir().unwrap();
    let (parts, _) = checkpoint(&rare, &workers, folder.path());
    let mut sooner = TableSet::new(vec![spec], shards(1)).unwrap();
    sooner.restore(&workers, folder.path(), &parts).unwrap();
    assert_eq!(sooner.statistics()[0].narrow_rows, 60);
    sooner.push(&workers, &plan, &raw, update(3, 1.0)).unwrap();
    assert_eq!(sooner.statistics()[0].narrow_rows, 0);
}
