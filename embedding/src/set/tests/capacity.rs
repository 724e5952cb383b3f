//! Tests of tables at their limits, which compare every policy with a `BTreeMap`. The module
//! `limits` tests larger tables at their limits.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zillion_feature::random::combine;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId, Use};

use crate::eviction::capacity::{Demand, headroom};
use crate::groups::Group;
use crate::set::tests::stored;
use crate::testing::fixtures::*;
use crate::{Counters, TableSet};
use zillion_rows::Candidate;
use zillion_rows::conformance::plan_of;
use zillion_rows::is_drawn;
use zillion_rows::{Admission, Eviction, OptimizerSpec, PinnedId, TableSpec, UseStatistics};

const LR: f32 = 0.25;
const DIM: usize = 3;
const STATISTICS: UseStatistics = UseStatistics::by_steps(0.5, 4);
/// The number of pinned ids, in tests with pinned ids.
const PINNED: u64 = 3;
/// The only group of a small table.
const WHOLE: Group = Group { index: 0, count: 1 };

pub(crate) fn spec(admission: Admission, eviction: Eviction) -> TableSpec {
    let needs_uses = matches!(eviction, Eviction::Score { .. });
    let segments = vec![segment("v", DIM, OptimizerSpec::Sgd { lr: LR }, 0.0)];
    TableSpec {
        admission,
        eviction,
        statistics: needs_uses.then_some(STATISTICS),
        ..table("ids", false, segments)
    }
}

/// Returns the gradients of one step. If the table keeps statistics of use, the shows and clicks of
/// the rows are included.
pub(crate) fn pushed(set: &TableSet, plan: &LookupPlan, step: u64) -> RowBuffer {
    let mut raw = gradients(set, plan, step);
    for (rows, table) in raw.tables.iter_mut().zip(&plan.tables) {
        let spec = set.specs().nth(table.table.index()).unwrap();
        let offsets = &table.occurrences.offsets;
        let used = |(i, key): (usize, &FeatureKey)| {
            let shows = (offsets[i + 1] - offsets[i]) as f32;
            Use { shows, clicks: (combine(key.0, step) % 2) as f32 * shows }
        };
        let uses = table.keys.iter().enumerate().map(used);
        rows.uses = spec.statistics.map(|_| uses.collect());
    }
    raw
}

pub(crate) fn train(
    set: &mut TableSet,
    workers: &zillion_device::Workers,
    keys: &[FeatureKey],
    step: u64,
) -> Counters {
    let plan = plan_of(&[keys.to_vec()]);
    let raw = pushed(set, &plan, step);
    let mut counted = set.push(workers, &plan, &raw, update(step, 1.0)).unwrap();
    counted.add(set.sweep(workers, update(step, 1.0)).unwrap());
    counted
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    weights: Vec<f32>,
    count: u32,
    last_step: u32,
    used: Use,
}

#[derive(Default)]
struct Model {
    rows: BTreeMap<FeatureKey, Row>,
    candidates: BTreeMap<FeatureKey, Candidate>,
    counters: Counters,
}

impl Model {
    /// Returns the value by which rows are compared for eviction. The order of these values does
    /// not change with time.
    fn worth(spec: &TableSpec, row: &Row) -> f64 {
        let last = f64::from(row.last_step);
        match spec.eviction {
            Eviction::Never => unreachable!("rows stay"),
            Eviction::Unseen { .. } | Eviction::UnseenFor { .. } | Eviction::Lru => last,
            Eviction::Lfu { half_life, .. } => {
                f64::from(row.count).log2() * half_life.units() as f64 + last
            }
            Eviction::Score { show_weight, click_weight, .. } => {
                let score = show_weight * f64::from(row.used.shows)
                    + click_weight * f64::from(row.used.clicks);
                // A decay by half is one power of two in each period.
                score.log2() + f64::from(row.last_step / STATISTICS.every())
            }
            Eviction::L2 { .. } => row.weights.iter().map(|&w| f64::from(w) * f64::from(w)).sum(),
        }
    }

    /// Returns the value of a row at a step, on the scale of the job's settings.
    fn value(spec: &TableSpec, row: &Row, step: u32) -> f64 {
        match spec.eviction {
            Eviction::Lfu { half_life, .. } => {
                let age = f64::from(step - row.last_step) / half_life.units() as f64;
                f64::from(row.count) * 0.5f64.powf(age)
            }
            Eviction::Score { show_weight, click_weight, .. } => {
                let score = show_weight * f64::from(row.used.shows)
                    + click_weight * f64::from(row.used.clicks);
                let every = STATISTICS.every();
                score * 0.5f64.powi((step / every - row.last_step / every) as i32)
            }
            Eviction::L2 { .. } => Self::worth(spec, row).sqrt(),
            _ => f64::INFINITY,
        }
    }

    /// Does one step in the model, directly from the definitions. Returns the sum of squares of the
    /// gradients that were applied.
    fn step(&mut self, spec: &TableSpec, step: u32, plan: &LookupPlan, raw: &RowBuffer) -> f64 {
        let table = &plan.tables[0];
        let offsets = &table.occurrences.offsets;
        let limit = spec.max_rows.unwrap_or(u64::MAX);
        let mut free = limit.saturating_sub(self.rows.len() as u64);
        let mut demand = Demand { keys: table.keys.len() as u64, rows: 0 };
        let mut squares = 0.0;
        for (i, &key) in table.keys.iter().enumerate() {
            let times = offsets[i + 1] - offsets[i];
            let gradient = &raw.tables[0].row(i)[..DIM];
            if !self.rows.contains_key(&key) {
                let before = self.candidates.get(&key).map_or(0, |c| c.count);
                let admitted = match spec.admission {
                    Admission::All => true,
                    Admission::Count { at_least } => before + times >= at_least,
                    Admission::Probability { p } => is_drawn(p, spec.seed, key.0, step, times),
                    Admission::Bloom { .. } => unreachable!("filters are not exact"),
                };
                if !admitted {
                    self.counters.waiting += 1;
                    if matches!(spec.admission, Admission::Count { .. }) {
                        let count = before + times;
                        self.candidates.insert(key, Candidate { count, last_step: step });
                    }
                    continue;
                }
                demand.rows += 1;
                if free == 0 {
                    self.counters.refused_full += 1;
                    continue;
                }
                free -= 1;
                self.candidates.remove(&key);
                self.counters.admitted += u64::from(!spec.admission.is_all());
                self.counters.created += 1;
                let shape = crate::shape::TableShape::new(spec.clone()).unwrap();
                let mut weights = vec![0.0; 4];
                shape.fill_initial(key, &mut weights);
                weights.truncate(DIM);
                let row = Row { weights, count: 0, last_step: 0, used: Use::default() };
                self.rows.insert(key, row);
            }
            self.counters.pushed += 1;
            let row = self.rows.get_mut(&key).unwrap();
            if let Some(uses) = &raw.tables[0].uses {
                let periods = step / STATISTICS.every() - row.last_step / STATISTICS.every();
                let left = 0.5f32.powi(periods as i32);
                row.used.shows = row.used.shows * left + uses[i].shows;
                row.used.clicks = row.used.clicks * left + uses[i].clicks;
            }
            row.count += 1;
            row.last_step = step;
            for (w, g) in row.weights.iter_mut().zip(gradient) {
                *w -= LR * g;
            }
            squares += gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>();
        }
        self.schedule(spec, step);
        self.make_room(spec, limit, demand);
        squares
    }

    fn schedule(&mut self, spec: &TableSpec, step: u32) {
        let (period, below) = match spec.eviction {
            Eviction::Unseen { steps } => (steps, 0.0),
            Eviction::Lfu { below: Some(below), every, .. }
            | Eviction::Score { below: Some(below), every, .. }
            | Eviction::L2 { below: Some(below), every } => (every.unwrap_or(4096), below),
            _ => return,
        };
        let period = 1 << period.min(4096).ilog2();
        let is_due = |key: &FeatureKey| key.slot() as u64 % period == u64::from(step) % period;
        let is_old = |last: u32| match spec.eviction {
            Eviction::Unseen { steps } => u64::from(step - last) > steps,
            _ => false,
        };
        let before = (self.rows.len(), self.candidates.len());
        self.rows.retain(|key, row| {
            let goes = is_old(row.last_step) || Self::value(spec, row, step) < below;
            !(is_due(key) && goes) || is_pinned(spec, *key)
        });
        self.candidates.retain(|key, c| !(is_due(key) && is_old(c.last_step)));
        self.counters.evicted += (before.0 - self.rows.len()) as u64;
        self.counters.lapsed += (before.1 - self.candidates.len()) as u64;
    }

    /// Evicts the rows with the lowest values from the model, as a small table does.
    fn make_room(&mut self, spec: &TableSpec, limit: u64, demand: Demand) {
        if spec.eviction.is_never() || limit == u64::MAX {
            return;
        }
        let rows = self.rows.len() as u64;
        let excess = (rows + headroom(limit, demand, WHOLE)).saturating_sub(limit) as usize;
        let free = self.rows.iter().filter(|(key, _)| !is_pinned(spec, **key));
        let mut ranks: Vec<(f64, FeatureKey)> =
            free.map(|(key, row)| (Self::worth(spec, row), *key)).collect();
        ranks.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (_, key) in ranks.into_iter().take(excess) {
            self.rows.remove(&key);
            self.counters.evicted += 1;
            self.counters.displaced += 1;
        }
    }
}

fn is_pinned(spec: &TableSpec, key: FeatureKey) -> bool {
    spec.pinned.iter().any(|id| id.key() == key)
}

/// Returns the content of a set that has one table.
pub(crate) fn contents(
    set: &TableSet,
) -> (BTreeMap<FeatureKey, Row>, BTreeMap<FeatureKey, Candidate>) {
    stored(set, |row| Row {
        weights: row.weights.to_floats().into_owned(),
        count: row.meta.count,
        last_step: row.meta.last_step,
        used: row.used,
    })
}

fn any_key() -> impl Strategy<Value = FeatureKey> {
    prop_oneof![
        1 => Just(FeatureKey(0)),
        1 => Just(FeatureKey(u64::MAX)),
        8 => (0u64..60).prop_map(key),
        3 => (0u64..20).prop_map(|low| FeatureKey(9 << 52 | low)),
    ]
}

#[derive(Clone, Debug)]
enum Action {
    Step(Vec<FeatureKey>),
    Skip(u64),
    Restart(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        9 => prop::collection::vec(any_key(), 0..40).prop_map(Action::Step),
        1 => (1u64..5).prop_map(Action::Skip),
        1 => (1usize..9).prop_map(Action::Restart),
    ]
}

fn admission() -> impl Strategy<Value = Admission> {
    prop_oneof![
        2 => Just(Admission::All),
        1 => (1u32..5).prop_map(|at_least| Admission::Count { at_least }),
        1 => prop_oneof![Just(0.3), Just(1.0)].prop_map(|p| Admission::Probability { p }),
    ]
}

fn eviction() -> impl Strategy<Value = Eviction> {
    let schedule = prop_oneof![
        Just((None, None)),
        (prop_oneof![Just(0.3), Just(1.1)], prop::option::of(1u64..9))
            .prop_map(|(below, every)| (Some(below), every)),
    ];
    let half_life = prop_oneof![Just(1u64), Just(4), Just(64)];
    (0..6, schedule, half_life, 1u64..20).prop_map(|(kind, (below, every), half_life, steps)| {
        match kind {
            0 => Eviction::Never,
            1 => Eviction::Unseen { steps },
            2 => Eviction::Lru,
            3 => Eviction::Lfu { half_life: half_life.into(), below, every },
            4 => Eviction::Score { show_weight: 1.0, click_weight: 2.0, below, every },
            _ => Eviction::L2 { below, every },
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn tables_at_their_limits_are_maps_that_lose_their_least(
        admission in admission(),
        eviction in eviction(),
        limit in prop::option::of(1u64..60),
        pins in any::<bool>(),
        n in 1usize..6,
        actions in prop::collection::vec(action(), 1..40),
    ) {
        let workers = workers(2);
        let mut spec = TableSpec { max_rows: limit, ..spec(admission, eviction) };
        if pins && !eviction.is_never() {
            spec.pinned = (0..PINNED).map(|id| PinnedId::Number(id as i64)).collect();
        }
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
                    model.counters = Counters::default();
                    set = other;
                }
                Action::Step(keys) => {
                    number += 1;
                    let plan = plan_of(&[keys]);
                    let raw = pushed(&set, &plan, number);
                    let norm = set.grad_sq_norm(&workers, &plan, &raw, Step(number)).unwrap();
                    let now = crate::Update { rates: Default::default(), ..update(number, 1.0) };
                    set.push(&workers, &plan, &raw, now).unwrap();
                    prop_assert!(set.rows(TableId(0)) <= limit.unwrap_or(u64::MAX));
                    set.sweep(&workers, now).unwrap();
                    let squares = model.step(&spec, number as u32, &plan, &raw);
                    prop_assert!((norm - squares).abs() <= 1e-6 * squares, "{} instead of {}", norm, squares);
                }
            }
            let (rows, candidates) = contents(&set);
            prop_assert_eq!(&rows, &model.rows);
            prop_assert_eq!(&candidates, &model.candidates);
            let statistics = &set.statistics()[0];
            prop_assert_eq!(statistics.rows, model.rows.len() as u64);
            prop_assert_eq!(statistics.counters, model.counters);
        }
    }
}
