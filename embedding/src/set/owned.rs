//! The slots of each table that a set owns. A set that owns only some slots writes and restores
//! only their rows, and other sets write the files of the other slots.

use std::ops::Range;

use zillion_feature::TableId;
use zillion_rows::part::ALL_SLOTS;

use crate::error::{Error, Result};
use crate::set::TableSet;
use crate::snapshot::files::Kind;

impl TableSet {
    /// Sets the slots that this set owns, one range for each table. A new set owns all slots. A
    /// range may be empty. Checkpoints hold only the owned slots, and [`TableSet::restore`] reads
    /// only the owned slots. If a range changes, no earlier checkpoint can be the base of a
    /// checkpoint of changes.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`] if a range is not a range of slots, and [`Error::Misuse`] if
    /// there is not one range for each table, or while a checkpoint is being written.
    pub fn own(&mut self, slots: Vec<Range<usize>>) -> Result<()> {
        if self.snapshot.is_some() {
            return Err(Error::misuse("a checkpoint is being written; finish it first"));
        }
        if slots.len() != self.shapes.len() {
            return Err(Error::misuse(format!(
                "{} ranges of slots were given for {} tables; give one range for each table",
                slots.len(),
                self.shapes.len()
            )));
        }
        for (shape, slots) in self.shapes.iter().zip(&slots) {
            if slots.start > slots.end || slots.end > ALL_SLOTS.end {
                let reason = format!(
                    "{}..{} is not a range of slots; give a range of {}..{}",
                    slots.start, slots.end, ALL_SLOTS.start, ALL_SLOTS.end
                );
                return Err(Error::mismatch(shape.name(), reason));
            }
        }
        if self.owned != slots {
            self.owned = slots;
            self.forget_marks();
        }
        Ok(())
    }

    /// Returns the slots of a table that this set owns. The range is empty if there is no such
    /// table.
    pub fn owned(&self, table: TableId) -> Range<usize> {
        self.owned.get(table.index()).cloned().unwrap_or(0..0)
    }

    /// Checks that the tables hold nothing outside of the owned slots, because a checkpoint would
    /// lose it.
    pub(crate) fn check_owned(&self) -> Result<()> {
        for (at, (shape, owned)) in self.shapes.iter().zip(&self.owned).enumerate() {
            for shard in &self.shards {
                let mut others = shard.slots().filter(|slot| !owned.contains(slot));
                let is_filled = |slot: &usize| {
                    Kind::ALL.iter().any(|kind| kind.in_slot(&shard.tables[at], *slot) > 0)
                };
                if let Some(slot) = others.find(is_filled) {
                    let reason = format!(
                        "slot {slot} has rows or waiting keys, but the set owns only the slots {}..{}; \
                         own the slot too, or restore the set from a checkpoint",
                        owned.start, owned.end
                    );
                    return Err(Error::mismatch(shape.name(), reason));
                }
            }
        }
        Ok(())
    }
}
