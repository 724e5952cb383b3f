//! Tests of tables that several processes hold. Each process has the rows of a range of slots and
//! gets only its own keys. Together the processes must have the rows, the norms and the counters of
//! one process.

use std::ops::Range;

use zillion_device::Workers;
use zillion_feature::random::{combine, mix64};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, SLOTS, Step, TableId, TablePlan};

use crate::set::Partials;
use crate::set::tests::capacity::{pushed, spec};
use crate::testing::fixtures::*;
use crate::{Counters, TableSet, owned_slots};
use zillion_rows::conformance::plan_of;
use zillion_rows::{
    Admission, ByteSize, Eviction, OptimizerSpec, PinnedId, TableSpec, UseStatistics,
};

/// The ranges of slots of three servers, whose bounds are multiples of 64 slots.
const THREE: [Range<usize>; 3] = [0..1344, 1344..2752, 2752..SLOTS];

/// One set of tables that holds all rows, and the sets of several servers that hold the same rows
/// together.
struct Cluster {
    whole: TableSet,
    servers: Vec<(Range<usize>, TableSet)>,
    workers: [Workers; 2],
    counted: [Counters; 2],
}

/// The stream of keys of a table: old keys come again, and one key in five is new.
struct Stream {
    /// The number of old keys.
    old: u64,
    /// The number of keys of a step.
    keys: u64,
}

impl Stream {
    /// Returns a stream for a table of `limit` rows. The old keys are a fifth more than the limit.
    fn of_limit(limit: u64, keys: u64) -> Self {
        Self { old: limit + limit / 5, keys }
    }

    fn step(&self, step: u64) -> Vec<FeatureKey> {
        if step == 1 {
            return (0..self.old).map(key).collect();
        }
        let old = |i| mix64(combine(step, i)) % self.old;
        let new = |i| self.old + step * self.keys + i;
        let keys = (0..self.keys).map(|i| if i % 5 == 0 { new(i) } else { old(i) });
        // Some of the new keys come a second time in the next step, so that counts admit them.
        let again = (0..self.keys).step_by(10).map(|i| new(i) - self.keys);
        keys.chain(again).map(key).collect()
    }
}

impl Cluster {
    fn new(specs: &[TableSpec], limit: Option<ByteSize>, ranges: &[Range<usize>]) -> Self {
        let create = |n: usize, slots: Range<usize>| {
            let mut set = TableSet::new_within(specs.to_vec(), shards(n), slots).unwrap();
            set.limit_bytes(limit).unwrap();
            set
        };
        let servers = ranges.iter().enumerate();
        let servers = servers.map(|(i, slots)| (slots.clone(), create(2 * i + 1, slots.clone())));
        Self {
            whole: create(8, 0..SLOTS),
            servers: servers.collect(),
            workers: [workers(2), workers(1)],
            counted: [Counters::default(); 2],
        }
    }

    /// Returns the part of a plan that belongs to a server, made as from keys of a network.
    fn own_plan(plan: &LookupPlan, set: &TableSet, slots: &Range<usize>) -> LookupPlan {
        let own = |table: &TablePlan| {
            let groups = set.groups()[table.table.index()];
            let range = table.keys_in(owned_slots(groups, slots.clone()));
            let offsets = &table.occurrences.offsets[range.start..=range.end];
            let counts: Vec<u32> = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
            TablePlan::checked(table.table, table.keys[range].to_vec(), Some(&counts)).unwrap()
        };
        LookupPlan::checked(plan.rows, plan.tables.iter().map(own).collect()).unwrap()
    }

    fn prefill(&mut self, table: TableId, keys: &[FeatureKey]) {
        self.whole.prefill(&self.workers[0], table, keys).unwrap();
        for (slots, set) in &mut self.servers {
            let slots = owned_slots(set.groups()[table.index()], slots.clone());
            let own: Vec<FeatureKey> =
                keys.iter().copied().filter(|key| slots.contains(&key.slot())).collect();
            set.prefill(&self.workers[1], table, &own).unwrap();
        }
    }

    /// Runs one clipped step on the whole set and on all servers, and compares the sums.
    fn step(&mut self, keys: &[Vec<FeatureKey>], step: u64) {
        let plan = plan_of(keys);
        let mut plans = vec![plan.clone()];
        let own = |(slots, set): &(Range<usize>, TableSet)| Self::own_plan(&plan, set, slots);
        plans.extend(self.servers.iter().map(own));
        let Self { whole, servers, workers, .. } = self;
        let sets = std::iter::once(&mut *whole).chain(servers.iter_mut().map(|(_, set)| set));
        let mut sets: Vec<&mut TableSet> = sets.collect();
        let (mut norms, mut losses): (Vec<Partials>, Vec<Partials>) = Default::default();
        let mut gradients = Vec::new();
        for (at, (set, plan)) in sets.iter_mut().zip(&plans).enumerate() {
            let workers = &workers[at.min(1)];
            set.pull(workers, plan, true, &mut RowBuffer::default()).unwrap();
            losses.push(set.regulariser_partials(workers, plan).unwrap());
            let raw = pushed(set, plan, step);
            set.stage(workers, plan, &raw).unwrap();
            norms.push(set.grad_sq_norm_partials(workers, plan, &raw, Step(step)).unwrap());
            gradients.push(raw);
        }
        for partials in [&norms, &losses] {
            let mut sum = Partials::new(plan.tables.len(), plan.tables.len());
            partials[1..].iter().for_each(|part| sum.add(part).unwrap());
            assert_eq!(sum, partials[0], "step {step}");
            assert_eq!(sum.total().to_bits(), partials[0].total().to_bits());
        }
        assert!(norms[0].total() > 0.0 && losses[0].total() > 0.0);
        let update = update(step, (1.0 / norms[0].total().sqrt().max(1.0)) as f32);
        for (at, (set, plan)) in sets.iter_mut().zip(&plans).enumerate() {
            let workers = &workers[at.min(1)];
            let counted = &mut self.counted[at.min(1)];
            counted.add(set.apply(workers, plan, &gradients[at], update).unwrap());
            counted.add(set.sweep(workers, update).unwrap());
            for (table, spec) in set.specs().enumerate() {
                let rows = set.rows(TableId(table as u16));
                assert!(spec.most_rows().is_none_or(|most| rows <= most), "{rows} rows");
            }
        }
        assert_eq!(self.counted[0], self.counted[1], "step {step}");
    }

    /// Checks that the servers together hold exactly the rows and the counts of the whole set.
    fn compare(&self) {
        for table in 0..self.whole.shapes.len() {
            let mut rows = 0;
            for (slots, set) in &self.servers {
                let owned = owned_slots(set.groups()[table], slots.clone());
                for slot in 0..SLOTS {
                    let found = contents(set, table, slot);
                    if owned.contains(&slot) {
                        rows += found.0.len() as u64;
                        assert!(found == contents(&self.whole, table, slot), "slot {slot}");
                    } else {
                        assert!(found == (Vec::new(), Vec::new(), Vec::new()), "slot {slot}");
                    }
                }
            }
            assert_eq!(rows, self.whole.rows(TableId(table as u16)), "table {table}");
            let whole = self.whole.statistics()[table].clone();
            let mut sum = Counters::default();
            for (_, set) in &self.servers {
                sum.add(set.statistics()[table].counters);
            }
            assert_eq!(sum, whole.counters, "{}", whole.table);
        }
    }
}

/// The rows, the counts and the blocks of the filter of one slot.
type Contents = (Vec<(FeatureKey, String)>, Vec<(FeatureKey, String)>, Vec<(usize, String)>);

fn contents(set: &TableSet, table: usize, slot: usize) -> Contents {
    let table = set.owner(table, slot);
    let mut rows = Vec::new();
    // The text of a row has all of its values: weights, state, count, steps, and shows and clicks.
    table.for_each_in_slot(slot, |key, row| rows.push((key, format!("{row:?}")))).unwrap();
    let counts = table.counts().into_iter().flat_map(|counts| counts.in_slot(slot));
    let blocks = table.filter().into_iter().flat_map(|filter| filter.in_slot(slot));
    (
        rows,
        counts.map(|(key, count)| (key, format!("{count:?}"))).collect(),
        blocks.map(|(number, words)| (number, format!("{words:?}"))).collect(),
    )
}

fn named(name: &str, admission: Admission, eviction: Eviction) -> TableSpec {
    let adam = OptimizerSpec::adam(0.01);
    TableSpec {
        name: name.to_owned(),
        segments: vec![segment("v", 3, adam, 0.01)],
        ..spec(admission, eviction)
    }
}

fn lfu() -> Eviction {
    Eviction::Lfu { half_life: zillion_rows::Span::Steps(20), below: None, every: None }
}

#[test]
fn three_servers_hold_the_rows_of_one_at_every_limit() {
    let bloom = Admission::Bloom { at_least: 2, keys: 20_000, error: 0.05 };
    let score =
        Eviction::Score { show_weight: 1.0, click_weight: 4.0, below: Some(0.3), every: Some(16) };
    let limited = |most, spec| TableSpec { max_rows: Some(most), ..spec };
    let pinned = vec![PinnedId::Number(7), PinnedId::Number(40_000)];
    let specs = vec![
        limited(20_000, named("lfu", Admission::All, lfu())),
        TableSpec {
            pinned,
            ..limited(9000, named("lru", Admission::Count { at_least: 2 }, Eviction::Lru))
        },
        limited(40_000, named("norm", bloom, Eviction::L2 { below: None, every: None })),
        limited(700, named("refusing", Admission::All, Eviction::Never)),
        named("free", Admission::All, Eviction::Unseen { steps: 20 }),
        TableSpec {
            statistics: Some(UseStatistics::by_steps(0.5, 4)),
            ..limited(10_000, named("score", Admission::Probability { p: 0.5 }, score))
        },
        growing(3, None, limited(9000, named("growing", Admission::All, lfu()))),
        TableSpec { dense: true, ..named("dense", Admission::All, Eviction::Never) },
    ];
    for ranges in [&THREE[..], &[0..64, 64..SLOTS]] {
        let mut cluster = Cluster::new(&specs, None, ranges);
        assert_eq!(cluster.whole.groups(), [4, 2, 8, 1, 64, 2, 2, 64]);
        cluster.prefill(TableId(7), &sorted_keys(0..3000));
        let streams = [20_000, 9000, 40_000, 700, 5000, 10_000, 9000, 3000]
            .map(|limit| Stream::of_limit(limit, limit / 8));
        for step in 1..=100 {
            let keys: Vec<_> = streams.iter().map(|stream| stream.step(step)).collect();
            cluster.step(&keys, step);
            if step == 30 {
                cluster.compare();
            }
        }
        cluster.compare();
        for (table, counters) in
            cluster.whole.statistics().into_iter().map(|table| (table.table, table.counters))
        {
            let is_displaced = counters.displaced > 1000;
            assert_eq!(
                is_displaced,
                !["refusing", "free", "dense"].contains(&&*table),
                "{table}: {counters:?}"
            );
            assert!(table != "refusing" || counters.refused_full > 500, "{counters:?}");
        }
    }
}

#[test]
fn three_servers_share_a_limit_of_all_tables_as_one_does() {
    let specs = vec![
        named("lfu", Admission::All, lfu()),
        named("lru", Admission::Count { at_least: 2 }, Eviction::Lru),
        TableSpec { max_rows: Some(40_000), ..named("small", Admission::All, lfu()) },
        named("kept", Admission::All, Eviction::Never),
    ];
    let mut cluster = Cluster::new(&specs, Some(ByteSize(24 << 20)), &THREE);
    let groups = cluster.whole.groups()[0];
    assert!(groups > 2 && groups <= 8, "{groups} groups");
    let streams = [60_000, 60_000, 1000, 5000].map(|limit| Stream::of_limit(limit, limit / 10));
    for step in 1..=100 {
        let keys: Vec<_> = streams.iter().map(|stream| stream.step(step)).collect();
        cluster.step(&keys, step);
    }
    cluster.compare();
    let displaced: Vec<u64> =
        cluster.whole.statistics().iter().map(|table| table.counters.displaced).collect();
    assert!(displaced[0] > 10_000 && displaced[3] == 0, "{displaced:?}");
    let bytes: u64 = cluster.whole.statistics().iter().map(|table| table.total_bytes()).sum();
    assert!(bytes <= 24 << 20, "{bytes} bytes");
}

#[test]
fn three_servers_hold_a_table_whose_groups_have_turns() {
    let limit = 800_000;
    let specs = [TableSpec { max_rows: Some(limit), ..named("large", Admission::All, lfu()) }];
    let mut cluster = Cluster::new(&specs, None, &THREE);
    assert_eq!(cluster.whole.groups(), [64]);
    let stream = Stream::of_limit(limit, 4000);
    let mut has_turns = false;
    // The first step fills the table, which then has a quarter of its limit free.
    for step in 1..=260 {
        let before = cluster.whole.group_rows().remove(0);
        cluster.step(&[stream.step(step)], step);
        if step > 220 {
            // Groups have a little spare room between their turns.
            let after = cluster.whole.group_rows().remove(0);
            let rows: u64 = after.iter().sum();
            assert!(rows * 100 > limit * 97, "{rows} rows of {limit} at step {step}");
            let risen = before.iter().zip(&after).filter(|(before, after)| after > before).count();
            has_turns |= (10..54).contains(&risen);
        }
    }
    cluster.compare();
    assert!(has_turns, "some groups are visited in a step, and some are not");
    let counted = cluster.counted[0];
    assert!(counted.displaced > 200_000, "{counted:?}");
}
