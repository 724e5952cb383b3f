//! Tests of tables that admit, evict and let counts decay by event time. They compare tables with a
//! `BTreeMap`, restart on other numbers of shards, and let days of event time pass.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zillion_feature::{FeatureKey, RowBuffer, TableId, Use};

use crate::set::tests::stored;
use crate::testing::fixtures::*;
use crate::{Counters, EventClock, TableSet};
use zillion_rows::Candidate;
use zillion_rows::conformance::plan_of;
use zillion_rows::layer::WholeRow;
use zillion_rows::{
    Admission, EventSpan, Eviction, OptimizerSpec, Span, TableLayout, TableSpec, UseStatistics,
};

const SLOTS: u64 = zillion_feature::SLOTS as u64;

fn span(seconds: u64) -> EventSpan {
    EventSpan::from_seconds(seconds).unwrap()
}

fn spec(admission: Admission, eviction: Eviction) -> TableSpec {
    let segments = vec![segment("v", 4, OptimizerSpec::Sgd { lr: 0.1 }, 0.0)];
    TableSpec { admission, eviction, ..table("ids", false, segments) }
}

#[derive(Clone, Debug)]
enum Action {
    /// A step with these keys, after some seconds of event time.
    Step(Vec<FeatureKey>, u32),
    /// A checkpoint and a restart from it on this number of shards.
    Restart(usize),
}

fn action() -> impl Strategy<Value = Action> {
    let any_key = prop_oneof![
        Just(FeatureKey(0)),
        Just(FeatureKey(u64::MAX)),
        (0u64..40).prop_map(key),
        (0u64..20).prop_map(|low| FeatureKey(9 << 52 | low)),
    ];
    let seconds = prop_oneof![Just(0u32), 1u32..6, 20u32..200];
    prop_oneof![
        8 => (prop::collection::vec(any_key, 0..40), seconds)
            .prop_map(|(keys, seconds)| Action::Step(keys, seconds)),
        1 => (1usize..9).prop_map(Action::Restart),
    ]
}

/// Returns whether a slot is visited between two times if each slot is visited once in `period`
/// seconds. The turns are counted one by one.
fn is_visited(slot: usize, period: u32, (before, now): (u32, u32)) -> bool {
    let number = |time: u32| u64::from(time) * SLOTS / u64::from(period);
    let mut reversed = 0;
    for bit in 0..12 {
        reversed |= (slot as u64 >> bit & 1) << (11 - bit);
    }
    let turns = number(before) + 1..=number(now);
    turns.take(SLOTS as usize).any(|turn| turn % SLOTS == reversed)
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    count: u32,
    last: u32,
    shows: f32,
}

#[derive(Default)]
struct Model {
    rows: BTreeMap<FeatureKey, Row>,
    candidates: BTreeMap<FeatureKey, Candidate>,
    evicted: u64,
    lapsed: u64,
}

impl Model {
    /// Does one push and the eviction after it in the model, directly from the definitions.
    fn step(&mut self, spec: &TableSpec, (before, now): (u32, u32), keys: &[(FeatureKey, u32)]) {
        let period = spec.statistics.unwrap().every();
        for &(key, times) in keys {
            if !self.rows.contains_key(&key)
                && let Admission::Count { at_least } = spec.admission
            {
                let count = self.candidates.remove(&key).map_or(0, |c| c.count) + times;
                if count < at_least {
                    self.candidates.insert(key, Candidate { count, last_step: now });
                    continue;
                }
            }
            let row = self.rows.entry(key).or_insert(Row { count: 0, last: 0, shows: 0.0 });
            let left = 0.5f32.powi((now / period - row.last / period).min(100) as i32);
            *row = Row { count: row.count + 1, last: now, shows: row.shows * left + times as f32 };
        }
        let sizes = (self.rows.len(), self.candidates.len());
        if let Eviction::UnseenFor { span } = spec.eviction {
            let goes = |key: &FeatureKey, last: u32| {
                now - last > span.seconds()
                    && is_visited(key.slot(), span.seconds().div_ceil(8), (before, now))
            };
            self.rows.retain(|key, row| !goes(key, row.last));
            self.candidates.retain(|key, c| !goes(key, c.last_step));
        }
        if let Some(window) = spec.admission_window {
            let goes = |key: &FeatureKey, last: u32| {
                now - last > window.seconds()
                    && is_visited(key.slot(), window.seconds().div_ceil(8), (before, now))
            };
            self.candidates.retain(|key, c| !goes(key, c.last_step));
        }
        self.evicted += (sizes.0 - self.rows.len()) as u64;
        self.lapsed += (sizes.1 - self.candidates.len()) as u64;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn keys_live_and_die_by_event_time(
        at_least in prop_oneof![Just(1u32), 2u32..6],
        unseen in prop::option::of(prop_oneof![1u64..9, 50u64..150]),
        window in prop::option::of(1u64..100),
        period in 1u64..50,
        n in 1usize..6,
        actions in prop::collection::vec(action(), 1..40),
    ) {
        let workers = workers(2);
        let eviction = unseen.map_or(Eviction::Never, |s| Eviction::UnseenFor { span: span(s) });
        let spec = TableSpec {
            admission_window: window.map(span),
            statistics: Some(UseStatistics { decay: 0.5, period: Span::EventTime(span(period)) }),
            ..spec(Admission::Count { at_least }, eviction)
        };
        spec.validate().unwrap();
        let mut set = TableSet::new(vec![spec.clone()], shards(n)).unwrap();
        let mut model = Model::default();
        let (mut number, mut before) = (0u64, 0u32);
        for action in actions {
            match action {
                Action::Restart(n) => {
                    let (folder, again) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
                    let (parts, bytes) = checkpoint(&set, &workers, folder.path());
                    let mut other = TableSet::new(vec![spec.clone()], shards(n)).unwrap();
                    other.restore(&workers, folder.path(), &parts).unwrap();
                    let (parts_again, bytes_again) = checkpoint(&other, &workers, again.path());
                    prop_assert_eq!(parts, parts_again);
                    prop_assert!(bytes == bytes_again);
                    (model.evicted, model.lapsed) = (0, 0);
                    set = other;
                }
                Action::Step(keys, seconds) => {
                    number += 1;
                    let now = before + seconds;
                    let plan = plan_of(&[keys]);
                    let offsets = &plan.tables[0].occurrences.offsets;
                    let times: Vec<(FeatureKey, u32)> = plan.tables[0].keys.iter()
                        .zip(offsets.windows(2)).map(|(&key, o)| (key, o[1] - o[0])).collect();
                    let mut raw = gradients(&set, &plan, number);
                    let uses = times.iter().map(|&(_, n)| Use { shows: n as f32, clicks: 0.0 });
                    raw.tables[0].uses = Some(uses.collect());
                    set.set_clock(EventClock { before, now }).unwrap();
                    set.push(&workers, &plan, &raw, update(number, 1.0)).unwrap();
                    set.sweep(&workers, update(number, 1.0)).unwrap();
                    model.step(&spec, (before, now), &times);
                    before = now;
                }
            }
            let (rows, candidates) = stored(&set, |row| Row {
                count: row.meta.count,
                last: row.meta.last_step,
                shows: row.used.shows,
            });
            prop_assert_eq!(&rows, &model.rows);
            prop_assert_eq!(&candidates, &model.candidates);
            let counters = set.statistics()[0].counters;
            prop_assert_eq!((counters.evicted, counters.lapsed), (model.evicted, model.lapsed));
        }
    }
}

/// Pushes some ids in a step that ends at a time.
fn push(set: &mut TableSet, step: u64, (before, now): (u32, u32), ids: &[u64]) -> Counters {
    let workers = workers(1);
    let plan = plan_of(&[ids.iter().map(|&id| key(id)).collect::<Vec<_>>()]);
    let raw = gradients(set, &plan, step);
    set.set_clock(EventClock { before, now }).unwrap();
    let mut counted = set.push(&workers, &plan, &raw, update(step, 1.0)).unwrap();
    counted.add(set.sweep(&workers, update(step, 1.0)).unwrap());
    counted
}

#[test]
fn a_filter_forgets_half_in_each_window() {
    let bloom = Admission::Bloom { at_least: 5, keys: 1000, error: 0.01 };
    let day = 86_400;
    for (days, occurrences) in [(0, 1), (1, 3), (2, 4), (9, 5)] {
        let spec = TableSpec { admission_window: Some(span(day)), ..spec(bloom, Eviction::Never) };
        let mut set = TableSet::new(vec![spec], shards(3)).unwrap();
        push(&mut set, 1, (0, 0), &[7, 7, 7, 7]);
        let now = days * day as u32;
        push(&mut set, 2, (0, now), &[]);
        // Four occurrences have become two, one or none.
        let few = vec![7; occurrences - 1];
        assert_eq!(push(&mut set, 3, (now, now), &few).created, 0, "{days} days");
        assert_eq!(push(&mut set, 4, (now, now), &[7]).created, 1, "{days} days");
    }
}

#[test]
fn a_step_without_a_time_is_refused() {
    let workers = workers(1);
    let eviction = Eviction::UnseenFor { span: span(60) };
    let mut set = TableSet::new(vec![spec(Admission::All, eviction)], shards(2)).unwrap();
    let plan = plan_of(&[vec![key(1)]]);
    let raw = gradients(&set, &plan, 1);
    let error = set.push(&workers, &plan, &raw, update(1, 1.0)).unwrap_err();
    assert!(error.to_string().contains("set the clock first"), "{error}");
    let error = set.set_clock(EventClock { before: 5, now: 4 }).unwrap_err();
    assert!(error.to_string().contains("goes back"), "{error}");
    assert_eq!(push(&mut set, 1, (0, 4), &[1]).created, 1);
}

#[test]
fn a_copied_row_counts_as_seen_at_the_first_step() {
    let spec = spec(Admission::All, Eviction::UnseenFor { span: span(100) });
    let layout: TableLayout = spec.layout();
    let mut set = TableSet::new(vec![spec], shards(2)).unwrap();
    let weights = vec![0.5f32; layout.width()];
    let mut rows =
        [(key(3), WholeRow { weights: weights.as_slice().into(), count: 9 })].into_iter();
    set.adopt(TableId(0), &layout, &mut rows).unwrap();
    assert_eq!(push(&mut set, 1, (0, 0), &[1]).evicted, 0);
    assert_eq!(push(&mut set, 2, (0, 100), &[1]).evicted, 0);
    assert_eq!(push(&mut set, 3, (100, 120), &[1]).evicted, 1);
    assert_eq!(set.rows(TableId(0)), 1);
}

#[test]
fn a_frequency_halves_by_event_time() {
    let half_life = Span::EventTime(span(1000));
    let lfu = Eviction::Lfu { half_life, below: Some(0.9), every: Some(1) };
    let mut set = TableSet::new(vec![spec(Admission::All, lfu)], shards(2)).unwrap();
    push(&mut set, 1, (0, 0), &[1, 2]);
    push(&mut set, 2, (0, 0), &[1]);
    // Many steps without event time age nothing.
    for step in 3..40 {
        assert_eq!(push(&mut set, step, (0, 0), &[]).evicted, 0);
    }
    // One push has become 0.7, and two have become 1.4.
    assert_eq!(push(&mut set, 40, (0, 500), &[]).evicted, 1);
    assert_eq!(push(&mut set, 41, (500, 1500), &[]).evicted, 1);
}

/// Runs an endless stream for some days of event time, in which 20 % of the ids are replaced each
/// hour. The table stays as large as its span, and its counters add up.
#[test]
fn a_stream_with_new_ids_each_hour_has_a_bounded_table() {
    const LIVE: u64 = 4000;
    const NEW_IN_AN_HOUR: u64 = LIVE / 5;
    const STEPS_IN_AN_HOUR: u64 = 12;
    const DAYS: u64 = 14;
    let workers = workers(2);
    for at_least in [1, 3] {
        let spec = TableSpec {
            admission_window: Some(span(6 * 3600)),
            ..spec(Admission::Count { at_least }, Eviction::UnseenFor { span: span(86_400) })
        };
        let mut set = TableSet::new(vec![spec], shards(3)).unwrap();
        let (mut before, mut keys, mut settled) = (0, 0, 0);
        let mut sum = Counters::default();
        for step in 1..=DAYS * 24 * STEPS_IN_AN_HOUR {
            let now = (step * 3600 / STEPS_IN_AN_HOUR) as u32;
            let first = step * NEW_IN_AN_HOUR / STEPS_IN_AN_HOUR;
            let draw = |i| first + zillion_feature::random::combine(step, i) % LIVE;
            let plan = plan_of(&[(0..300).map(|i| key(draw(i))).collect::<Vec<_>>()]);
            let raw = gradients(&set, &plan, step);
            let mut pulled = RowBuffer::default();
            set.pull(&workers, &plan, false, &mut pulled).unwrap();
            set.set_clock(EventClock { before, now }).unwrap();
            sum.add(set.push(&workers, &plan, &raw, update(step, 1.0)).unwrap());
            sum.add(set.sweep(&workers, update(step, 1.0)).unwrap());
            before = now;
            let table = &set.statistics()[0];
            assert_eq!(sum.created - sum.evicted, table.rows, "after step {step}");
            keys += plan.tables[0].keys.len() as u64;
            assert_eq!(sum.pushed + sum.waiting, keys, "after step {step}");
            if at_least > 1 {
                assert_eq!(sum.created, sum.admitted);
            }
            // An id is drawn while it is live (five hours), and stays for a day and an eighth.
            let bound = LIVE + NEW_IN_AN_HOUR * (24 + 3 + 1);
            assert!(table.rows + table.candidates <= bound, "{} rows at {step}", table.rows);
            let bytes = table.total_bytes();
            if step <= 4 * 24 * STEPS_IN_AN_HOUR {
                settled = settled.max(bytes);
            } else {
                assert!(
                    bytes <= settled + settled / 20,
                    "{bytes} bytes at {step}, {settled} before"
                );
            }
        }
        assert!(sum.evicted > 8 * LIVE && set.rows(TableId(0)) > LIVE, "{sum:?}");
        assert!(at_least == 1 || sum.lapsed > 0, "{sum:?}");
    }
}
