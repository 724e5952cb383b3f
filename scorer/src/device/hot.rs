//! The choice of the rows of a base that are on the device: its hot keys, and then those with the
//! most pushes.
//!
//! Keys that training has met often are met often in requests too. A base may list its hot keys by
//! decayed counts ([`HotTable`](zillion_rows::layer::HotTable)). Every layer also has the number of
//! pushes of each row. If not all rows fit, the listed keys are taken first, the hottest one of all
//! tables first. The others are counted in classes of a factor of 2^(1/8), and the classes are
//! taken from the highest number on until the room is used.

use std::cmp::Reverse;
use std::collections::HashSet;

use zillion_feature::FeatureKey;
use zillion_rows::TableLayout;
use zillion_rows::layer::{Found, HotKey, Layer, Throttle};

use super::layers::bytes_of_keys;

/// The number of classes of a factor of two.
const STEPS: u32 = 8;
/// The number of classes of all numbers of pushes.
const CLASSES: usize = (33 * STEPS) as usize;
/// The number of keys between two pauses.
const PIECE: usize = 4096;

/// The keys of each table whose rows are on the device.
#[derive(Debug, Default)]
pub(super) struct HotKeys {
    pub(super) tables: Vec<Vec<FeatureKey>>,
}

/// Returns the class of a number of pushes; a larger number has the same class or a higher one.
fn class_of(count: u32) -> usize {
    let wide = (u64::from(count) + 1) << 3;
    let exponent = wide.ilog2() - 3;
    let step = (wide >> exponent) as u32 - STEPS;
    (exponent * STEPS + step) as usize
}

/// Returns the bytes of one row with its place in the index, rounded up.
fn bytes_of_row(layout: &TableLayout) -> u64 {
    // An index has up to 21 bytes for each key at its usual load.
    4 * layout.stride as u64 + 21
}

/// Chooses rows of a base that take at most `room` bytes.
pub(super) fn choose(
    base: &Layer,
    layouts: &[TableLayout],
    room: u64,
    pace: &mut dyn Throttle,
) -> HotKeys {
    let fixed: u64 = layouts.iter().map(|_| bytes_of_keys(0)).sum();
    let mut room = room.saturating_sub(fixed);
    let all = layouts.iter().enumerate().map(|(table, of)| base.rows(table) * bytes_of_row(of));
    let fits = all.sum::<u64>() <= room;
    let mut tables = vec![Vec::new(); layouts.len()];
    let mut listed = vec![HashSet::new(); layouts.len()];
    if !fits {
        room = take_listed(base, layouts, room, (&mut tables, &mut listed), pace);
    }
    let lowest = if fits { 0 } else { lowest_class(base, layouts, room, &listed, pace) };
    // The classes above the lowest one fit as a whole. The lowest one fills the rest.
    for is_lowest in [false, true] {
        for (table, layout) in layouts.iter().enumerate() {
            let bytes = bytes_of_row(layout);
            for (number, (key, count)) in base.counts(table).enumerate() {
                if number % PIECE == 0 {
                    pace.piece();
                }
                let Some(class) = count.map(class_of).filter(|_| !listed[table].contains(&key))
                else {
                    continue;
                };
                let is_wanted = if is_lowest { class == lowest } else { class > lowest };
                if is_wanted && room >= bytes {
                    room -= bytes;
                    tables[table].push(key);
                }
            }
        }
    }
    HotKeys { tables }
}

/// Takes the listed hot keys that have a row, the hottest ones first, until the room is used.
/// Returns the room that is left.
fn take_listed(
    base: &Layer,
    layouts: &[TableLayout],
    mut room: u64,
    (tables, listed): (&mut [Vec<FeatureKey>], &mut [HashSet<FeatureKey>]),
    pace: &mut dyn Throttle,
) -> u64 {
    let mut all: Vec<(u32, usize, HotKey)> = Vec::new();
    for table in 0..layouts.len() {
        let Some(list) = base.hot(table) else { continue };
        all.extend(list.keys().iter().map(|&hot| (list.decayed_count(hot), table, hot)));
    }
    // Keys of a table with equal counts stay in their order.
    all.sort_by_key(|&(count, ..)| Reverse(count));
    for (number, (_, table, hot)) in all.into_iter().enumerate() {
        if number % PIECE == 0 {
            pace.piece();
        }
        let bytes = bytes_of_row(&layouts[table]);
        let has_row = || matches!(base.find(table, hot.key), Some(Found::Row(_)));
        if room >= bytes && has_row() && listed[table].insert(hot.key) {
            room -= bytes;
            tables[table].push(hot.key);
        }
    }
    room
}

/// Returns the class at which the rows of all classes from the highest one on, without the listed
/// keys, need more than `room` bytes, or 0.
fn lowest_class(
    base: &Layer,
    layouts: &[TableLayout],
    room: u64,
    listed: &[HashSet<FeatureKey>],
    pace: &mut dyn Throttle,
) -> usize {
    let mut bytes = vec![0u64; CLASSES];
    for (table, layout) in layouts.iter().enumerate() {
        for (number, (key, count)) in base.counts(table).enumerate() {
            if number % PIECE == 0 {
                pace.piece();
            }
            if let Some(count) = count.filter(|_| !listed[table].contains(&key)) {
                bytes[class_of(count)] += bytes_of_row(layout);
            }
        }
    }
    let mut sum = 0;
    let found = (0..CLASSES).rev().find(|&class| {
        sum += bytes[class];
        sum > room
    });
    found.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_ascend_with_the_number_of_pushes() {
        let mut last = 0;
        for count in (0..5000).chain([1 << 20, (1 << 20) + (1 << 18), u32::MAX - 1, u32::MAX]) {
            let class = class_of(count);
            assert!(class >= last && class < CLASSES, "{count}");
            last = class;
        }
        assert!(class_of(0) < class_of(1) && class_of(100) < class_of(113));
    }
}
