//! Generations: what rows remember of when they changed.
//!
//! A dirty epoch ends where a version is published, and its number is in every checkpoint. A
//! snapshot must tell, too, which rows changed after it began, and it may not end an epoch: what is
//! written would then depend on when checkpoints were taken. So the tables count generations. One
//! ends where an epoch ends and where a snapshot begins, and what leaves the tables is numbered by
//! epochs again.
//!
//! # Invariants
//! * Generations only go up, and the epoch of a generation never changes: a later snapshot cuts
//!   only later generations.
//! * Without snapshots, generations are epochs.

use zillion_rows::row::Meta;
use zillion_rows::row::StoredRow;

/// The current generation, and which epoch each of them belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Generations {
    now: u32,
    /// The generations that began with a snapshot, ascending: each is of the epoch of the one
    /// before it.
    cuts: Vec<u32>,
}

impl Generations {
    /// The first generation of a history whose current epoch is this one.
    pub(crate) fn of_epoch(epoch: u32) -> Self {
        Self { now: epoch, cuts: Vec::new() }
    }

    /// The current generation: what rows that change are marked with.
    pub(crate) fn now(&self) -> u32 {
        self.now
    }

    /// Returns the current epoch.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch_of(self.now)
    }

    /// The epoch that a generation belongs to.
    pub(crate) fn epoch_of(&self, generation: u32) -> u32 {
        generation - self.cuts.partition_point(|&cut| cut <= generation) as u32
    }

    /// The last generation so far of an epoch: what changed after it changed after the epoch.
    pub(crate) fn last_of(&self, epoch: u32) -> u32 {
        let epochs = self.cuts.iter().zip(1..).map(|(cut, before)| cut - before);
        epoch.saturating_add(epochs.take_while(|&of| of <= epoch).count() as u32)
    }

    /// Ends the generation and its epoch.
    pub(crate) fn end_epoch(&mut self) {
        self.now = self.now.saturating_add(1);
    }

    /// Ends the generation and not its epoch. Returns the generation that has ended; `None` where
    /// there is no number for the next one.
    pub(crate) fn cut(&mut self) -> Option<u32> {
        let ended = self.now;
        self.now = ended.checked_add(1)?;
        self.cuts.push(self.now);
        Some(ended)
    }

    /// A row as checkpoints have it, with its epoch.
    pub(crate) fn stored<'a>(&self, row: StoredRow<'a>) -> StoredRow<'a> {
        let dirty_epoch = self.epoch_of(row.meta.dirty_epoch);
        StoredRow { meta: Meta { dirty_epoch, ..row.meta }, ..row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_do_not_see_snapshots() {
        let mut generations = Generations::of_epoch(7);
        assert_eq!((generations.now(), generations.epoch(), generations.last_of(7)), (7, 7, 7));
        assert_eq!(generations.cut(), Some(7));
        assert_eq!(generations.cut(), Some(8));
        assert_eq!((generations.now(), generations.epoch()), (9, 7));
        generations.end_epoch();
        assert_eq!((generations.now(), generations.epoch()), (10, 8));
        assert_eq!(generations.cut(), Some(10));
        let epochs: Vec<u32> =
            (5..=11).map(|generation| generations.epoch_of(generation)).collect();
        assert_eq!(epochs, [5, 6, 7, 7, 7, 8, 8]);
        let last: Vec<u32> = (5..=8).map(|epoch| generations.last_of(epoch)).collect();
        assert_eq!(last, [5, 6, 9, 11]);
    }

    #[test]
    fn the_last_era_cannot_be_cut() {
        let mut generations = Generations::of_epoch(u32::MAX);
        assert_eq!(generations.cut(), None);
        assert_eq!(generations.epoch(), u32::MAX);
    }
}
