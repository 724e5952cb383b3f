//! The estimation of a table's size and hit rates under other settings, from one pass over its
//! lookups.
//!
//! A [`Tracker`] receives the lookups of each step: the unique keys and the number of occurrences
//! of each key, as in a lookup plan. It counts the effect of every admission threshold, every limit
//! of unseen steps and every cache size, in memory of fixed size. [`Tracker::finish`] computes
//! curves from these counts. A tracker reads no file, and needs neither rows nor an optimizer.
//!
//! # Exact and sampled results
//! If the number of keys is within a limit, all results are exact. Each time the limit is exceeded,
//! half of the followed keys are dropped. Bits of the key decide which keys are dropped (module
//! `sample`), and the events of the dropped keys are subtracted from the counts (module `events`).
//! Only the number of *misses* is scaled up from the sample. The total number of lookups is known
//! exactly, and the hits are the total minus the misses. So the result changes little if a very
//! frequent key is missing in the sample (the correction of SHARDS, applied to all results). The
//! result states the error of the numbers of rows as two standard deviations.
//!
//! # Invariants
//! The result is a function of the steps and the limit. The memory is at most [`KEY_BYTES`] for
//! each key of the limit, plus counts of fixed size.

mod bytes;
mod events;
mod heaps;
mod recency;
mod sample;
mod usage;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use zillion_feature::{FeatureKey, MixedHasher};

use zillion_rows::TableSpec;
use zillion_rows::{Admission, Eviction};

pub use crate::capacity::bytes::{Numbers, dims, memory};
pub use crate::capacity::heaps::Heaps;
pub use crate::capacity::usage::{AdmissionPoint, CachePoint, EvictionPoint, GrowthPoint, Usage};

use crate::capacity::events::{BINS, Events, halve};
use crate::capacity::recency::Recency;
use crate::capacity::sample::{LEVELS, level};

/// The largest number of bytes of memory for one followed key, at the worst moment of growth.
pub const KEY_BYTES: usize = 96;
/// The smallest limit of followed keys. Estimates from fewer keys are of little use.
pub const LEAST_KEYS: usize = 1 << 10;

/// The admission thresholds and the limits of unseen steps whose effects are estimated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The admission thresholds of the grid, in ascending order.
    thresholds: Vec<u32>,
    /// The limits of unseen steps of the grid, in ascending order.
    limits: Vec<u64>,
}

/// The lookups of one key that have been counted.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The number of occurrences of the key so far.
    values: u32,
    /// The number of steps in which the key occurred.
    lookups: u32,
    /// The last step in which the key occurred.
    last_step: u32,
    /// The place of the key's last lookup in the order of lookups (see [`Recency`]).
    place: u32,
}

/// A recorder of the lookups of one table. It computes the curves from the recorded counts.
#[derive(Debug)]
pub struct Tracker {
    grid: Grid,
    limit: usize,
    /// The lowest sample level whose keys are still followed.
    level: usize,
    keys: HashMap<FeatureKey, Seen, MixedHasher>,
    recency: Recency,
    /// The events of the followed keys, for each level of the sample.
    events: Vec<Events>,
    /// The number of steps in one time bin.
    width: u64,
    /// The number of rows of the data in each time bin.
    rows: Vec<u64>,
    steps: u64,
    values: u64,
    lookups: u64,
}

impl Grid {
    /// Returns the grid for a table. The grid has the round numbers 1, 2, 5, 10 and so on, and the
    /// settings of the table.
    pub fn of(spec: &TableSpec) -> Self {
        let mut thresholds = vec![1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000];
        match spec.admission {
            Admission::Count { at_least } | Admission::Bloom { at_least, .. } => {
                thresholds.push(at_least);
            }
            Admission::All | Admission::Probability { .. } => {}
        }
        thresholds.extend(spec.grow.map(|growth| growth.at));
        let decades = (0..=7).map(|power| 10u64.pow(power));
        let mut limits: Vec<u64> = decades.flat_map(|n| [n, 2 * n, 5 * n]).collect();
        if let Eviction::Unseen { steps } = spec.eviction {
            limits.push(steps);
        }
        thresholds.sort_unstable();
        thresholds.dedup();
        limits.sort_unstable();
        limits.dedup();
        Self { thresholds, limits }
    }
}

impl Tracker {
    /// Creates a tracker that follows at most `limit` keys. A limit below [`LEAST_KEYS`] is raised
    /// to that number.
    pub fn new(grid: Grid, limit: usize) -> Self {
        let events = Events::new(grid.thresholds.len(), grid.limits.len());
        Self {
            grid,
            limit: limit.max(LEAST_KEYS),
            level: 0,
            keys: HashMap::default(),
            recency: Recency::new(),
            events: vec![events; LEVELS],
            width: 1,
            rows: vec![0; BINS],
            steps: 0,
            values: 0,
            lookups: 0,
        }
    }

    /// Returns the bytes of memory that the tracker takes.
    pub fn bytes(&self) -> usize {
        // A map takes one byte for each entry in addition to the entry, and has a seventh more
        // places than the capacity that it reports.
        let entry = size_of::<(FeatureKey, Seen)>() + 1;
        self.keys.capacity() * entry * 8 / 7
            + self.recency.bytes()
            + self.events.iter().map(Events::bytes).sum::<usize>()
    }

    /// Adds the next step: its number of rows, and its unique keys, each with its number of
    /// occurrences.
    pub fn step(&mut self, rows: u64, keys: impl Iterator<Item = (FeatureKey, u32)>) {
        self.steps += 1;
        if self.steps > BINS as u64 * self.width {
            self.width *= 2;
            halve(&mut self.rows);
            self.events.iter_mut().for_each(Events::halve_time);
        }
        let bin = self.bin(self.steps);
        self.rows[bin] += rows;
        for (key, times) in keys {
            self.values += u64::from(times);
            self.lookups += 1;
            let level = level(key);
            if level >= self.level {
                self.look_up(key, level, times);
            }
        }
    }

    fn look_up(&mut self, key: FeatureKey, level: usize, times: u32) {
        if self.recency.is_full() {
            self.recency.renumber(self.keys.values_mut().map(|seen| &mut seen.place));
        }
        let (bin, width) = (self.bin(self.steps), self.width);
        let step = self.steps as u32;
        let events = &mut self.events[level];
        match self.keys.entry(key) {
            Entry::Vacant(place) => {
                let first = Seen {
                    values: times,
                    lookups: 1,
                    last_step: step,
                    place: self.recency.record_first(),
                };
                place.insert(first);
                events.first[bin] += 1;
                events.reached[0] += u64::from(times);
            }
            Entry::Occupied(mut entry) => {
                let seen = entry.get_mut();
                let reached = self.grid.thresholds.partition_point(|&least| least <= seen.values);
                events.reached[reached] += u64::from(times);
                // The number of steps between the two lookups, in which the key was not seen.
                let unseen = u64::from(step - seen.last_step).saturating_sub(1);
                let exceeded = self.grid.limits.partition_point(|&limit| limit < unseen);
                events.returned[exceeded] += u64::from(times);
                events.returns[exceeded] += 1;
                for (change, &limit) in events.change[..exceeded].iter_mut().zip(&self.grid.limits)
                {
                    let gone = u64::from(seen.last_step) + limit + 1;
                    change[((gone - 1) / width) as usize] -= 1;
                    change[bin] += 1;
                }
                let (since, place) = self.recency.record_again(seen.place);
                let distance = u64::from(since) << self.level;
                events.distances[events::distance_bin(distance)] += 1;
                seen.values = seen.values.saturating_add(times);
                seen.lookups = seen.lookups.saturating_add(1);
                seen.last_step = step;
                seen.place = place;
            }
        }
        if self.keys.len() > self.limit && self.level + 1 < LEVELS {
            self.thin();
        }
    }

    /// Drops the followed keys of the lowest level, which are about half of all followed keys.
    fn thin(&mut self) {
        self.level += 1;
        let least = self.level;
        self.keys.retain(|&key, _| level(key) >= least);
        self.recency.renumber(self.keys.values_mut().map(|seen| &mut seen.place));
    }

    fn bin(&self, step: u64) -> usize {
        ((step - 1) / self.width) as usize
    }
}

#[cfg(test)]
mod tests;
