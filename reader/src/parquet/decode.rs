//! Arrow arrays to columns.
//!
//! The common cases (numbers that cannot be refused) are loops over slices that vectorise. Whatever they
//! meet that might be refused sends the piece through the slow loops, value by value through the
//! functions that text goes through too; those find the first bad row.

use std::fmt::Display;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Date32Array, Date64Array, ListArray, PrimitiveArray,
    TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    TimestampSecondArray,
};
use arrow_schema::{DataType, TimeUnit};
use zillion_device::simd::vectorised;
use zillion_feature::{FeatureKey, NumericMap, RawType};

use crate::block::{Column, end_list};
use crate::field::Role;
use crate::value::{self, Outcome, Refusal};

/// A value that was refused: its row in the array and its text.
#[derive(Debug)]
pub(crate) struct Bad {
    pub(crate) row: usize,
    pub(crate) refusal: Refusal,
    pub(crate) text: Option<Vec<u8>>,
}

/// What strings can mean besides themselves. The same as in text files, so that they agree.
#[derive(Clone, Debug)]
pub(crate) struct TextRules {
    pub(super) null: Arc<Vec<Vec<u8>>>,
    pub(super) list_separator: u8,
}

impl TextRules {
    fn is_missing(&self, text: &[u8]) -> bool {
        text.is_empty() || self.null.iter().any(|marker| marker == text)
    }
}

/// The keys of a dictionary's entries, computed once for all the arrays that share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DictionaryKeys {
    dictionary: Option<ArrayRef>,
    keys: Vec<FeatureKey>,
}

/// Appends an array to the column of a field.
pub(crate) fn append(
    column: &mut Column,
    role: &Role,
    array: &ArrayRef,
    rules: &TextRules,
    dictionary: &mut DictionaryKeys,
) -> Result<(), Bad> {
    match (role, column) {
        (Role::Id { raw, missing }, Column::Keys(keys)) => match array.data_type() {
            DataType::Dictionary(..) => dictionary_keys(array, *missing, rules, dictionary, keys),
            DataType::Utf8 | DataType::Binary => texts(array, |text| {
                let is_missing = text.is_none_or(|t| rules.is_missing(t));
                keys.push(match text {
                    Some(text) if !is_missing => value::id_from_bytes(text)?,
                    _ => *missing,
                });
                Ok(())
            }),
            _ => whole_keys(array, *raw, *missing, keys),
        },
        (Role::Ids { raw }, Column::Lists { offsets, keys }) => {
            lists(array, *raw, rules, offsets, keys)
        }
        (Role::Numeric { map, missing }, Column::Floats(values)) => {
            numbers(array, map, *missing, values)
        }
        (Role::Bucket { buckets, missing }, Column::Keys(keys)) => scan(array, |x| {
            keys.push(match x {
                Some(x) => buckets.key(value::finite(x)?),
                None => *missing,
            });
            Ok(())
        }),
        (Role::Present, Column::Present(values)) => scan(array, |x| {
            if let Some(x) = x {
                values.push(value::finite(x)?);
            }
            Ok(())
        }),
        (Role::Label { .. }, Column::Labels { values, mask }) => scan(array, |x| {
            values.push(match (x, &mask) {
                (Some(x), _) => value::label(x)?,
                (None, Some(_)) => 0.0,
                (None, None) => return Err(Refusal::Missing),
            });
            if let Some(mask) = mask {
                mask.push(x.is_some());
            }
            Ok(())
        }),
        (Role::Weight, Column::Floats(values)) => scan(array, |x| {
            values.push(value::weight(x.ok_or(Refusal::Missing)?)?);
            Ok(())
        }),
        (Role::Group, Column::Words(words)) => groups(array, rules, words),
        (Role::EventTime, Column::Times(times)) => event_times(array, times),
        // `Column::with_capacity` chose the column by the role.
        (role, column) => unreachable!("{role:?} does not decode into {column:?}"),
    }
}

/// Whole numbers of any width.
trait Whole: Copy {
    fn key(self, raw: RawType) -> Outcome<FeatureKey>;
    /// The key of a value that [`Whole::fits`].
    fn mix(self) -> FeatureKey;
    fn fits(self, raw: RawType) -> bool;
    fn time(self) -> Outcome<i64>;
}

macro_rules! whole {
    ($wide:ty, $from:ident, $check:ident: $($narrow:ty),*) => { $(
        impl Whole for $narrow {
            #[inline(always)]
            fn key(self, raw: RawType) -> Outcome<FeatureKey> {
                value::$check(raw, <$wide>::from(self))
            }
            #[inline(always)]
            fn mix(self) -> FeatureKey {
                FeatureKey::$from(<$wide>::from(self))
            }
            #[inline(always)]
            fn fits(self, raw: RawType) -> bool {
                self.key(raw).is_ok()
            }
            fn time(self) -> Outcome<i64> {
                let wide = <$wide>::from(self);
                wide.try_into().map_err(|_: <$wide as TryInto<i64>>::Error| Refusal::NotTime)
            }
        }
    )* };
}

whole!(i64, from_i64, id_from_i64: i8, i16, i32, i64);
whole!(u64, from_u64, id_from_u64: u8, u16, u32, u64);

/// Calls `$body` with `$values` bound to the array under its integer type.
macro_rules! with_whole {
    ($array:expr, $values:ident => $body:expr, else $other:expr) => {
        match $array.data_type() {
            DataType::Int8 => {
                let $values = $array.as_primitive::<Int8Type>();
                $body
            }
            DataType::Int16 => {
                let $values = $array.as_primitive::<Int16Type>();
                $body
            }
            DataType::Int32 => {
                let $values = $array.as_primitive::<Int32Type>();
                $body
            }
            DataType::Int64 => {
                let $values = $array.as_primitive::<Int64Type>();
                $body
            }
            DataType::UInt8 => {
                let $values = $array.as_primitive::<UInt8Type>();
                $body
            }
            DataType::UInt16 => {
                let $values = $array.as_primitive::<UInt16Type>();
                $body
            }
            DataType::UInt32 => {
                let $values = $array.as_primitive::<UInt32Type>();
                $body
            }
            DataType::UInt64 => {
                let $values = $array.as_primitive::<UInt64Type>();
                $body
            }
            _ => $other,
        }
    };
}

/// The same for every numeric type, with `$number` as the conversion to `f64`.
macro_rules! with_number {
    ($array:expr, $values:ident, $number:ident => $body:expr, else $other:expr) => {
        match $array.data_type() {
            DataType::Float16 => {
                let ($values, $number) = ($array.as_primitive::<Float16Type>(), |x: <Float16Type as ArrowPrimitiveType>::Native| x.to_f64());
                $body
            }
            DataType::Float32 => {
                let ($values, $number) = ($array.as_primitive::<Float32Type>(), |x: f32| f64::from(x));
                $body
            }
            DataType::Float64 => {
                let ($values, $number) = ($array.as_primitive::<Float64Type>(), |x: f64| x);
                $body
            }
            _ => with_whole!($array, whole => {
                let ($values, $number) = (whole, |x| x as f64);
                $body
            }, else $other),
        }
    };
}

/// What `check` let through is matched here; anything else is a defect of this crate.
fn unexpected(array: &dyn Array) -> ! {
    unreachable!("a column of type {} passed the check of types", array.data_type())
}

fn whole_keys(
    array: &ArrayRef,
    raw: RawType,
    missing: FeatureKey,
    keys: &mut Vec<FeatureKey>,
) -> Result<(), Bad> {
    with_whole!(array, values => mix_all(values, raw, missing, keys), else {
        let Some(flags) = array.as_boolean_opt() else { unexpected(array) };
        keys.extend(flags.iter().map(|flag| flag.map_or(missing, |f| FeatureKey::from_u64(u64::from(f)))));
        Ok(())
    })
}

fn mix_all<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    raw: RawType,
    missing: FeatureKey,
    keys: &mut Vec<FeatureKey>,
) -> Result<(), Bad>
where
    T::Native: Whole + Display,
{
    let values: &[T::Native] = array.values();
    let all_fit = vectorised(|| values.iter().fold(true, |fit, v| fit & v.fits(raw)));
    if !all_fit {
        return scan_values(array, |value| {
            keys.push(match value {
                Some(value) => value.key(raw)?,
                None => missing,
            });
            Ok(())
        });
    }
    let start = keys.len();
    vectorised(|| keys.extend(values.iter().map(|v| v.mix())));
    patch(array, &mut keys[start..], missing);
    Ok(())
}

/// Writes `missing` where the array has no value.
fn patch<T: Copy>(array: &dyn Array, values: &mut [T], missing: T) {
    if let Some(nulls) = array.nulls().filter(|n| n.null_count() > 0) {
        for (row, value) in values.iter_mut().enumerate() {
            if nulls.is_null(row) {
                *value = missing;
            }
        }
    }
}

fn numbers(
    array: &ArrayRef,
    map: &NumericMap,
    missing: Option<f32>,
    floats: &mut Vec<f32>,
) -> Result<(), Bad> {
    let start = floats.len();
    if missing.is_some() || array.null_count() == 0 {
        with_number!(array, values, number => {
            let values = values.values();
            match map {
                NumericMap::Raw => vectorised(|| floats.extend(values.iter().map(|&x| number(x) as f32))),
                map => vectorised(|| floats.extend(values.iter().map(|&x| map.apply(number(x))))),
            }
        }, else {
            let Some(flags) = array.as_boolean_opt() else { unexpected(array) };
            floats.extend((0..flags.len()).map(|i| map.apply(f64::from(u8::from(flags.value(i))))));
        });
        patch(array, &mut floats[start..], missing.unwrap_or_default());
        let added = &floats[start..];
        if vectorised(|| added.iter().fold(true, |all, x| all & x.is_finite())) {
            return Ok(());
        }
        floats.truncate(start);
    }
    scan(array, |x| {
        floats.push(match x {
            Some(x) => value::numeric(map, x)?,
            None => missing.ok_or(Refusal::Missing)?,
        });
        Ok(())
    })
}

/// Visits the rows of a numeric or boolean array as `f64`.
fn scan(array: &ArrayRef, mut visit: impl FnMut(Option<f64>) -> Outcome<()>) -> Result<(), Bad> {
    with_number!(array, values, number => scan_values(values, |x| visit(x.map(number))), else {
        let Some(flags) = array.as_boolean_opt() else { unexpected(array) };
        scan_flags(flags, |flag| visit(flag.map(|f| f64::from(u8::from(f)))))
    })
}

/// Visits the rows of a primitive array.
fn scan_values<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    mut visit: impl FnMut(Option<T::Native>) -> Outcome<()>,
) -> Result<(), Bad>
where
    T::Native: Display,
{
    for (row, value) in array.iter().enumerate() {
        visit(value).map_err(|refusal| Bad {
            row,
            refusal,
            text: value.map(|v| v.to_string().into_bytes()),
        })?;
    }
    Ok(())
}

fn scan_flags(
    array: &BooleanArray,
    mut visit: impl FnMut(Option<bool>) -> Outcome<()>,
) -> Result<(), Bad> {
    for (row, flag) in array.iter().enumerate() {
        visit(flag).map_err(|refusal| Bad {
            row,
            refusal,
            text: flag.map(|f| f.to_string().into_bytes()),
        })?;
    }
    Ok(())
}

/// Visits the rows of an array of strings or byte strings.
fn texts<'a>(
    array: &'a ArrayRef,
    mut visit: impl FnMut(Option<&'a [u8]>) -> Outcome<()>,
) -> Result<(), Bad> {
    let mut visit_row = |row: usize, text: Option<&'a [u8]>| {
        visit(text).map_err(|refusal| Bad { row, refusal, text: text.map(<[u8]>::to_vec) })
    };
    if let Some(strings) = array.as_string_opt::<i32>() {
        return strings
            .iter()
            .enumerate()
            .try_for_each(|(row, s)| visit_row(row, s.map(str::as_bytes)));
    }
    let Some(strings) = array.as_binary_opt::<i32>() else { unexpected(array) };
    strings.iter().enumerate().try_for_each(|(row, s)| visit_row(row, s))
}

fn dictionary_keys(
    array: &ArrayRef,
    missing: FeatureKey,
    rules: &TextRules,
    cache: &mut DictionaryKeys,
    keys: &mut Vec<FeatureKey>,
) -> Result<(), Bad> {
    let Some(array) = array.as_dictionary_opt::<Int32Type>() else { unexpected(array) };
    let values = array.values();
    if !cache.dictionary.as_ref().is_some_and(|known| Arc::ptr_eq(known, values)) {
        cache.keys.clear();
        texts(values, |text| {
            let is_missing = text.is_none_or(|t| rules.is_missing(t));
            cache.keys.push(match text {
                Some(text) if !is_missing => value::id_from_bytes(text)?,
                _ => missing,
            });
            Ok(())
        })?;
        cache.dictionary = Some(values.clone());
    }
    let entries = &cache.keys;
    keys.extend(array.keys().iter().map(|entry| {
        // A damaged file may point behind its dictionary; Arrow checks that, and this does not rely on it.
        let entry = entry.and_then(|e| entries.get(e as usize));
        entry.copied().unwrap_or(missing)
    }));
    Ok(())
}

fn lists(
    array: &ArrayRef,
    raw: RawType,
    rules: &TextRules,
    offsets: &mut Vec<i32>,
    keys: &mut Vec<FeatureKey>,
) -> Result<(), Bad> {
    if let Some(lists) = array.as_list_opt::<i32>() {
        return list_keys(lists, raw, rules, offsets, keys);
    }
    if matches!(array.data_type(), DataType::Utf8 | DataType::Binary) {
        return texts(array, |text| {
            if let Some(text) = text.filter(|t| !rules.is_missing(t)) {
                for id in text.split(|&b| b == rules.list_separator) {
                    if !rules.is_missing(id) {
                        keys.push(value::id_from_cell(raw, id)?);
                    }
                }
            }
            end_list(offsets, keys)
        });
    }
    let mut singles = Vec::with_capacity(array.len());
    whole_keys(array, raw, FeatureKey::default(), &mut singles)?;
    for (row, key) in singles.into_iter().enumerate() {
        if array.is_valid(row) {
            keys.push(key);
        }
        end_list(offsets, keys).map_err(|refusal| Bad { row, refusal, text: None })?;
    }
    Ok(())
}

fn list_keys(
    array: &ListArray,
    raw: RawType,
    rules: &TextRules,
    offsets: &mut Vec<i32>,
    keys: &mut Vec<FeatureKey>,
) -> Result<(), Bad> {
    let ends = array.value_offsets();
    let first = ends[0] as usize;
    let values = array.values().slice(first, ends[array.len()] as usize - first);
    let mut elements = Vec::with_capacity(values.len());
    // Elements without a value are left out; `None` marks them.
    let decoded = if raw == RawType::String {
        texts(&values, |text| {
            elements.push(match text.filter(|t| !rules.is_missing(t)) {
                Some(text) => Some(value::id_from_bytes(text)?),
                None => None,
            });
            Ok(())
        })
    } else {
        let mut dense = Vec::with_capacity(values.len());
        let decoded = whole_keys(&values, raw, FeatureKey::default(), &mut dense);
        elements
            .extend(dense.into_iter().enumerate().map(|(i, k)| values.is_valid(i).then_some(k)));
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
            keys.extend(elements[range].iter().flatten());
        }
        end_list(offsets, keys).map_err(|refusal| Bad { row, refusal, text: None })?;
    }
    Ok(())
}

fn groups(array: &ArrayRef, rules: &TextRules, words: &mut Vec<u64>) -> Result<(), Bad> {
    with_whole!(array, values => scan_values(values, |value| {
        words.push(value.ok_or(Refusal::Missing)?.mix().0);
        Ok(())
    }), else {
        texts(array, |text| {
            let text = text.filter(|t| !rules.is_missing(t)).ok_or(Refusal::Missing)?;
            words.push(value::group_from_bytes(text)?);
            Ok(())
        })
    })
}

fn event_times(array: &ArrayRef, times: &mut Vec<i64>) -> Result<(), Bad> {
    macro_rules! times_of {
        ($array_type:ty) => {{
            let Some(values) = array.as_any().downcast_ref::<$array_type>() else {
                unexpected(array)
            };
            scan_values(values, |value| {
                times.push(i64::from(value.ok_or(Refusal::Missing)?));
                Ok(())
            })
        }};
    }
    match array.data_type() {
        DataType::Timestamp(TimeUnit::Second, _) => times_of!(TimestampSecondArray),
        DataType::Timestamp(TimeUnit::Millisecond, _) => times_of!(TimestampMillisecondArray),
        DataType::Timestamp(TimeUnit::Microsecond, _) => times_of!(TimestampMicrosecondArray),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => times_of!(TimestampNanosecondArray),
        DataType::Date32 => times_of!(Date32Array),
        DataType::Date64 => times_of!(Date64Array),
        _ => with_whole!(array, values => scan_values(values, |value| {
            times.push(value.ok_or(Refusal::Missing)?.time()?);
            Ok(())
        }), else unexpected(array)),
    }
}
