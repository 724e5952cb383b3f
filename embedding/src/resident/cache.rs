//! The slots of one shard's part of a table on a device that does not hold all rows.
//!
//! The host has every row. A row may have a slot on the device too, and then the newest numbers are
//! there if the row is dirty. This file decides which rows have slots, and knows no device.
//!
//! # Invariants
//! * A row has at most one slot, and a slot has at most one row.
//! * A slot with a dirty row is not taken. Its row is first copied to the host ("cleaned") while
//!   the slot stays in use, so that a row which is wanted again meanwhile costs nothing.
//! * A slot is taken only when the last move of it has run, as far as the host knows, and when the
//!   present batch does not use it. So neither stream ever writes a slot that the other one uses.
//! * A slot that a batch of the window wants is not taken, unless a step has no other.
//!
//! # Policy
//! A hand goes round the slots. A slot has a count of uses, which a visit halves; a slot with the
//! count zero leaves. So a row stays by its count, which decays, and no use of a row moves a list.

use std::collections::VecDeque;

/// The place of a row without a slot, and the row of a slot without a row.
pub(super) const NONE: u32 = u32::MAX;

/// The number of batches whose slots are kept idle. The copy of a dirty row is on the host as many
/// steps later as the host is ahead of the device, which are eight.
const RESERVE: usize = 10;

/// The largest count of uses of a slot.
const MOST_USES: u8 = 7;

/// The slots of a shard.
#[derive(Debug)]
pub(super) struct ShardCache {
    /// The first slot of the shard in the slab of its table.
    first: u32,
    slots: Vec<Slot>,
    /// The slot of each row of the host, counted from `first`, or [`NONE`].
    slot_of: Vec<u32>,
    /// The slots without a row, the longest free first.
    free: VecDeque<u32>,
    /// The slots that are the next to be taken. One that is used again stays in the list without
    /// its mark.
    leaving: VecDeque<u32>,
    /// The number of slots with a mark in `leaving`.
    marked: usize,
    /// The slot that the hand visits next.
    hand: u32,
    /// The number of slots that were taken since the last batch of the window.
    taken: usize,
    /// The largest number of slots that one of the last batches has taken.
    most_taken: usize,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The row of the host, or [`NONE`].
    row: u32,
    /// The newest batch that wants the row.
    wanted: u32,
    /// The newest batch that has begun and uses the row.
    used: u32,
    /// The newest move of the slot.
    moved: u32,
    uses: u8,
    is_dirty: bool,
    is_leaving: bool,
}

/// The outcome of a search for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The slot, which has no row now.
    Slot(u32),
    /// A slot is free after this move has run.
    After(u32),
    /// No slot leaves. Rows must be cleaned first.
    Nothing,
}

/// A dirty row that is copied to the host while it keeps its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cleaned {
    /// The slot, counted from the first one of the shard.
    pub(super) slot: u32,
    pub(super) row: u32,
    /// The newest batch that had used the row.
    used: u32,
}

impl ShardCache {
    /// Makes `count` free slots, of which `first` is the first one in the slab.
    pub(super) fn new(first: u32, count: u32) -> Self {
        let free = Slot {
            row: NONE,
            wanted: 0,
            used: 0,
            moved: 0,
            uses: 0,
            is_dirty: false,
            is_leaving: false,
        };
        Self {
            first,
            slots: vec![free; count as usize],
            slot_of: Vec::new(),
            free: (0..count).collect(),
            leaving: VecDeque::new(),
            marked: 0,
            hand: 0,
            taken: 0,
            most_taken: 0,
        }
    }

    /// Returns the number of slots that should be idle for the next batches of the window.
    pub(super) fn reserve_of_batch(&mut self) -> usize {
        let before = self.most_taken - self.most_taken.div_ceil(16);
        self.most_taken = before.max(std::mem::take(&mut self.taken));
        (self.most_taken * RESERVE).min(self.slots.len() / 4)
    }

    /// Returns the number of slots.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Makes room for rows with numbers below `rows`.
    pub(super) fn reserve(&mut self, rows: usize) {
        if rows > self.slot_of.len() {
            self.slot_of.resize(rows, NONE);
        }
    }

    /// Returns whether a row of the host has a slot.
    pub(super) fn holds(&self, row: u32) -> bool {
        self.slot_of.get(row as usize).is_some_and(|slot| *slot != NONE)
    }

    /// Returns the place in the slab of a slot.
    pub(super) fn place(&self, slot: u32) -> u32 {
        self.first + slot
    }

    /// Learns that a batch of the window wants a row. Returns whether the row has a slot.
    pub(super) fn want(&mut self, row: u32, batch: u32) -> bool {
        let slot = self.slot_of[row as usize];
        if slot == NONE {
            return false;
        }
        let state = &mut self.slots[slot as usize];
        state.wanted = state.wanted.max(batch);
        state.uses = (state.uses + 1).min(MOST_USES);
        true
    }

    /// Learns that the batch which begins uses a row, and changes it if `changes` is true. Returns
    /// the place of the row and its newest move, for which the step waits on the device. Returns
    /// `None` if the row has no slot.
    #[inline(always)]
    pub(super) fn enter(&mut self, row: u32, batch: u32, changes: bool) -> Option<(u32, u32)> {
        let slot = self.slot_of[row as usize];
        if slot == NONE {
            return None;
        }
        let state = &mut self.slots[slot as usize];
        if state.wanted < batch {
            // The batch was not in the window.
            state.wanted = batch;
            state.uses = (state.uses + 1).min(MOST_USES);
        }
        state.used = batch;
        state.is_dirty |= changes;
        Some((self.first + slot, state.moved))
    }

    /// Takes a slot that leaves, for a row of another batch than the `present` one. `landed` is the
    /// newest move that has run, as far as the host knows.
    pub(super) fn take(&mut self, present: u32, landed: u32) -> Taken {
        let mut after = None;
        if let Some(&slot) = self.free.front() {
            let state = &self.slots[slot as usize];
            if state.used < present && state.moved <= landed {
                self.free.pop_front();
                return Taken::Slot(slot);
            }
            after = (state.used < present).then_some(state.moved);
        }
        while let Some(&slot) = self.leaving.front() {
            let state = self.slots[slot as usize];
            let stays = state.wanted >= present;
            if state.is_leaving && !stays && state.moved > landed {
                return Taken::After(after.map_or(state.moved, |after| after.min(state.moved)));
            }
            self.leaving.pop_front();
            if !state.is_leaving {
                continue;
            }
            self.unmark(slot);
            if !stays && !state.is_dirty {
                self.remove_row(slot);
                return Taken::Slot(slot);
            }
        }
        after.map_or(Taken::Nothing, Taken::After)
    }

    /// Takes a slot for a row of the batch `present`, which has begun. Rows that later batches want
    /// lose their slots if there is no other.
    pub(super) fn take_any(&mut self, present: u32, landed: u32) -> Taken {
        let taken = self.take(present, landed);
        if taken != Taken::Nothing {
            return taken;
        }
        let mut after = None;
        for _ in 0..self.slots.len() {
            let slot = self.turn();
            let state = self.slots[slot as usize];
            if state.row == NONE || state.used == present || state.is_dirty {
                continue;
            }
            if state.moved <= landed {
                self.unmark(slot);
                self.remove_row(slot);
                return Taken::Slot(slot);
            }
            after = Some(after.map_or(state.moved, |after: u32| after.min(state.moved)));
        }
        after.map_or(Taken::Nothing, Taken::After)
    }

    /// Gives a slot that was taken to a row. `moved` is the move that brings the row, or zero if
    /// the step makes the row.
    pub(super) fn give(&mut self, slot: u32, row: u32, (wanted, moved): (u32, u32)) {
        let state = &mut self.slots[slot as usize];
        state.row = row;
        self.taken += 1;
        (state.wanted, state.moved, state.uses) = (wanted, moved, 1);
        self.slot_of[row as usize] = slot;
    }

    /// Returns how many slots are free or leave.
    pub(super) fn idle(&self) -> usize {
        self.free.len() + self.marked
    }

    /// Marks slots as leaving until `reserve` slots are idle. Adds those with dirty rows to
    /// `cleaned`, which the move `number` copies to the host.
    pub(super) fn mark_leaving(
        &mut self,
        reserve: usize,
        (present, number): (u32, u32),
        cleaned: &mut Vec<Cleaned>,
    ) {
        // A slot with the largest count leaves at the fourth visit.
        let mut visits = self.slots.len() * 4;
        while self.idle() < reserve && visits > 0 {
            visits -= 1;
            let slot = self.turn();
            let state = &mut self.slots[slot as usize];
            if state.row == NONE || state.is_leaving || state.wanted >= present {
                continue;
            }
            state.uses /= 2;
            if state.uses > 0 {
                continue;
            }
            state.is_leaving = true;
            if state.is_dirty {
                cleaned.push(Cleaned { slot, row: state.row, used: state.used });
                state.moved = number;
            }
            self.leaving.push_back(slot);
            self.marked += 1;
        }
    }

    /// Adds up to `count` dirty rows that the batch `present` does not use to `cleaned`, which the
    /// move `number` copies to the host.
    pub(super) fn clean_any(
        &mut self,
        count: usize,
        (present, number): (u32, u32),
        cleaned: &mut Vec<Cleaned>,
    ) {
        let most = cleaned.len() + count;
        for _ in 0..self.slots.len() {
            if cleaned.len() == most {
                return;
            }
            let slot = self.turn();
            let state = &mut self.slots[slot as usize];
            if state.row != NONE && state.is_dirty && state.used != present {
                cleaned.push(Cleaned { slot, row: state.row, used: state.used });
                state.moved = number;
            }
        }
    }

    /// Learns that the copy of a dirty row is on the host. Returns whether it is the newest one, so
    /// that the host keeps it. Otherwise the row was used again or is gone.
    pub(super) fn land(&mut self, cleaned: Cleaned) -> bool {
        let state = &mut self.slots[cleaned.slot as usize];
        let is_newest = state.row == cleaned.row && state.used == cleaned.used;
        if is_newest {
            state.is_dirty = false;
        }
        is_newest
    }

    /// Takes the slot from a row that the host has freed.
    pub(super) fn free(&mut self, row: u32) {
        let Some(&slot) = self.slot_of.get(row as usize) else { return };
        if slot != NONE {
            self.unmark(slot);
            self.remove_row(slot);
            self.free.push_back(slot);
        }
    }

    /// Learns that the host has given another number to a row.
    pub(super) fn rename(&mut self, row: u32, to: u32) {
        let Some(slot) = self.slot_of.get_mut(row as usize) else { return };
        let slot = std::mem::replace(slot, NONE);
        self.reserve(to as usize + 1);
        self.slot_of[to as usize] = slot;
        if let Some(state) = self.slots.get_mut(slot as usize) {
            state.row = to;
        }
    }

    /// Calls `f` with each dirty row and its place, and takes the rows as clean from then on.
    pub(super) fn take_dirty(&mut self, mut f: impl FnMut(u32, u32)) {
        for (slot, state) in self.slots.iter_mut().enumerate() {
            if state.row != NONE && std::mem::take(&mut state.is_dirty) {
                f(state.row, self.first + slot as u32);
            }
        }
    }

    fn turn(&mut self) -> u32 {
        let slot = self.hand;
        self.hand = if slot as usize + 1 < self.slots.len() { slot + 1 } else { 0 };
        slot
    }

    fn unmark(&mut self, slot: u32) {
        let is_leaving = &mut self.slots[slot as usize].is_leaving;
        self.marked -= usize::from(std::mem::take(is_leaving));
    }

    fn remove_row(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        self.slot_of[state.row as usize] = NONE;
        (state.row, state.is_dirty, state.uses) = (NONE, false, 0);
    }
}

#[cfg(test)]
mod tests;
