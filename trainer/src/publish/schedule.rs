//! The schedule by which the deltas of a chain become a new base.
//!
//! When a chain is long, its layers are merged to a base in the background, and a fixed number of
//! versions later the base is published. So the publication itself writes a delta, as all others
//! do.
//!
//! # Invariants
//! The chain alone decides which layers are merged and which version stands on the result. The time
//! that a merge takes changes neither. So a run that was killed publishes the same versions as one
//! that was not.

use zillion_registry::VersionManifest;

/// The number of versions between the one that is merged and the one that stands on the result. The
/// tables must still know the changes since the merged version then (see
/// [`REMEMBERED`](super::REMEMBERED)).
const LAG: u64 = 12;

/// The part of a chain that a merge joins, as the number of its versions, the base included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    /// The merge on whose result the next version stands.
    pub(super) due: Option<usize>,
    /// The merge to make meanwhile, if the next version does not stand on a result.
    pub(super) next: Option<usize>,
}

impl Schedule {
    /// Returns the schedule of a chain with `max_deltas`. Returns `None` if `max_deltas` leaves no
    /// time for a merge beside the publications.
    pub(super) fn of<'a>(
        chain: impl IntoIterator<Item = &'a VersionManifest>,
        max_deltas: u64,
    ) -> Option<Self> {
        Self::of_rows(chain.into_iter().map(|version| version.layer.rows()), max_deltas)
    }

    fn of_rows(rows: impl IntoIterator<Item = u64>, max_deltas: u64) -> Option<Self> {
        let lag = LAG.min(max_deltas / 2);
        if lag == 0 {
            return None;
        }
        let mut size = ChainSize::default();
        let (mut first, mut last) = (None, 0);
        for rows in rows {
            size.add(rows);
            last = size.versions;
            if first.is_none() && size.needs_base(max_deltas - lag) {
                first = Some(last);
            }
        }
        let Some(first) = first else { return Some(Self { due: None, next: None }) };
        let since = last - first;
        let started = last - since % lag;
        // A merge that has failed is followed by one that joins the chain as it is then.
        let is_due = since > 0 && since.is_multiple_of(lag);
        let count = |versions: u64| usize::try_from(versions).ok();
        let due = if is_due { count(started - lag) } else { None };
        Some(Self { due, next: count(started) })
    }
}

/// The size of the beginning of a chain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChainSize {
    versions: u64,
    base: u64,
    deltas: u64,
}

impl ChainSize {
    /// Adds the next version, whose layer has `rows` rows. The first one is the base.
    pub(super) fn add(&mut self, rows: u64) {
        match self.versions {
            0 => self.base = rows,
            _ => self.deltas = self.deltas.saturating_add(rows),
        }
        self.versions += 1;
    }

    /// Returns whether the next version should stand on a new base: the chain has `max_deltas`
    /// deltas, or they have so many rows that a new base is better for readers.
    pub(super) fn needs_base(self, max_deltas: u64) -> bool {
        const FACTOR: u64 = 4;
        const FLOOR: u64 = 1 << 20;
        let room = self.base.saturating_mul(FACTOR).saturating_add(FLOOR);
        self.versions > max_deltas || self.deltas > room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::REMEMBERED;

    fn schedule(rows: &[u64], max_deltas: u64) -> Schedule {
        Schedule::of_rows(rows.iter().copied(), max_deltas).unwrap()
    }

    #[test]
    fn a_base_is_due_when_a_chain_has_its_deltas() {
        assert!(LAG < REMEMBERED as u64);
        let mut chain = vec![1000];
        for deltas in 1..=512 {
            let at = schedule(&chain, 512);
            let merged = (deltas > 500).then_some(501);
            assert_eq!(at, Schedule { due: None, next: merged }, "{deltas}");
            chain.push(1);
        }
        assert_eq!(schedule(&chain, 512), Schedule { due: Some(501), next: Some(513) });
        // If that merge has failed, the next one joins what the chain has then.
        chain.push(1);
        assert_eq!(schedule(&chain, 512), Schedule { due: None, next: Some(513) });
        chain.extend([1; 11]);
        assert_eq!(schedule(&chain, 512), Schedule { due: Some(513), next: Some(525) });
    }

    #[test]
    fn a_short_chain_leaves_half_of_its_versions_for_the_merge() {
        let at = |versions| schedule(&vec![5; versions], 4);
        assert_eq!(at(2), Schedule { due: None, next: None });
        assert_eq!(at(3), Schedule { due: None, next: Some(3) });
        assert_eq!(at(4), Schedule { due: None, next: Some(3) });
        assert_eq!(at(5), Schedule { due: Some(3), next: Some(5) });
        for max_deltas in [0, 1] {
            assert_eq!(Schedule::of_rows([5, 5, 5], max_deltas), None);
        }
    }

    #[test]
    fn deltas_with_many_rows_are_merged_earlier() {
        let mut chain = vec![100, 1 << 20];
        assert_eq!(schedule(&chain, 512).next, None);
        chain.push(401);
        assert_eq!(schedule(&chain, 512).next, Some(3));
        chain.extend([1; 12]);
        assert_eq!(schedule(&chain, 512).due, Some(3));
    }
}
