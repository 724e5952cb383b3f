//! The layout of the block that a step uploads. Launches read it at fixed addresses, so it changes
//! only if a batch has more keys than any batch before.

use std::ops::Range;

use zillion_device::gpu::kernels::RowRule;
use zillion_feature::SLOTS;

use crate::groups::GROUPS;

/// The alignment of a list in the block.
const ALIGNMENT: usize = 16;

/// The room that a table needs in the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableNeeds {
    /// The largest number of unique keys of a batch so far.
    pub(super) keys: usize,
    /// The number of rules of a row.
    pub(super) rules: usize,
    /// Whether the launches read keys.
    pub(super) reads_keys: bool,
    /// Whether steps create rows.
    pub(super) creates: bool,
    /// The part of the table in the norm of gradients.
    pub(super) norm: NormPart,
}

/// The part of a table in the norm of a step's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormPart {
    /// The table has no part, because the job does not clip or the table is frozen.
    Nothing,
    /// The norms of the rows of the batch.
    Keys,
    /// The norms of all rows: their number, and the number of slots that have rows.
    Everything { rows: usize, slots: usize },
}

/// The offsets of a table's lists in the block, in bytes.
#[derive(Clone, Debug)]
pub(super) struct TableLists {
    pub(super) needs: TableNeeds,
    /// The number of unique keys.
    pub(super) count: usize,
    /// The number of new rows.
    pub(super) new_count: usize,
    /// The counter of gradients that are not finite. The counter of saturated weights follows it.
    pub(super) counters: usize,
    pub(super) rounding: usize,
    pub(super) rules: usize,
    pub(super) slots: usize,
    pub(super) keys: usize,
    /// The places of the squared norms of the batch's rows.
    pub(super) order: usize,
    pub(super) new_slots: usize,
    pub(super) new_keys: usize,
}

/// The lists of all tables, and the lists of the norm.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) tables: Vec<TableLists>,
    /// The results of a step: whether it was skipped, then the counters of each table.
    pub(super) results: Range<usize>,
    pub(super) norm: NormLists,
    /// The number of bytes that each step uploads. New rows follow.
    pub(super) main: usize,
    pub(super) bytes: usize,
}

/// The sizes of the norm's sums, and the offsets of their first numbers in the block.
#[derive(Clone, Debug, Default)]
pub(super) struct NormLists {
    /// The number of squared norms of rows that can be part of the norm.
    pub(super) squares: usize,
    /// The number of all places for squared norms.
    pub(super) places: usize,
    /// The number of sums over the rows of a slot.
    pub(super) slots: usize,
    /// The number of sums over the slots of a group.
    pub(super) groups: usize,
    pub(super) slot_starts: usize,
    pub(super) group_starts: usize,
    pub(super) total_starts: usize,
}

/// Takes parts of the block one after the other.
#[derive(Default)]
struct Cursor(usize);

impl Cursor {
    fn take(&mut self, bytes: usize) -> usize {
        let at = self.0.next_multiple_of(ALIGNMENT);
        self.0 = at + bytes;
        at
    }

    fn list<T>(&mut self, count: usize) -> usize {
        self.take(count * size_of::<T>())
    }
}

impl Layout {
    pub(super) fn new(needs: &[TableNeeds]) -> Self {
        let mut at = Cursor::default();
        let results_start = at.list::<u32>(1 + 2 * needs.len());
        let results = results_start..at.0;
        let counts = at.list::<u32>(2 * needs.len());
        let table = |(number, &needs): (usize, &TableNeeds)| {
            let keys = if needs.reads_keys { needs.keys } else { 0 };
            let order = if needs.norm == NormPart::Keys { needs.keys } else { 0 };
            TableLists {
                needs,
                count: counts + 8 * number,
                new_count: counts + 8 * number + 4,
                counters: results_start + 4 * (1 + 2 * number),
                rounding: at.list::<u64>(1),
                rules: at.list::<RowRule>(needs.rules),
                slots: at.list::<u32>(needs.keys),
                keys: at.list::<u64>(keys),
                order: at.list::<u32>(order),
                new_slots: 0,
                new_keys: 0,
            }
        };
        let mut tables: Vec<TableLists> = needs.iter().enumerate().map(table).collect();
        let norm = NormLists::new(needs, &mut at);
        let main = at.0;
        for table in tables.iter_mut().filter(|table| table.needs.creates) {
            table.new_slots = at.list::<u32>(table.needs.keys);
            table.new_keys = at.list::<u64>(table.needs.keys);
        }
        Self { tables, results, norm, main, bytes: at.0 }
    }
}

impl NormLists {
    fn new(needs: &[TableNeeds], at: &mut Cursor) -> Self {
        let mut norm = Self::default();
        for table in needs {
            let (rows, slots, more) = match table.norm {
                NormPart::Nothing => continue,
                NormPart::Keys => (table.keys, table.keys.min(SLOTS), table.keys),
                NormPart::Everything { rows, slots } => (rows, slots, 0),
            };
            norm.squares += rows;
            norm.places += rows + more;
            norm.slots += slots;
            norm.groups += GROUPS;
        }
        norm.slot_starts = at.list::<u32>(norm.slots + 1);
        norm.group_starts = at.list::<u32>(norm.groups + 1);
        norm.total_starts = at.list::<u32>(2);
        norm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_do_not_overlap() {
        let table = |keys, norm| TableNeeds {
            keys,
            rules: 2,
            reads_keys: keys % 2 == 1,
            creates: keys > 3,
            norm,
        };
        let whole = NormPart::Everything { rows: 100, slots: 30 };
        let needs = [table(7, NormPart::Keys), table(0, whole), table(4, NormPart::Nothing)];
        let layout = Layout::new(&needs);
        let mut parts = vec![layout.results.clone()];
        let mut add = |at: usize, bytes: usize| parts.push(at..at + bytes);
        for table in &layout.tables {
            let keys = table.needs.keys;
            add(table.count, 8);
            add(table.rounding, 8);
            add(table.rules, 2 * size_of::<RowRule>());
            add(table.slots, 4 * keys);
            add(table.keys, if table.needs.reads_keys { 8 * keys } else { 0 });
            add(table.order, if table.needs.norm == NormPart::Keys { 4 * keys } else { 0 });
            add(table.new_slots, if table.needs.creates { 4 * keys } else { 0 });
            add(table.new_keys, if table.needs.creates { 8 * keys } else { 0 });
        }
        let NormLists { squares, places, slots, groups, .. } = layout.norm;
        assert_eq!((squares, places, slots, groups), (107, 114, 37, 2 * GROUPS));
        add(layout.norm.slot_starts, 4 * (slots + 1));
        add(layout.norm.group_starts, 4 * (groups + 1));
        add(layout.norm.total_starts, 8);
        parts.retain(|part| !part.is_empty());
        parts.sort_by_key(|part| part.start);
        assert!(parts.windows(2).all(|pair| pair[0].end <= pair[1].start), "{parts:?}");
        assert_eq!(parts.last().map(|part| part.end), Some(layout.bytes));
        assert!(layout.main < layout.bytes);
    }
}
