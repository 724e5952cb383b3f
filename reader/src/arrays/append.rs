//! The conversion of Arrow arrays to columns. The role of the field and the type of the array
//! decide which loop converts the array.

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, ListArray, downcast_integer_array, downcast_temporal_array, new_null_array,
};
use arrow_schema::DataType;
use zillion_feature::raw_value::{group_from_bytes, id_from_cell};
use zillion_feature::{DateOrder, RawType, RawValue, TimeUnit};

use super::bad::{Bad, unexpected};
use super::decimals::{flag_texts, is_decimal, plain_decimals};
use super::kept::keep;
use super::labels::scan_labels;
use super::numbers::{ArrayId, Whole, numbers, scan, scan_ids, scan_values};
use super::texts::{DictionaryKeys, TextRules, dictionary_keys, is_text, text_ids, texts};
use super::times::{scan_moments, time_unit};
use super::vectors::vectors;
use crate::block::{Column, Lists};
use crate::derived::{event_rule, event_time, push_derived, raw_time};
use crate::field::Role;
use crate::side_lookup::SideLookup;
use crate::value::{self, ClassIndex, LabelRule, Outcome, Refusal};

/// Appends an array to the column, with a stand-in for each bad value, and adds the bad values to
/// `bad`. If the role refuses a value of the array, the function removes the appended values and
/// tries the two halves of the array again. No decoder therefore has to continue after a refused
/// value. A few bad rows cost only a few extra attempts on small pieces.
///
/// `first` is the number of rows before the array; it is added to the row of each bad value.
///
/// # Errors
/// Returns the refused value if the refusal concerns more than one row.
pub(crate) fn append_or_reject(
    column: &mut Column,
    role: &Role,
    array: &ArrayRef,
    rules: &TextRules,
    dictionary: &mut DictionaryKeys,
    first: usize,
    bad: &mut Vec<Bad>,
) -> Result<(), Bad> {
    let before = column.as_rows().count();
    let Err(refused) = append(column, role, array, rules, dictionary) else { return Ok(()) };
    if !refused.refusal.is_about_one_row() {
        return Err(Bad { row: first + refused.row, ..refused });
    }
    column.as_rows().keep_first(before);
    if array.len() == 1 {
        column.as_rows().push_stand_in();
        bad.push(Bad { row: first, ..refused });
        return Ok(());
    }
    let half = array.len() / 2;
    for (start, rows) in [(0, half), (half, array.len() - half)] {
        let piece = array.slice(start, rows);
        append_or_reject(column, role, &piece, rules, dictionary, first + start, bad)?;
    }
    Ok(())
}

/// Returns whether the role reads texts.
fn reads_text(role: &Role) -> bool {
    match role {
        Role::Id { raw, .. } | Role::RawId { raw } | Role::Ids { raw } => *raw == RawType::String,
        Role::RawIds { raw, .. } => *raw == RawType::String,
        Role::SideRow(lookup) => lookup.raw == RawType::String,
        Role::Text => true,
        Role::Label { rule: LabelRule::Class(classes), .. } => {
            matches!(**classes, ClassIndex::Texts(_))
        }
        _ => false,
    }
}

/// Returns an array of as many missing values of a type that the role reads.
fn missing_values(role: &Role, rows: usize) -> ArrayRef {
    new_null_array(if reads_text(role) { &DataType::Utf8 } else { &DataType::Int64 }, rows)
}

/// Appends an array to the column of a field.
///
/// # Errors
/// Returns the first value of the array that the role refuses, with its row in the array.
pub(crate) fn append(
    column: &mut Column,
    role: &Role,
    array: &ArrayRef,
    rules: &TextRules,
    dictionary: &mut DictionaryKeys,
) -> Result<(), Bad> {
    let plain;
    let array = match array.data_type() {
        DataType::Null => {
            plain = missing_values(role, array.len());
            &plain
        }
        found if is_decimal(found) => {
            let as_text = reads_text(role) || matches!(role, Role::Kept);
            plain = plain_decimals(array, role, as_text)?;
            &plain
        }
        DataType::Boolean if reads_text(role) => {
            plain = flag_texts(array);
            &plain
        }
        _ => array,
    };
    match (role, column) {
        (Role::Id { raw, missing }, Column::Keys(keys)) => match array.data_type() {
            DataType::Dictionary(..) => dictionary_keys(array, *missing, rules, dictionary, keys),
            _ => ids(array, *raw, missing, rules, keys),
        },
        (Role::Ids { raw }, Column::Lists(to)) => lists(array, *raw, rules, to),
        (Role::RawId { raw }, Column::Raws(values)) => {
            ids(array, *raw, &RawValue::Missing, rules, values)
        }
        (Role::RawIds { raw, .. }, Column::RawLists(to)) => lists(array, *raw, rules, to),
        (Role::Numeric { map, missing }, Column::Floats(values)) => {
            numbers(array, map, *missing, values)
        }
        (Role::Bucket { buckets, missing }, Column::Keys(keys)) => scan(array, |x| {
            keys.push(value::bucket(buckets, x, *missing)?);
            Ok(())
        }),
        (Role::Number { needed }, Column::Numbers(values)) => scan(array, |x| {
            values.push(value::number(x, *needed)?);
            Ok(())
        }),
        (Role::SideRow(lookup), Column::Rows(rows)) => side_rows(array, lookup, rules, rows),
        (Role::Label { rule, .. }, Column::Labels(labels)) => {
            scan_labels(array, rule, rules, |label| value::push_label(labels, label?))
        }
        (Role::Derived { rule, role }, column) => {
            scan_moments(array, rule, rules, |time| push_derived(column, rule, role, time))
        }
        (Role::Vector { size, missing }, Column::Vectors(to)) => {
            vectors(array, *size, *missing, false, rules, to)
        }
        (Role::RawVector { size }, Column::Vectors(to)) => {
            vectors(array, *size, None, true, rules, to)
        }
        (Role::Kept, Column::Raws(values)) => keep(array, rules, values),
        (Role::RawTime { rule }, Column::Raws(values)) => {
            scan_moments(array, rule, rules, |time| {
                values.push(raw_time(time));
                Ok(())
            })
        }
        (Role::Weight, Column::Floats(values)) => scan(array, |x| {
            values.push(value::weight(x.ok_or(Refusal::Missing)?)?);
            Ok(())
        }),
        (Role::Group, Column::Words(words)) => groups(array, rules, words),
        (Role::EventTime { unit, order }, Column::Times(times)) => {
            event_times(array, *unit, *order, rules, times)
        }
        // The variant always fits the role, because `Column::with_capacity` chose it by the role.
        (role, column) => unreachable!("{role:?} does not decode into {column:?}"),
    }
}

fn ids<I: ArrayId>(
    array: &ArrayRef,
    raw: RawType,
    missing: &I,
    rules: &TextRules,
    ids: &mut Vec<I>,
) -> Result<(), Bad> {
    match is_text(array) {
        true => text_ids(array, missing, rules, ids),
        false => I::append_whole(array, raw, missing, ids),
    }
}

fn lists<I: ArrayId>(
    array: &ArrayRef,
    raw: RawType,
    rules: &TextRules,
    to: &mut Lists<I>,
) -> Result<(), Bad> {
    if let Some(lists) = array.as_list_opt::<i32>() {
        return list_ids(lists, raw, rules, to);
    }
    if is_text(array) {
        return texts(array, |text| {
            if let Some(text) = rules.present(text) {
                for id in rules.split(text.bytes()) {
                    to.push(id_from_cell(raw, id)?);
                }
            }
            to.end()
        });
    }
    let mut singles = Vec::with_capacity(array.len());
    I::append_whole(array, raw, &I::none(), &mut singles)?;
    for (row, id) in singles.into_iter().enumerate() {
        if array.is_valid(row) {
            to.push(id);
        }
        to.end().map_err(|refusal| Bad { row, refusal, text: None })?;
    }
    Ok(())
}

fn list_ids<I: ArrayId>(
    array: &ListArray,
    raw: RawType,
    rules: &TextRules,
    to: &mut Lists<I>,
) -> Result<(), Bad> {
    let ends = array.value_offsets();
    let first = ends[0] as usize;
    let values = array.values().slice(first, ends[array.len()] as usize - first);
    let mut elements = Vec::with_capacity(values.len());
    // Elements without a value are left out. The decoder marks them with `None`.
    let decoded = if raw == RawType::String {
        texts(&values, |text| {
            elements.push(rules.present(text).map(|t| t.id()).transpose()?);
            Ok(())
        })
    } else {
        let mut dense = Vec::with_capacity(values.len());
        let decoded = I::append_whole(&values, raw, &I::none(), &mut dense);
        elements
            .extend(dense.into_iter().enumerate().map(|(i, id)| values.is_valid(i).then_some(id)));
        decoded
    };
    decoded.map_err(|bad| {
        let element = bad.row + first;
        let row = ends.partition_point(|&end| end as usize <= element).saturating_sub(1);
        Bad { row, ..bad }
    })?;
    for row in 0..array.len() {
        if array.is_valid(row) {
            let range = ends[row] as usize - first..ends[row + 1] as usize - first;
            to.values.extend(elements[range].iter().flatten().cloned());
        }
        to.end().map_err(|refusal| Bad { row, refusal, text: None })?;
    }
    Ok(())
}

fn side_rows(
    array: &ArrayRef,
    lookup: &SideLookup,
    rules: &TextRules,
    rows: &mut Vec<u32>,
) -> Result<(), Bad> {
    if lookup.raw == RawType::String {
        return texts(array, |text| {
            let key = rules.present(text).map(|t| t.id()).transpose()?;
            rows.push(lookup.row(key)?);
            Ok(())
        });
    }
    downcast_integer_array!(
        array => scan_values(array.iter(), |value| {
            let key = value.map(|v| v.id(lookup.raw)).transpose()?;
            rows.push(lookup.row(key)?);
            Ok(())
        }),
        _ => {
            let mut keys = Vec::with_capacity(array.len());
            scan_ids(array, lookup.raw, |key| keys.push(key))?;
            for (row, key) in keys.into_iter().enumerate() {
                rows.push(lookup.row(key).map_err(|refusal| Bad { row, refusal, text: None })?);
            }
            Ok(())
        }
    )
}

fn groups(array: &ArrayRef, rules: &TextRules, words: &mut Vec<u64>) -> Result<(), Bad> {
    downcast_integer_array!(
        array => scan_values(array.iter(), |value| {
            words.push(value.ok_or(Refusal::Missing)?.mix().0);
            Ok(())
        }),
        _ => texts(array, |text| {
            let text = rules.present(text).ok_or(Refusal::Missing)?;
            words.push(group_from_bytes(text.bytes())?);
            Ok(())
        })
    )
}

fn event_times(
    array: &ArrayRef,
    unit: Option<TimeUnit>,
    order: Option<DateOrder>,
    rules: &TextRules,
    times: &mut Vec<i64>,
) -> Result<(), Bad> {
    // Values that already count in the unit need no conversion.
    let counts = array.data_type().is_integer() || time_unit(array.data_type()) == unit;
    if let Some(unit) = unit.filter(|_| !counts) {
        return scan_moments(array, &event_rule(unit, order), rules, |moment| {
            times.push(event_time(moment.ok_or(Refusal::Missing)?, unit)?);
            Ok(())
        });
    }
    let mut push = |time: Option<Outcome<i64>>| {
        times.push(value::time(time.ok_or(Refusal::Missing)??, unit)?);
        Ok(())
    };
    downcast_temporal_array!(
        array => scan_values(array.iter(), |time| push(time.map(Whole::time))),
        _ => downcast_integer_array!(
            array => scan_values(array.iter(), |value| push(value.map(Whole::time))),
            _ => unexpected(array)
        )
    )
}
