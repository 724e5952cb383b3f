//! The eviction in one shard's part of a table at its limit. It finds the keys of a step that need
//! a row, and evicts rows to make room.
//!
//! The set of tables decides over all shards which keys get a row and which rows are evicted (see
//! `eviction/set.rs`). This file does the work of one shard.

use std::borrow::Cow;
use std::ops::Range;

use zillion_device::simd::vectorised;
use zillion_feature::FeatureKey;

use crate::error::Result;
use crate::eviction::capacity::Visit;
use crate::eviction::priority::{Priority, ordered_bits};
use crate::index::{AtHome, Entry};
use crate::prefetch::in_turn;
use crate::table::Table;
use crate::table::push::Times;

/// The number of rows between the prefetch of a row and its use.
pub(crate) const AHEAD: usize = 16;

/// The expected effect of a push on the keys of one shard.
#[derive(Debug, Default)]
pub(crate) struct Foreseen {
    /// The positions in the plan of the keys for which the push would create a row, in ascending
    /// order.
    pub(crate) new: Vec<u32>,
    /// The index entry of each key, or [`Entry::NONE`] for a key without a row and for a key that
    /// was not looked up.
    pub(crate) rows: Vec<Entry>,
}

/// A row that an eviction at the limit visits, with its priority.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranked {
    /// The rank of the row: its priority as ordered bits, and then its key.
    pub(crate) rank: (u64, FeatureKey),
    pub(crate) entry: Entry,
}

#[cfg(test)]
impl Ranked {
    pub(crate) fn at(priority: u64, key: u64) -> Self {
        Self { rank: (priority, FeatureKey(key)), entry: Entry::full(0) }
    }
}

impl Table {
    /// Returns the effect that a push would have on the keys at the positions `wanted`: the rows
    /// that it would create, and the index entries of the keys. A push creates the row of a key if
    /// the key has no row and is admitted.
    pub(crate) fn foresee(
        &self,
        keys: &[FeatureKey],
        occurrences: Times<'_>,
        wanted: &[Range<usize>],
        step: u32,
    ) -> Result<Foreseen> {
        let known = self.known.rows(keys, &self.index);
        let mut foreseen = Foreseen { new: Vec::new(), rows: vec![Entry::NONE; keys.len()] };
        // Groups that follow each other are looked up together.
        for near in wanted.chunk_by(|a, b| a.end == b.start) {
            let first = near[0].start;
            let count = near.iter().map(|run| run.len()).sum();
            vectorised(
                #[inline(always)]
                || {
                    in_turn(
                        &mut foreseen,
                        count,
                        #[inline(always)]
                        |_, i| {
                            if known.is_some_and(|rows| !rows[first + i].is_none()) {
                                return;
                            }
                            self.index.prefetch(keys[first + i]);
                            if let Some(candidates) = &self.candidates {
                                candidates.prefetch(keys[first + i]);
                            }
                        },
                        #[inline(always)]
                        |_, i| match known {
                            Some(rows) if !rows[first + i].is_none() => rows[first + i],
                            _ => match self.index.get_at_home(keys[first + i]) {
                                AtHome::Found(entry) => entry,
                                AtHome::Absent => Entry::NONE,
                                AtHome::Beyond => Entry::UNDECIDED,
                            },
                        },
                        #[inline(always)]
                        |_, i| Ok(self.index.get(keys[first + i]).unwrap_or(Entry::NONE)),
                        #[inline(always)]
                        |foreseen, i, entry| {
                            let i = first + i;
                            foreseen.rows[i] = entry;
                            let is_new =
                                entry.is_none() && !self.waits(keys[i], || occurrences.of(i), step);
                            if is_new {
                                foreseen.new.push((occurrences.first + i) as u32);
                            }
                        },
                    )
                },
            )?;
        }
        Ok(foreseen)
    }

    /// Counts a key that gets no row because the table has no room, and returns `true`. If the key
    /// would also wait for admission, the function counts nothing and returns `false`.
    #[cold]
    pub(crate) fn count_refused(
        &mut self,
        key: FeatureKey,
        times: impl FnOnce() -> u32,
        step: u32,
    ) -> bool {
        if self.waits(key, times, step) {
            return false;
        }
        self.counters.refused_full += 1;
        self.demand.of_slot(key.slot()).rows += 1;
        true
    }

    /// Returns the priority of a row. The norm of a narrow row is computed only from the floats
    /// that the row has.
    #[inline(always)]
    pub(crate) fn row_priority(&self, priority: Priority, entry: Entry) -> f64 {
        let (shape, companion) = self.companion_of(entry);
        let weights = match priority.needs_weights() {
            true => self.weights_of(entry).to_floats(),
            false => Cow::Borrowed(&[][..]),
        };
        priority.of_row(shape.meta(companion), shape.used(companion), &weights)
    }

    /// Returns the rows of the visited slots with their ranks. Pinned rows are left out.
    pub(crate) fn rank_rows(&self, visit: &Visit) -> Vec<Ranked> {
        let Some(priority) = self.shape.priority else { return Vec::new() };
        let slots = visit.slots(self.index.slots());
        let rows = slots.map(|slot| self.index.slot_len(slot)).sum();
        let mut ranked: Vec<Ranked> = Vec::with_capacity(rows);
        for slot in visit.slots(self.index.slots()) {
            let pinned = self.shape.pinned.of_slot(slot);
            let entries = self.index.slot_entries(slot).filter(|(key, _)| !pinned.contains(key));
            ranked.extend(entries.map(|(key, entry)| Ranked { rank: (0, key), entry }));
        }
        for i in 0..ranked.len() {
            if let Some(soon) = ranked.get(i + AHEAD) {
                self.prefetch_companion(soon.entry);
                if priority.needs_weights() {
                    self.prefetch_weights(soon.entry);
                }
            }
            let found = &mut ranked[i];
            found.rank.0 = ordered_bits(self.row_priority(priority, found.entry));
        }
        ranked
    }

    /// Evicts the rows of [`Table::rank_rows`] whose rank is at most `highest`, and returns their
    /// number.
    pub(crate) fn make_room(
        &mut self,
        visit: &Visit,
        ranked: &[Ranked],
        highest: (u64, FeatureKey),
    ) -> Result<usize> {
        let shape = self.shape.clone();
        let goes = |found: &Ranked| found.rank <= highest;
        let keeps_free_rows = self.keeps_free_rows();
        // The companion row is read again only where changes are tracked or a snapshot is open.
        let reads_companion = self.changes.is_some() || self.snapshot.is_some();
        let (mut next, mut all_gone) = (0, 0);
        // `ranked` holds the rows of one slot next to each other, slot after slot.
        for slot in visit.slots(self.index.slots()) {
            let mut gone = 0;
            while let Some(&Ranked { rank: (_, key), entry }) = ranked.get(next)
                && key.slot() == slot
            {
                if let Some(soon) = ranked.get(next + AHEAD).filter(|soon| goes(soon)) {
                    self.index.prefetch(soon.rank.1);
                    if reads_companion {
                        self.prefetch_companion(soon.entry);
                    }
                }
                if goes(&ranked[next]) {
                    self.take_out(key, entry);
                    match keeps_free_rows {
                        true => {
                            self.free_list.rows.push(entry.row());
                            self.slabs.note_unused(entry.row());
                        }
                        false => self.free_row(key, entry),
                    }
                    gone += 1;
                } else {
                    self.place_low(key, entry)?;
                }
                next += 1;
            }
            for &key in shape.pinned.of_slot(slot) {
                if let Some(entry) = self.index.get(key) {
                    self.place_low(key, entry)?;
                }
            }
            if gone > 0 {
                self.counters.displaced += gone;
                self.index.tidy(slot);
                all_gone += gone as usize;
            }
        }
        Ok(all_gone)
    }
}
