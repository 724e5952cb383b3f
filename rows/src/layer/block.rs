//! The block of keys that a lookup works on.
//!
//! A lookup in records is a pipeline. A key goes through several stages, each of which reads what
//! the stage before has prefetched, and the stages of one key are [`AHEAD`] keys apart. So at any
//! time the cache misses of several keys overlap, and also with the work on other keys. With waves
//! over a few keys, the misses of a wave have to end before the next wave begins.

/// The largest number of keys of a block. The pipeline is empty at the beginning and at the end of
/// a block, so a block is much longer than the pipeline.
pub(super) const BLOCK: usize = 1024;

/// The number of keys from one stage of a lookup to the next.
pub(super) const AHEAD: usize = 16;

/// The positions of the keys of a block that no layer has, so far.
#[derive(Debug)]
pub(super) struct Open {
    positions: [u16; BLOCK],
    count: usize,
}

impl Open {
    /// Returns all positions of a block with `count` keys, at most [`BLOCK`].
    #[inline(always)]
    pub(super) fn all(count: usize) -> Self {
        let mut positions = [0; BLOCK];
        for (position, at) in positions.iter_mut().zip(0..count as u16) {
            *position = at;
        }
        Self { positions, count: count.min(BLOCK) }
    }

    /// Returns the number of positions.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the position with the index `step - stage * AHEAD`, or `None` if there is none. This
    /// is the key that is in the stage `stage` in this step of the pipeline.
    #[inline(always)]
    pub(super) fn in_stage(&self, stage: usize, step: usize) -> Option<usize> {
        let index = step.wrapping_sub(stage * AHEAD);
        let position = self.positions.get(index)?;
        (index < self.count).then_some(usize::from(*position))
    }

    /// Returns the position with the index `index`, or 0 if there is none.
    #[inline(always)]
    pub(super) fn at(&self, index: usize) -> usize {
        self.positions.get(index).map_or(0, |&position| usize::from(position))
    }

    /// Sets the position with the index `index`. A lookup replaces positions that went through all
    /// stages by those that stay.
    #[inline(always)]
    pub(super) fn set(&mut self, index: usize, position: usize) {
        if let Some(slot) = self.positions.get_mut(index) {
            *slot = position as u16;
        }
    }

    /// Keeps only the first `count` positions.
    #[inline(always)]
    pub(super) fn truncate(&mut self, count: usize) {
        self.count = self.count.min(count);
    }

    /// Yields the positions that are left.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.positions.iter().take(self.count).map(|&position| usize::from(position))
    }
}
