//! Tests of admission and eviction. They compare tables with a `BTreeMap`, restart on other numbers
//! of shards, and measure the memory that a stream of always new keys takes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zillion_feature::{FeatureKey, RowBuffer, Step};

use crate::set::tests::stored;
use crate::testing::fixtures::*;
use crate::{Error, TableSet};
use zillion_rows::Candidate;
use zillion_rows::conformance::plan_of;
use zillion_rows::{Admission, Eviction, OptimizerSpec, TableSpec};

const LR: f32 = 0.25;
const DIM: usize = 5;

fn spec(admission: Admission, eviction: Eviction) -> TableSpec {
    let rowwise = OptimizerSpec::RowwiseAdagrad { lr: LR, initial_accumulator: 0.5, eps: 1e-30 };
    let sgd = OptimizerSpec::Sgd { lr: LR };
    let segments = vec![segment("v", DIM, sgd, 0.0), segment("linear", 1, rowwise, 0.0)];
    TableSpec { admission, eviction, ..table("ids", false, segments) }
}

#[derive(Clone, Debug)]
enum Action {
    /// A step with these keys and the positions of the gradients that are not finite. A key can
    /// occur several times.
    Step(Vec<FeatureKey>, Vec<usize>),
    /// A number of steps that are skipped.
    Skip(u64),
    /// A checkpoint and a restart from it on this number of shards.
    Restart(usize),
}

fn any_key() -> impl Strategy<Value = FeatureKey> {
    prop_oneof![
        Just(FeatureKey(0)),
        Just(FeatureKey(u64::MAX)),
        (0u64..40).prop_map(key),
        (0u64..20).prop_map(|low| FeatureKey(9 << 52 | low)),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let poisoned = prop::collection::vec(0usize..40, 0..2);
    prop_oneof![
        8 => (prop::collection::vec(any_key(), 0..40), poisoned)
            .prop_map(|(keys, poisoned)| Action::Step(keys, poisoned)),
        1 => (1u64..5).prop_map(Action::Skip),
        1 => (1usize..9).prop_map(Action::Restart),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    weights: Vec<f32>,
    accumulator: f32,
    count: u32,
    last_step: u32,
}

#[derive(Default)]
struct Model {
    rows: BTreeMap<FeatureKey, Row>,
    candidates: BTreeMap<FeatureKey, Candidate>,
    counters: crate::Counters,
}

impl Model {
    /// Does one push and the eviction after it in the model, directly from the definitions.
    fn step(&mut self, spec: &TableSpec, step: u32, keys: &[(FeatureKey, u32)], raw: &RowBuffer) {
        for (i, &(key, times)) in keys.iter().enumerate() {
            if !self.rows.contains_key(&key) {
                if let Admission::Count { at_least } = spec.admission {
                    let count = self.candidates.remove(&key).map_or(0, |c| c.count) + times;
                    if count < at_least {
                        self.counters.waiting += 1;
                        self.candidates.insert(key, Candidate { count, last_step: step });
                        continue;
                    }
                    self.counters.admitted += 1;
                }
                self.counters.created += 1;
                let (weights, accumulator) = (initial(spec, key), 0.5);
                self.rows.insert(key, Row { weights, accumulator, count: 0, last_step: 0 });
            }
            let row = self.rows.get_mut(&key).unwrap();
            row.count += 1;
            row.last_step = step;
            let gradient = &raw.tables[0].row(i)[..DIM + 1];
            if !gradient.iter().all(|x| x.is_finite()) {
                self.counters.nonfinite += 1;
                continue;
            }
            self.counters.pushed += 1;
            for (w, g) in row.weights.iter_mut().zip(gradient).take(DIM) {
                *w -= LR * g;
            }
            let g = gradient[DIM];
            row.accumulator += g * g;
            row.weights[DIM] -= LR / row.accumulator.sqrt() * g;
        }
        let Eviction::Unseen { steps } = spec.eviction else { return };
        let mut period = 4096;
        while period > steps {
            period /= 2;
        }
        let stays = |key: &FeatureKey, last: u32| {
            key.slot() as u64 % period != u64::from(step) % period
                || u64::from(step - last) <= steps
        };
        let before = (self.rows.len(), self.candidates.len());
        self.rows.retain(|key, row| stays(key, row.last_step));
        self.candidates.retain(|key, c| stays(key, c.last_step));
        self.counters.evicted += (before.0 - self.rows.len()) as u64;
        self.counters.lapsed += (before.1 - self.candidates.len()) as u64;
    }
}

fn initial(spec: &TableSpec, key: FeatureKey) -> Vec<f32> {
    let shape = crate::shape::TableShape::new(spec.clone()).unwrap();
    let mut row = vec![0.0; 8];
    shape.fill_initial(key, &mut row);
    row.truncate(DIM + 1);
    row
}

/// Returns the content of a set that has one table.
fn contents(set: &TableSet) -> (BTreeMap<FeatureKey, Row>, BTreeMap<FeatureKey, Candidate>) {
    stored(set, |row| Row {
        weights: row.weights.to_floats().into_owned(),
        accumulator: row.state[0],
        count: row.meta.count,
        last_step: row.meta.last_step,
    })
}

fn admission() -> impl Strategy<Value = Admission> {
    prop_oneof![
        Just(Admission::All),
        (1u32..7).prop_map(|at_least| Admission::Count { at_least }),
        Just(Admission::Count { at_least: 4096 }),
    ]
}

fn eviction() -> impl Strategy<Value = Eviction> {
    prop_oneof![
        Just(Eviction::Never),
        (1u64..20).prop_map(|steps| Eviction::Unseen { steps }),
        Just(Eviction::Unseen { steps: u64::MAX }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn keys_live_and_die_as_in_a_map(
        admission in admission(),
        eviction in eviction(),
        n in 1usize..6,
        actions in prop::collection::vec(action(), 1..40),
    ) {
        let workers = workers(2);
        let spec = spec(admission, eviction);
        let mut set = TableSet::new(vec![spec.clone()], shards(n)).unwrap();
        let mut model = Model::default();
        let mut number = 0u64;
        for action in actions {
            match action {
                Action::Skip(steps) => number += steps,
                Action::Restart(n) => {
                    let (folder, again) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
                    let (parts, bytes) = checkpoint(&set, &workers, folder.path());
                    let mut other = TableSet::new(vec![spec.clone()], shards(n)).unwrap();
                    other.restore(&workers, folder.path(), &parts).unwrap();
                    let (parts_again, bytes_again) = checkpoint(&other, &workers, again.path());
                    prop_assert_eq!(parts, parts_again);
                    prop_assert!(bytes == bytes_again);
                    let counters = set.statistics()[0].counters;
                    model.counters = crate::Counters::default();
                    prop_assert!(counters.pulled >= counters.missing);
                    set = other;
                }
                Action::Step(keys, poisoned) => {
                    number += 1;
                    let plan = plan_of(&[keys]);
                    let keys = &plan.tables[0].keys;
                    let mut rows = RowBuffer::default();
                    set.pull(&workers, &plan, true, &mut rows).unwrap();
                    for (i, k) in keys.iter().enumerate() {
                        let wanted = model.rows.get(k).map_or_else(|| initial(&spec, *k), |r| r.weights.clone());
                        prop_assert_eq!(&rows.tables[0].row(i)[..DIM + 1], &wanted[..]);
                        let count = model.rows.get(k).map_or(0, |r| r.count);
                        prop_assert_eq!(rows.tables[0].counts.as_ref().unwrap()[i], count);
                        model.counters.missing += u64::from(!model.rows.contains_key(k));
                    }
                    model.counters.pulled += keys.len() as u64;
                    let mut raw = gradients(&set, &plan, number);
                    for &p in poisoned.iter().filter(|&&p| p < keys.len()) {
                        raw.tables[0].values[p * 8 + p % DIM] = f32::NAN;
                    }
                    let offsets = &plan.tables[0].occurrences.offsets;
                    let times: Vec<_> =
                        keys.iter().zip(offsets.windows(2)).map(|(&k, o)| (k, o[1] - o[0])).collect();
                    let before = model.counters;
                    // Dropped gradients are no part of the norm.
                    let norm = set.grad_sq_norm(&workers, &plan, &raw, Step(number)).unwrap();
                    let mut now = update(number, 1.0);
                    now.rates.scale = 1.0;
                    let mut counted = set.push(&workers, &plan, &raw, now).unwrap();
                    counted.add(set.sweep(&workers, now).unwrap());
                    model.step(&spec, number as u32, &times, &raw);
                    let wanted = model.counters.since(before);
                    prop_assert_eq!(counted, wanted);
                    let squares = |i: usize| raw.tables[0].row(i)[..DIM + 1].iter().map(|&g| f64::from(g).powi(2)).sum::<f64>();
                    let pushed: f64 = times.iter().enumerate().filter(|(_, (k, _))| {
                        model.rows.get(k).is_some_and(|r| r.last_step == number as u32)
                    }).map(|(i, _)| squares(i)).filter(|square| square.is_finite()).sum();
                    prop_assert!((norm - pushed).abs() <= 1e-6 * pushed, "{} instead of {}", norm, pushed);
                }
            }
            let (rows, candidates) = contents(&set);
            prop_assert_eq!(&rows.keys().collect::<Vec<_>>(), &model.rows.keys().collect::<Vec<_>>());
            for (key, row) in &rows {
                let wanted = &model.rows[key];
                prop_assert_eq!((&row.weights[..DIM], row.count, row.last_step), (&wanted.weights[..DIM], wanted.count, wanted.last_step));
                prop_assert!((row.weights[DIM] - wanted.weights[DIM]).abs() < 1e-4);
                prop_assert!((row.accumulator - wanted.accumulator).abs() < 1e-4);
                // The model takes over the row, because it does not compute the last bits.
                model.rows.insert(*key, row.clone());
            }
            prop_assert_eq!(&candidates, &model.candidates);
            let statistics = &set.statistics()[0];
            prop_assert_eq!(statistics.rows, model.rows.len() as u64);
            prop_assert_eq!(statistics.candidates, model.candidates.len() as u64);
            prop_assert_eq!(statistics.counters, model.counters);
        }
    }
}

/// Runs steps with always new ids and some repeated ids. Calls `look` after each step, and returns
/// the set.
fn stream(spec: TableSpec, steps: u64, mut look: impl FnMut(u64, &TableSet)) -> TableSet {
    let workers = workers(1);
    let mut set = TableSet::new(vec![spec], shards(3)).unwrap();
    for step in 1..=steps {
        let new = step * 300..step * 300 + 300;
        let keys: Vec<FeatureKey> = new.chain([1, 1, 2, 3, 3]).map(key).collect();
        let plan = plan_of(&[keys]);
        let raw = gradients(&set, &plan, step);
        set.push(&workers, &plan, &raw, update(step, 1.0)).unwrap();
        set.sweep(&workers, update(step, 1.0)).unwrap();
        look(step, &set);
    }
    set
}

#[test]
fn a_stream_of_new_ids_leaves_a_table_as_large_as_its_window() {
    let window = 32;
    let eviction = Eviction::Unseen { steps: window };
    for admission in [Admission::All, Admission::Count { at_least: 2 }] {
        let mut settled = None;
        stream(spec(admission, eviction), 1000, |step, set| {
            let table = &set.statistics()[0];
            // An id stays for the window and at most one round of visits to all slots.
            let most = 303 * 2 * window;
            assert!(table.rows + table.candidates <= most, "{} at {step}", table.rows);
            let bytes = table.total_bytes();
            let before = *settled.get_or_insert(bytes);
            if step < 8 * window {
                settled = Some(bytes.max(before));
            } else {
                assert!(bytes <= before + before / 20, "{bytes} bytes at {step}, {before} before");
            }
        });
    }
}

#[test]
fn a_table_that_loses_its_rows_gives_its_memory_back() {
    let workers = workers(1);
    let window = 100;
    let eviction = Eviction::Unseen { steps: window };
    // The rows have 256 bytes, so a chunk holds 8,192 of them.
    let segments = vec![segment("v", 64, OptimizerSpec::Sgd { lr: LR }, 0.0)];
    let spec = TableSpec { eviction, ..table("ids", false, segments) };
    let mut set = TableSet::new(vec![spec], shards(1)).unwrap();
    let mut step = 0;
    let mut train = |set: &mut TableSet, ids: std::ops::Range<u64>| {
        step += 1;
        let plan = plan_of(&[ids.map(key).collect::<Vec<_>>()]);
        let raw = gradients(set, &plan, step);
        set.push(&workers, &plan, &raw, update(step, 1.0)).unwrap();
        set.sweep(&workers, update(step, 1.0)).unwrap();
    };
    train(&mut set, 0..200_000);
    let full = set.statistics()[0].clone();
    // One id in eight stays in use, at any place in the slabs.
    for _ in 0..30 {
        for part in 0..10 {
            train(&mut set, part * 2500..part * 2500 + 2500);
        }
    }
    let rest = set.statistics()[0].clone();
    assert_eq!(rest.rows, 25_000);
    assert_eq!(rest.counters.evicted, 175_000);
    assert!(rest.total_bytes() * 3 < full.total_bytes(), "{rest:?} of {full:?}");
}

#[test]
fn a_row_that_comes_back_is_new() {
    let workers = workers(1);
    let eviction = Eviction::Unseen { steps: 1 };
    let mut set = TableSet::new(vec![spec(Admission::All, eviction)], shards(2)).unwrap();
    let mut train = |step, ids: &[u64]| {
        let plan = plan_of(&[ids.iter().map(|&id| key(id)).collect::<Vec<_>>()]);
        let mut rows = RowBuffer::default();
        set.pull(&workers, &plan, true, &mut rows).unwrap();
        let raw = gradients(&set, &plan, 1);
        set.push(&workers, &plan, &raw, update(step, 1.0)).unwrap();
        set.sweep(&workers, update(step, 1.0)).unwrap();
        let found = contents(&set).0.remove(&key(7));
        (rows.tables[0].counts.as_ref().unwrap()[0], found)
    };
    let (_, first) = train(1, &[7]);
    // A key that was not seen for one step stays; after two steps it is removed.
    assert_eq!(train(2, &[8]).1, first);
    assert_eq!(train(3, &[8]).1, None);
    let (count, again) = train(4, &[7]);
    assert_eq!(count, 0);
    assert_eq!(again, first.map(|row| Row { last_step: 4, ..row }));
}

#[test]
fn a_plan_that_does_not_count_is_refused_where_counts_matter() {
    let workers = workers(1);
    let admission = Admission::Count { at_least: 2 };
    let mut set = TableSet::new(vec![spec(admission, Eviction::Never)], shards(2)).unwrap();
    let mut plan = plan_of(&[vec![key(1), key(2)]]);
    plan.tables[0].occurrences = Default::default();
    let raw = gradients(&set, &plan, 1);
    let error = set.push(&workers, &plan, &raw, update(1, 1.0)).unwrap_err();
    assert!(error.to_string().contains("no occurrences of keys"), "{error}");
}

#[test]
fn counts_and_a_job_that_does_not_count_do_not_go_together() {
    let workers = workers(1);
    let counting = spec(Admission::Count { at_least: 9 }, Eviction::Never);
    let set = stream(counting.clone(), 2, |_, _| {});
    let folder = tempfile::tempdir().unwrap();
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    assert_eq!(parts[0].candidates.as_ref().unwrap().rows, 603);
    assert!(parts[0].candidates.as_ref().unwrap().parts.len() > 8);
    let open = spec(Admission::All, Eviction::Never);
    let mut other = TableSet::new(vec![open.clone()], shards(2)).unwrap();
    let error = other.restore(&workers, folder.path(), &parts).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");

    let set = stream(open, 2, |_, _| {});
    let folder = tempfile::tempdir().unwrap();
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    assert!(!toml::to_string(&parts[0]).unwrap().contains("candidates"));
    let mut other = TableSet::new(vec![counting], shards(2)).unwrap();
    let error = other.restore(&workers, folder.path(), &parts).unwrap_err();
    assert!(error.to_string().contains("admission has counts of keys"), "{error}");
}

#[test]
fn a_flipped_bit_among_candidates_is_refused_by_file_name() {
    let workers = workers(1);
    let counting = spec(Admission::Count { at_least: 9 }, Eviction::Never);
    let set = stream(counting.clone(), 1, |_, _| {});
    let folder = tempfile::tempdir().unwrap();
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    let file = &parts[0].candidates.as_ref().unwrap().parts[1].file;
    let path = folder.path().join(file);
    let whole = std::fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(97) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&path, bytes).unwrap();
        let mut other = TableSet::new(vec![counting.clone()], shards(2)).unwrap();
        let error = other.restore(&workers, folder.path(), &parts).unwrap_err();
        assert!(error.to_string().contains(file.as_str()), "{error}");
        assert_eq!(other.statistics()[0].candidates, 0);
    }
}

/// Checks that a file of candidates with wrong content gives an error and never a panic, even if
/// the hash of the file is right.
#[test]
fn candidates_with_any_bytes_are_refused_or_read() {
    let workers = workers(1);
    let counting = spec(Admission::Count { at_least: 9 }, Eviction::Never);
    let set = stream(counting.clone(), 1, |_, _| {});
    let folder = tempfile::tempdir().unwrap();
    let (mut parts, _) = checkpoint(&set, &workers, folder.path());
    let file = parts[0].candidates.as_ref().unwrap().parts[1].file.clone();
    let path = folder.path().join(&file);
    let whole = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(3) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x80 >> (at % 8);
        let info = &mut parts[0].candidates.as_mut().unwrap().parts[1];
        info.blake3 = blake3::hash(&bytes).to_hex().to_string();
        std::fs::write(&path, bytes).unwrap();
        let mut other = TableSet::new(vec![counting.clone()], shards(2)).unwrap();
        refused += u32::from(other.restore(&workers, folder.path(), &parts).is_err());
    }
    assert!(refused > 100, "{refused} of {} refused", whole.len());
}
