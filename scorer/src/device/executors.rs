//! The executors of a model, and the time at which they give memory back.
//!
//! A list of launches belongs to a capacity, and a small batch in a large capacity starts blocks
//! that have nothing to do. So there is an executor for each bucket of rows, which is made when the
//! first batch of its size comes. Its memory grows to its largest batch. It is dropped if no batch
//! of its size has come for [`IDLE_TIME`], or if it is in use and its largest batch was much larger
//! than recent ones. The executor that was used last stays while nothing comes, because the next
//! batch probably needs it; a model that lacks its memory drops it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use zillion_nn::GpuExecutor;

use super::fill::FillBuffers;
use crate::error::Result;
use crate::scratch::Recent;

/// The largest numbers of rows of the buckets. Larger batches are one more bucket.
pub(super) const BUCKETS: [usize; 4] = [256, 1024, 4096, 16_384];
/// The time without a batch after which an executor is dropped.
const IDLE_TIME: Duration = Duration::from_secs(30);
/// The time since the last batch within which the sizes of recent batches count.
const IN_USE: Duration = Duration::from_secs(3);

/// The executors of a model by bucket. One thread at a time has them.
#[derive(Debug, Default)]
pub(crate) struct Executors {
    by_bucket: BTreeMap<usize, Bucket>,
}

/// The executor of a bucket, with its buffers.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) executor: GpuExecutor,
    pub(super) buffers: FillBuffers,
    /// The size of the largest batch: the number of its rows and values.
    largest: usize,
    recent: Recent,
    used: Instant,
}

fn bucket_of(rows: usize) -> usize {
    BUCKETS.into_iter().find(|&most| rows <= most).unwrap_or(usize::MAX)
}

/// Returns whether an executor is dropped that was used `idle` ago. `limit` is the largest size of
/// which an executor is kept for recent batches.
fn is_unneeded(idle: Duration, is_last: bool, largest: usize, limit: usize) -> bool {
    let is_idle = idle > IDLE_TIME && !is_last;
    is_idle || (idle <= IN_USE && largest > limit)
}

impl Executors {
    /// Returns the executor for a batch of this number of rows, which `make` makes if there is
    /// none. `size` is the number of rows and values of the batch.
    pub(super) fn of(
        &mut self,
        rows: usize,
        size: usize,
        now: Instant,
        make: impl FnOnce() -> Result<GpuExecutor>,
    ) -> Result<&mut Bucket> {
        let bucket = match self.by_bucket.entry(bucket_of(rows)) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => {
                let (executor, buffers) = (make()?, FillBuffers::default());
                let recent = Recent::default();
                place.insert(Bucket { executor, buffers, largest: 0, recent, used: now })
            }
        };
        bucket.largest = bucket.largest.max(size);
        bucket.recent.add(size, now);
        bucket.used = now;
        Ok(bucket)
    }

    /// Drops all executors with their memory.
    pub(super) fn clear(&mut self) {
        self.by_bucket.clear();
    }

    /// Takes out the executors that recent batches did not need. The caller drops them when it
    /// holds no lock.
    pub(super) fn take_surplus(&mut self, now: Instant) -> Vec<Bucket> {
        let last = self.by_bucket.values().map(|bucket| bucket.used).max();
        let is_surplus = |_: &usize, bucket: &mut Bucket| {
            let idle = now.saturating_duration_since(bucket.used);
            let is_last = Some(bucket.used) == last;
            is_unneeded(idle, is_last, bucket.largest, bucket.recent.limit(now))
        };
        self.by_bucket.extract_if(.., is_surplus).map(|(_, bucket)| bucket).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_is_dropped_if_it_is_idle_or_too_large_for_its_batches() {
        let after = Duration::from_secs;
        assert!(is_unneeded(after(31), false, 10, 100) && !is_unneeded(after(29), false, 10, 100));
        assert!(!is_unneeded(after(3600), true, 10, 100));
        assert!(is_unneeded(after(1), true, 101, 100) && !is_unneeded(after(1), true, 100, 100));
        // Without batches, the sizes of recent ones say nothing.
        assert!(!is_unneeded(after(20), true, 101, 0));
    }
}
