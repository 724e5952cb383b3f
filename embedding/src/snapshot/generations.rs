//! The snapshot generations. Each row stores the generation in which it changed last.
//!
//! A dirty epoch ends when a version is published, and every checkpoint contains the numbers of
//! epochs. A snapshot must also know which rows changed after it began. But it must not end an
//! epoch, because the bytes of files would then depend on the times of checkpoints. Therefore the
//! tables count generations. A generation ends when an epoch ends, and also when a snapshot begins.
//! In files, rows store epochs instead of generations.
//!
//! # Invariants
//! * Generations only increase. The epoch of a generation never changes.
//! * Without snapshots, each generation has the number of its epoch.

use zillion_rows::row::Meta;
use zillion_rows::row::StoredRow;

/// The current generation, and the mapping of generations to epochs.
#[derive(Clone, Debug)]
pub(crate) struct Generations {
    now: u32,
    /// The generations that began with a snapshot, in ascending order. Each of these generations
    /// belongs to the same epoch as the generation before it.
    cuts: Vec<u32>,
}

impl Generations {
    /// Creates the generations of a history whose current epoch is `epoch`.
    pub(crate) fn of_epoch(epoch: u32) -> Self {
        Self { now: epoch, cuts: Vec::new() }
    }

    /// Returns the current generation, with which changed rows are marked.
    pub(crate) fn now(&self) -> u32 {
        self.now
    }

    /// Returns the epoch of the current generation.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch_of(self.now)
    }

    /// Returns the epoch that a generation belongs to.
    pub(crate) fn epoch_of(&self, generation: u32) -> u32 {
        generation - self.cuts.partition_point(|&cut| cut <= generation) as u32
    }

    /// Returns the newest generation of an epoch. A row with a later generation has changed after
    /// the end of the epoch.
    pub(crate) fn last_of(&self, epoch: u32) -> u32 {
        let epochs = self.cuts.iter().zip(1..).map(|(cut, before)| cut - before);
        epoch.saturating_add(epochs.take_while(|&of| of <= epoch).count() as u32)
    }

    /// Ends the current generation and its epoch.
    pub(crate) fn end_epoch(&mut self) {
        self.now = self.now.saturating_add(1);
    }

    /// Ends the current generation but not its epoch. Returns the generation that has ended, or
    /// `None` if the numbers of generations are used up.
    pub(crate) fn cut(&mut self) -> Option<u32> {
        let ended = self.now;
        self.now = ended.checked_add(1)?;
        self.cuts.push(self.now);
        Some(ended)
    }

    /// Returns a row in the form that checkpoints store: with its epoch in place of its generation.
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
