//! The cut of a table's slots into files: the slots of each file, and the name of the file.
//!
//! A writer that owns all slots of a table cuts them into a power of two of equal ranges. A writer
//! that owns only some of the slots uses the parts of these ranges that lie in its own slots. So a
//! manifest may list files with any ranges. A reader takes the ranges from the manifest.
//!
//! # Invariants
//! * The files of one kind are listed in slot order, and every slot belongs to exactly one of them.
//! * Files of different owners have different names, because their slots differ.

use std::ops::Range;
use std::path::Path;

use zillion_feature::SLOTS;

use super::{ListedParts, PartInfo, REMEDY};
use crate::error::{Error, Result};

/// The range of all slots of a table.
pub const ALL_SLOTS: Range<usize> = 0..SLOTS;

/// The slots of a file that is written, and the number in its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    start: usize,
    end: usize,
    /// The position in the list of files; `None` if the writer does not own all slots, so that the
    /// name has the slots in place of a number.
    number: Option<usize>,
}

impl Place {
    /// Returns the slots of the file.
    pub fn slots(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Returns the path of the file relative to the checkpoint's folder.
    pub(super) fn file(&self, table: &str, kind: &str) -> String {
        match self.number {
            Some(number) => numbered_file(table, kind, number),
            None => ranged_file(table, kind, &self.slots()),
        }
    }
}

/// Returns the path of a file that is named by its position in the list.
fn numbered_file(table: &str, kind: &str, number: usize) -> String {
    format!("tables/{table}/{kind}-{number:05}.arrow")
}

/// Returns the path of a file that is named by its slots.
fn ranged_file(table: &str, kind: &str, slots: &Range<usize>) -> String {
    format!("tables/{table}/{kind}-s{:04}-{:04}.arrow", slots.start, slots.end)
}

/// Cuts the slots `owned` of a table into files. The smallest power of two is used for which every
/// range of the even cut of all slots has at most `limit` rows in `owned`. A range is never smaller
/// than a slot. `slot_rows` has the number of rows of each slot of `owned`. The result is empty if
/// `owned` is empty.
pub fn cut(owned: &Range<usize>, slot_rows: &[u64], limit: u64) -> Vec<Place> {
    let mut parts = 1;
    while parts < SLOTS {
        let rows = |slots: Range<usize>| {
            slot_rows[slots.start - owned.start..slots.end - owned.start].iter().sum::<u64>()
        };
        if pieces(owned, parts).all(|(_, slots)| rows(slots) <= limit) {
            break;
        }
        parts *= 2;
    }
    let is_whole = *owned == ALL_SLOTS;
    let place = |(number, slots): (usize, Range<usize>)| Place {
        start: slots.start,
        end: slots.end,
        number: is_whole.then_some(number),
    };
    pieces(owned, parts).map(place).collect()
}

/// Yields the ranges of the even cut into `parts` parts that lie in `owned`, with their numbers.
fn pieces(owned: &Range<usize>, parts: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    (0..parts).filter_map(move |part| {
        let slots = overlap(&even(part, parts), owned);
        (!slots.is_empty()).then_some((part, slots))
    })
}

/// Returns the slots of a part of the even cut into `parts` parts.
fn even(part: usize, parts: usize) -> Range<usize> {
    let slots = SLOTS / parts;
    part * slots..(part + 1) * slots
}

/// Returns the slots that two ranges have in common.
pub fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

/// The files of one kind that a table lists, with their slots, in slot order.
pub(super) type Cut<'a> = Vec<(&'a PartInfo, Range<usize>)>;

/// Returns the files of one kind of a table with their slots. Checks the names and the slots of the
/// files, and that they have `rows` rows together.
///
/// # Errors
/// Returns [`Error::Part`] with the folder of the table and the fault.
pub(super) fn listed_cut<'a>(
    folder: &Path,
    table: &str,
    kind: &str,
    listed: &'a [PartInfo],
    rows: u64,
) -> Result<Cut<'a>> {
    let refuse = |reason: String| {
        let path = folder.join(format!("tables/{table}"));
        Err(Error::Part { path, reason: format!("{reason}; {REMEDY}") })
    };
    let slots = match slots_of(listed) {
        Ok(slots) => slots,
        Err(reason) => return refuse(format!("files `{kind}-*`: {reason}")),
    };
    if let Err(reason) = check_names(table, kind, listed, &slots) {
        return refuse(reason);
    }
    let found: u64 = listed.iter().fold(0, |sum, part| sum.saturating_add(part.rows));
    if found != rows {
        return refuse(format!("the parts have {found} rows, but the table has {rows}"));
    }
    Ok(listed.iter().zip(slots).collect())
}

/// Checks that each file has the name that its position or its slots give.
pub(super) fn check_names(
    table: &str,
    kind: &str,
    listed: &[PartInfo],
    slots: &[Range<usize>],
) -> Result<(), String> {
    for (i, (part, slots)) in listed.iter().zip(slots).enumerate() {
        let (numbered, ranged) = (numbered_file(table, kind, i), ranged_file(table, kind, slots));
        if part.file != numbered && part.file != ranged {
            return Err(format!(
                "the checkpoint lists `{}` as part {i} instead of `{numbered}` or `{ranged}`",
                part.file
            ));
        }
    }
    Ok(())
}

/// Returns the slots of each listed file. Checks that the files are in slot order, and that they
/// cover every slot once. In a manifest without slots, the files divide the slots evenly.
pub(super) fn slots_of(listed: &[PartInfo]) -> Result<Vec<Range<usize>>, String> {
    let count = listed.len();
    if count > 0 && listed.iter().all(|part| part.slots.is_none()) {
        if !count.is_power_of_two() || count > SLOTS {
            return Err(format!(
                "the checkpoint lists {count} parts of the table instead of a power of two up to {SLOTS}"
            ));
        }
        return Ok((0..count).map(|part| even(part, count)).collect());
    }
    let mut all: Vec<Range<usize>> = Vec::with_capacity(count);
    for part in listed {
        let file = &part.file;
        let Some((start, end)) = part.slots else {
            return Err(format!("`{file}` has no slots, but other files of the table have slots"));
        };
        let slots = start..end;
        if slots.is_empty() || slots.end > SLOTS {
            return Err(format!(
                "`{file}` has the slots {start}..{end}, which is no range of 0..{SLOTS}"
            ));
        }
        if let Some(before) = all.last() {
            if slots.end <= before.start {
                return Err(format!(
                    "`{file}` with the slots {start}..{end} is listed after a file with the slots {}..{}, but \
                     files must be in slot order",
                    before.start, before.end
                ));
            }
            let both = overlap(&slots, before);
            if !both.is_empty() {
                return Err(format!(
                    "the slots {}..{} are in two files, and `{file}` is the second of them",
                    both.start, both.end
                ));
            }
        }
        all.push(slots);
    }
    let mut next = 0;
    let ends = all.iter().map(|slots| slots.start).chain([SLOTS]);
    for (i, start) in ends.enumerate() {
        if start > next {
            return Err(format!("no file has the slots {next}..{start}"));
        }
        next = all.get(i).map_or(next, |slots| slots.end);
    }
    Ok(all)
}

/// Returns the files that have slots of `owned`.
pub(super) fn needed<'a>(cut: &Cut<'a>, owned: &Range<usize>) -> Cut<'a> {
    cut.iter().filter(|(_, slots)| !overlap(slots, owned).is_empty()).cloned().collect()
}

/// Returns the item whose slots contain `slot`. The items must be in slot order.
pub fn find_slot<T>(items: &[T], slots: impl Fn(&T) -> Range<usize>, slot: usize) -> Option<&T> {
    let at = items.partition_point(|item| slots(item).end <= slot);
    items.get(at).filter(|item| slots(item).contains(&slot))
}

impl ListedParts {
    /// Creates the entry of a group of files that were written.
    pub fn of(parts: Vec<PartInfo>) -> Self {
        Self { rows: parts.iter().map(|part| part.rows).sum(), parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(slot_rows: &[u64], limit: u64) -> usize {
        let places = cut(&ALL_SLOTS, slot_rows, limit);
        for (number, place) in places.iter().enumerate() {
            assert_eq!(place.slots(), even(number, places.len()));
            assert_eq!(place.number, Some(number));
        }
        places.len()
    }

    #[test]
    fn cuts_depend_on_row_counts_only() {
        assert_eq!(count(&[0; SLOTS], 10), 1);
        assert_eq!(count(&[1; SLOTS], 4096), 1);
        assert_eq!(count(&[1; SLOTS], 4095), 2);
        let mut skewed = [0; SLOTS];
        skewed[0] = 6;
        skewed[SLOTS / 4] = 6;
        assert_eq!(count(&skewed, 10), 4);
        // A slot with more rows than the limit cannot be divided.
        skewed[0] = 11;
        assert_eq!(count(&skewed, 10), SLOTS);
        assert_eq!(even(3, 4), 3072..4096);
    }

    #[test]
    fn an_owner_cuts_its_slots_at_the_bounds_of_the_even_cut() {
        let slots = |owned: Range<usize>, rows: u64, limit| -> Vec<Range<usize>> {
            let places = cut(&owned, &vec![rows; owned.len()], limit);
            assert!(places.iter().all(|place| place.number.is_none()));
            places.iter().map(Place::slots).collect()
        };
        assert_eq!(slots(64..64, 1, 10), vec![]);
        assert_eq!(slots(64..192, 1, 128), vec![64..192]);
        assert_eq!(slots(64..192, 1, 127), vec![64..128, 128..192]);
        assert_eq!(slots(1344..2752, 1, 1024), vec![1344..2048, 2048..2752]);
        assert_eq!(slots(100..103, 9, 1), vec![100..101, 101..102, 102..103]);
        let place = cut(&(0..1344), &[0; 1344], 1)[0];
        assert_eq!(place.file("ids", "part"), "tables/ids/part-s0000-1344.arrow");
    }

    #[test]
    fn the_item_of_a_slot_is_found() {
        let items = [0..64, 64..100, 100..SLOTS];
        for slot in [0, 63, 64, 99, 100, SLOTS - 1] {
            let found = find_slot(&items, Clone::clone, slot).cloned();
            assert!(found.is_some_and(|range| range.contains(&slot)), "{slot}");
        }
        assert_eq!(find_slot(&items[1..], Clone::clone, 5), None);
        assert_eq!(find_slot(&items[..2], Clone::clone, 100), None);
    }
}
