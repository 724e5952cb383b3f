//! Pruning by magnitude: the weights of a table nearest to zero become zero (Han et al. 2015,
//! "Learning both Weights and Connections for Efficient Neural Networks"; for the embeddings of
//! click models, Deng et al. 2021, "DeepLight").
//!
//! Each segment of a row is pruned by itself, because vectors and linear weights have different
//! magnitudes. The threshold of a segment is the exact quantile over all rows of the table. It is
//! found by counting: one pass counts the first bits of all magnitudes, and a second pass counts
//! the last bits of those that share their first bits with the threshold. Counts are integers, so
//! the result does not depend on the number of shards and threads.
//!
//! A pruned weight is not marked. A later step may move it away from zero, and the next pruning
//! decides anew. So a weight that was pruned too early comes back.
//!
//! Rejected: a mask that keeps pruned weights at zero. It needs a bit for each weight in memory and
//! in checkpoints, and a branch in each optimizer. Rejected: sampling the rows for the threshold.
//! The share of zeros would then only be near the one that was asked for.

mod table;

use zillion_device::Workers;
use zillion_feature::TableId;

use crate::error::{Error, Result};
use crate::set::{TableSet, each};

/// The counts of the weights of a table after pruning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The number of weights of all rows.
    pub weights: u64,
    /// The number of weights that are zero.
    pub zeros: u64,
}

impl Pruned {
    /// Adds the counts of another table.
    pub fn add(&mut self, other: Self) {
        self.weights += other.weights;
        self.zeros += other.zeros;
    }
}

/// The bits of a number without its sign. As integers, they have the order of the magnitudes.
const MAGNITUDE: u32 = u32::MAX >> 1;

/// The number of the last bits of a magnitude, which the second pass counts.
const LAST_BITS: u32 = 16;

/// The weights that a pass counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counted {
    /// All weights, by the first bits of their magnitudes.
    First,
    /// The weights with these first bits, by the last bits of their magnitudes.
    Last(u32),
}

impl Counted {
    /// Returns the number of bins of the pass.
    pub(crate) fn bins(self) -> usize {
        match self {
            Self::First => 1 << (MAGNITUDE.count_ones() - LAST_BITS),
            Self::Last(_) => 1 << LAST_BITS,
        }
    }

    /// Returns the bin of a weight, or `None` if the pass does not count the weight.
    pub(crate) fn bin_of(self, weight: f32) -> Option<usize> {
        let magnitude = magnitude(weight);
        let first = magnitude >> LAST_BITS;
        match self {
            Self::First => Some(first as usize),
            Self::Last(wanted) => {
                (first == wanted).then_some((magnitude & ((1 << LAST_BITS) - 1)) as usize)
            }
        }
    }
}

/// Returns the bits of the magnitude of a weight.
pub(crate) fn magnitude(weight: f32) -> u32 {
    weight.to_bits() & MAGNITUDE
}

impl TableSet {
    /// Sets the weights with the smallest magnitudes of each segment to zero, so that at least the
    /// given share of the segment's weights over all rows is zero. Weights of the same magnitude
    /// are pruned together. Optimizer state does not change. Rows that change belong to the next
    /// delta. A frozen table does not change.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`](crate::Error::Mismatch) if the table is unknown, has narrow rows
    /// or rows on disk, or has weights that cannot be zero, and
    /// [`Error::Misuse`](crate::Error::Misuse) if the share is not in `0..=1` or if this process
    /// holds only a part of the table.
    pub fn prune(&mut self, workers: &Workers, table: TableId, share: f64) -> Result<Pruned> {
        let shape = self.shape(table)?.clone();
        let index = table.index();
        self.check_prunable(index, share)?;
        let mut pruned = Pruned::default();
        let mut limits = Vec::with_capacity(shape.segments.len());
        for segment in 0..shape.segments.len() {
            let dim = shape.segments[segment].weights.len() as u64;
            let weights = self.rows(table) * dim;
            let limit = match self.frozen[index] {
                true => None,
                false => self.find_limit(
                    workers,
                    (index, segment),
                    (share * weights as f64).ceil() as u64,
                ),
            };
            pruned.weights += weights;
            limits.push(limit);
        }
        let generation = self.generations.now();
        if limits.iter().any(Option::is_some) {
            each(workers, &mut self.shards, |_, shard| {
                shard.tables[index].prune(&limits, generation);
                Ok(())
            })?;
            self.trim_changes();
        }
        let zeros = workers.map(self.shards.len(), |i| self.shards[i].tables[index].count_zeros());
        pruned.zeros = zeros.into_iter().sum();
        Ok(pruned)
    }

    fn check_prunable(&self, index: usize, share: f64) -> Result<()> {
        if !(0.0..=1.0).contains(&share) {
            let reason = format!("the share of pruned weights is {share}; give one from 0 to 1");
            return Err(Error::misuse(reason));
        }
        if self.owned[index] != zillion_rows::part::ALL_SLOTS {
            let reason = "a table of which this process holds a part cannot be pruned, because \
                          the threshold is one of all rows; hold the whole table";
            return Err(Error::misuse(reason));
        }
        let shape = &self.shapes[index];
        let refuse = |reason: &str| Err(Error::mismatch(shape.name(), reason.to_owned()));
        if shape.narrow.is_some() {
            return refuse("rows that grow cannot be pruned; remove `grow`, or do not prune it");
        }
        if self.shards.iter().any(|shard| shard.tables[index].spill.is_some()) {
            return refuse("rows on disk cannot be pruned; keep all rows in memory");
        }
        let bounds = shape.spec.segments.iter().filter_map(|segment| segment.bounds);
        match bounds.into_iter().any(|bounds| bounds.low > 0.0 || bounds.high < 0.0) {
            true => refuse("the bounds of a segment exclude zero; change them, or do not prune it"),
            false => Ok(()),
        }
    }

    /// Returns the `count`-th smallest magnitude of the weights of a segment, or `None` if `count`
    /// is 0.
    fn find_limit(&self, workers: &Workers, place: (usize, usize), count: u64) -> Option<u32> {
        let (first, before) = find_bin(&self.count(workers, place, Counted::First), count)?;
        let last = self.count(workers, place, Counted::Last(first as u32));
        let (last, _) = find_bin(&last, count - before)?;
        Some((first as u32) << LAST_BITS | last as u32)
    }

    /// Counts the weights of a segment by the bins of a pass, over all shards.
    fn count(
        &self,
        workers: &Workers,
        (table, segment): (usize, usize),
        counted: Counted,
    ) -> Vec<u64> {
        let by_shard = workers.map(self.shards.len(), |shard| {
            let mut bins = vec![0u64; counted.bins()];
            self.shards[shard].tables[table].count_magnitudes(segment, counted, &mut bins);
            bins
        });
        let mut sum = vec![0; counted.bins()];
        for bins in by_shard {
            sum.iter_mut().zip(bins).for_each(|(sum, own)| *sum += own);
        }
        sum
    }
}

/// Returns the first bin up to which at least `count` weights lie, and the number of weights in the
/// bins before it. Returns `None` if `count` is 0 or above the number of all weights.
fn find_bin(bins: &[u64], count: u64) -> Option<(usize, u64)> {
    let mut before = 0;
    for (bin, &weights) in bins.iter().enumerate() {
        if count > 0 && before + weights >= count {
            return Some((bin, before));
        }
        before += weights;
    }
    None
}
