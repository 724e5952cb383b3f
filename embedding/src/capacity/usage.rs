//! The curves of a table's size and hit rates, computed from the counts of a tracker.

use serde::Serialize;

use crate::capacity::events::{BINS, Events, cache_rows};
use crate::capacity::{Heaps, Seen, Tracker};

/// The divisor that gives the shortest limit of unseen steps in a curve: the number of steps
/// divided by this number. Shorter limits are of no use.
const SHORTEST: u64 = 2000;
/// The divisor that gives the smallest cache in a curve: the number of keys divided by this number.
const SMALLEST_CACHE: u64 = 256;

/// The smallest number of followed keys that a point of a sampled curve needs. Points with fewer
/// keys are left out, because a few very frequent keys could be in the sample by chance and change
/// such a point much.
const DECIDING: u64 = 256;

/// The curves of a table, computed from one pass over its lookups.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Usage {
    /// The number of steps of the data.
    pub steps: u64,
    /// The number of rows of the data.
    pub rows: u64,
    /// The number of values that were looked up.
    pub values: u64,
    /// The number of lookups. A step has one lookup for each of its unique keys.
    pub lookups: u64,
    /// The number of keys that each followed key stands for. If this number is 1, all keys were
    /// followed and all results are exact.
    pub one_in: u64,
    /// The number of keys that were followed until the end of the data.
    pub followed: u64,
    /// The number of different keys, estimated if keys were sampled.
    pub keys: u64,
    /// The relative error of all numbers of keys, as two standard deviations.
    pub keys_error: f64,
    /// The number of keys after each part of the data, in ascending order. The last point is the
    /// end of the data.
    pub growth: Vec<GrowthPoint>,
    /// The law that fits the growth; `None` if there are too few points.
    pub heaps: Option<Heaps>,
    /// The effect of each admission threshold, in ascending order from 1.
    pub admission: Vec<AdmissionPoint>,
    /// The effect of each limit of unseen steps, in ascending order. If keys were sampled, limits
    /// with too few followed keys are left out.
    pub eviction: Vec<EvictionPoint>,
    /// The effect of each cache size, in ascending order. The sizes are powers of two, up to a
    /// cache that holds all keys. If keys were sampled, sizes with too few followed keys are left
    /// out.
    pub cache: Vec<CachePoint>,
}

/// A point of the growth curve: the number of keys from the beginning of the data up to this point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GrowthPoint {
    /// The number of rows of the data up to this point.
    pub rows: u64,
    /// The number of different keys in these rows.
    pub keys: u64,
}

/// The effect of an admission threshold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AdmissionPoint {
    /// The number of occurrences at which a key gets a row.
    pub at_least: u32,
    /// The number of rows of the table at the end of the data.
    pub rows: u64,
    /// The share of the values whose key had a row before the step.
    pub found: f64,
    /// The error of the found share, as two standard deviations.
    pub found_error: f64,
}

/// The effect of evicting rows after a number of unseen steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EvictionPoint {
    /// The number of steps without a push after which a row is evicted.
    pub unseen: u64,
    /// The number of rows of the table at the end of the data.
    pub rows_end: u64,
    /// The largest number of rows at the end of a time bin. A time bin is a 256th of the pass, or
    /// up to twice as long.
    pub rows_peak: u64,
    /// The share of the values that came after the eviction of their key's row.
    pub lost: f64,
    /// The approximate error of the lost share; 0 if all keys were followed.
    pub lost_error: f64,
    /// The number of rows that were created again after an eviction.
    pub returns: u64,
}

/// The effect of a cache that holds some of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CachePoint {
    /// The number of rows that the cache holds.
    pub rows: u64,
    /// The share of the lookups that are hits if the cache always evicts the least recently used
    /// row.
    pub lru: f64,
    /// The share of the lookups that are hits if the cache holds the rows with the most lookups
    /// from the beginning. This share shows the value of knowing the frequencies in advance. It is
    /// less than the share of LRU if each key occurs in a short time only.
    pub ideal: f64,
    /// The approximate error of both shares; 0 if all keys were followed.
    pub error: f64,
}

impl Tracker {
    /// Computes the curves from the counts of all steps.
    pub fn finish(mut self) -> Usage {
        self.end_rows();
        let mut events = self.events[self.level].clone();
        self.events[self.level + 1..].iter().for_each(|level| events.add(level));
        let one_in = 1u64 << self.level;
        let keys = self.keys.len() as u64 * one_in;
        let left_out = 1.0 - 1.0 / one_in as f64;
        let growth = self.growth(&events, one_in);
        let points: Vec<(u64, f64)> = growth.iter().map(|p| (p.rows, p.keys as f64)).collect();
        Usage {
            steps: self.steps,
            rows: self.rows.iter().sum(),
            values: self.values,
            lookups: self.lookups,
            one_in,
            followed: self.keys.len() as u64,
            keys,
            keys_error: 2.0 * (left_out / self.keys.len().max(1) as f64).sqrt(),
            heaps: Heaps::fit(&points),
            growth,
            admission: self.admission(&events, one_in),
            eviction: self.eviction(&events, one_in),
            cache: self.cache(&events, one_in),
        }
    }

    /// Counts the rows that were evicted after the last lookup of their key.
    fn end_rows(&mut self) {
        let (steps, width) = (self.steps, self.width);
        for (&key, seen) in &self.keys {
            let events = &mut self.events[super::level(key)];
            for (change, &limit) in events.change.iter_mut().zip(&self.grid.limits) {
                let gone = u64::from(seen.last_step) + limit + 1;
                if gone > steps {
                    break;
                }
                change[((gone - 1) / width) as usize] -= 1;
            }
        }
    }

    fn growth(&self, events: &Events, one_in: u64) -> Vec<GrowthPoint> {
        let (mut rows, mut keys) = (0, 0);
        let used = (self.steps.div_ceil(self.width) as usize).min(BINS);
        let point = |bin: usize| {
            rows += self.rows[bin];
            keys += events.first[bin] * one_in;
            GrowthPoint { rows, keys }
        };
        (0..used).map(point).collect()
    }

    fn admission(&self, events: &Events, one_in: u64) -> Vec<AdmissionPoint> {
        let scale = one_in as f64;
        let point = |(at, &at_least): (usize, &u32)| {
            let rows = self.keys.values().filter(|seen| seen.values >= at_least).count() as u64;
            let missed: u64 = events.reached[..=at].iter().sum();
            // The number of values that a key misses is about the number that it needs, plus its
            // other values of the step that reaches it. The sum is of whole numbers, so that it
            // does not depend on the order of a map.
            let missed_by = |seen: &Seen| {
                let in_step = u64::from(seen.values.div_ceil(seen.lookups.max(1)));
                (u64::from(at_least) - 1 + in_step).min(seen.values.into())
            };
            let squares: u128 =
                self.keys.values().map(|seen| u128::from(missed_by(seen)).pow(2)).sum();
            AdmissionPoint {
                at_least,
                rows: rows * one_in,
                found: 1.0 - share(missed * one_in, self.values),
                found_error: 2.0 * (scale * (scale - 1.0) * squares as f64).sqrt()
                    / self.values.max(1) as f64,
            }
        };
        self.grid.thresholds.iter().enumerate().map(point).collect()
    }

    fn eviction(&self, events: &Events, one_in: u64) -> Vec<EvictionPoint> {
        let shortest = self.steps / SHORTEST;
        let used = self.grid.limits.iter().enumerate();
        let used = used.filter(|&(_, &limit)| limit >= shortest && limit < self.steps);
        let point = |(at, &unseen): (usize, &u64)| {
            let (mut live, mut peak) = (0i64, 0i64);
            for (first, change) in events.first.iter().zip(&events.change[at]) {
                live += *first as i64 + change;
                peak = peak.max(live);
            }
            let lost: u64 = events.returned[at + 1..].iter().sum();
            let returns: u64 = events.returns[at + 1..].iter().sum();
            EvictionPoint {
                unseen,
                rows_end: live.max(0) as u64 * one_in,
                rows_peak: peak as u64 * one_in,
                lost: share(lost * one_in, self.values),
                lost_error: share_error(peak as u64, one_in),
                returns: returns * one_in,
            }
        };
        used.map(point).filter(|point| is_decided(point.rows_peak, one_in)).collect()
    }

    fn cache(&self, events: &Events, one_in: u64) -> Vec<CachePoint> {
        let keys = self.keys.len() as u64 * one_in;
        if keys == 0 {
            return Vec::new();
        }
        let first = self.keys.len() as u64;
        let mut often: Vec<u32> = self.keys.values().map(|seen| seen.lookups).collect();
        often.sort_unstable_by(|a, b| b.cmp(a));
        let all: u64 = often.iter().map(|&n| u64::from(n)).sum();
        let mut held = 0;
        let mut cached = 0u64;
        let largest = keys.next_power_of_two();
        let sizes = (0..u64::BITS - 1).map(|power| 1u64 << power);
        let sizes = sizes.filter(|&rows| rows <= largest && rows >= keys / SMALLEST_CACHE);
        let sizes = sizes.filter(|&rows| is_decided(rows, one_in));
        let point = |rows: u64| {
            let far = events.distances.iter().enumerate();
            let far = far.filter(|&(bin, _)| cache_rows(bin) > rows).map(|(_, &n)| n);
            let missed = first + far.sum::<u64>();
            while held < often.len() && (held as u64) < rows / one_in {
                cached += u64::from(often[held]);
                held += 1;
            }
            // The first lookup of a held row is a miss, because it makes the row.
            let ideal = all - cached + held as u64;
            CachePoint {
                rows,
                lru: 1.0 - share(missed * one_in, self.lookups),
                ideal: 1.0 - share(ideal * one_in, self.lookups),
                error: share_error(rows / one_in, one_in),
            }
        };
        sizes.map(point).collect()
    }
}

/// Returns whether `rows` rows include enough followed keys for a point of a curve.
fn is_decided(rows: u64, one_in: u64) -> bool {
    one_in == 1 || rows >= DECIDING * one_in
}

/// Returns the approximate error of a share, if `followed` of the keys lie on one side of the
/// limit. The effect of a single key near the limit is not known, so the formula is a rule of
/// thumb. Tests compare it with a Zipf stream.
fn share_error(followed: u64, one_in: u64) -> f64 {
    if one_in == 1 { 0.0 } else { 0.5 / (followed.max(1) as f64).sqrt() }
}

/// Returns `part / whole`. The result is at most 1, because a part that is scaled up from a sample
/// can be larger than the whole.
fn share(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64).min(1.0)
}
