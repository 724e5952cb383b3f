//! The squared norm of a step's gradients on a device. Sums have the order of the host (see
//! `set/partials.rs`): rows of a slot, slots of a group, groups of all tables.

use std::ops::Range;

use zillion_device::gpu::kernels::{Geometry, ORDERED_SUMS, OrderedSums};
use zillion_device::gpu::{Gpu, GpuError, Memory, Stream};
use zillion_feature::{SLOTS, TablePlan};

use crate::groups::GROUPS;
use crate::resident::block::Block;
use crate::resident::device::{Owned, ResidentOptions, launch};
use crate::resident::layout::NormLists;

/// The memory of squared norms and of their sums.
#[derive(Debug)]
pub(super) struct Norm {
    memory: Owned,
    lists: NormLists,
}

/// The lists of a step that say which numbers belong to a sum, as they are made.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// The first squared norm of each slot.
    slots: Vec<u32>,
    /// The first sum of a slot of each group.
    groups: Vec<u32>,
    /// The number of squared norms so far.
    squares: u32,
    /// The number of squared norms that are not part of the norm.
    spare: u32,
    /// The places of the squared norms of a table's keys.
    order: Vec<u32>,
}

impl Norm {
    pub(super) fn new(options: &ResidentOptions, lists: &NormLists) -> Result<Self, GpuError> {
        let numbers = lists.places + lists.slots + lists.groups;
        let memory = Owned::new(options, numbers * size_of::<f64>())?;
        Ok(Self { memory, lists: lists.clone() })
    }

    /// Returns the bytes of the device's memory that the numbers take.
    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Returns the address of the squared norm at a place.
    pub(super) fn square(&self, place: usize) -> u64 {
        self.memory.address() + (place * size_of::<f64>()) as u64
    }

    /// Enqueues the sums of the squared norms.
    pub(super) fn sum(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        block: &Block,
        out: Memory,
    ) -> Result<(), GpuError> {
        let NormLists { places, slots, groups, .. } = self.lists;
        let [of_slots, of_groups] = [self.square(places), self.square(places + slots)];
        let levels = [
            (self.square(0), of_slots, self.lists.slot_starts, slots),
            (of_slots, of_groups, self.lists.group_starts, groups),
            (of_groups, out.address(), self.lists.total_starts, 1),
        ];
        for (input, out, starts, n) in levels {
            let n = n as u32;
            let sums = OrderedSums { input, out, starts: block.at(starts), n, unused: 0 };
            launch(gpu, stream, &ORDERED_SUMS, (Geometry::columns(n), &sums), n)?;
        }
        Ok(())
    }
}

impl Starts {
    /// Begins the lists of a step with all rows of the swept tables. Each table has the rows of
    /// each slot that has rows, in order.
    pub(super) fn begin<'a>(&mut self, swept: impl Iterator<Item = &'a [(usize, Range<u32>)]>) {
        self.slots.clear();
        self.groups.clear();
        (self.squares, self.spare) = (0, 0);
        for slots in swept {
            let first = self.squares;
            self.add_slots(slots.iter().map(|(slot, rows)| (*slot, first + rows.start)));
            self.squares += slots.last().map_or(0, |(_, rows)| rows.end);
        }
    }

    /// Adds the keys of a plan without those at the positions `waiting`. Returns the places of the
    /// squared norms of the keys. Those that are not part of the norm lie behind `squares` others.
    pub(super) fn add_keys(&mut self, table: &TablePlan, waiting: &[u32], squares: u32) -> &[u32] {
        let first = self.squares;
        let before = |key: u32| waiting.partition_point(|&position| position < key) as u32;
        let starts =
            table.slots.iter().map(|&(slot, key)| (usize::from(slot), first + key - before(key)));
        self.add_slots(starts);
        self.order.clear();
        let mut left = waiting.iter().copied().peekable();
        for key in 0..table.keys.len() as u32 {
            let place =
                if left.next_if_eq(&key).is_some() { &mut self.spare } else { &mut self.squares };
            self.order.push(*place);
            *place += 1;
        }
        waiting.iter().for_each(|&position| self.order[position as usize] += squares);
        &self.order
    }

    fn add_slots(&mut self, starts: impl Iterator<Item = (usize, u32)>) {
        let mut next = 0;
        for (slot, start) in starts {
            let group = slot * GROUPS / SLOTS;
            for _ in next..=group {
                self.groups.push(self.slots.len() as u32);
            }
            next = next.max(group + 1);
            self.slots.push(start);
        }
        for _ in next..GROUPS {
            self.groups.push(self.slots.len() as u32);
        }
    }

    /// Writes the lists to the block. Sums that no slot needs are empty.
    pub(super) fn write(&mut self, block: &mut Block) -> Result<(), GpuError> {
        let lists = block.layout.norm.clone();
        self.groups.push(self.slots.len() as u32);
        self.slots.resize(lists.slots + 1, self.squares);
        block.write(lists.slot_starts, &self.slots)?;
        block.write(lists.group_starts, &self.groups)?;
        block.write(lists.total_starts, &[0, lists.groups as u32])
    }
}
