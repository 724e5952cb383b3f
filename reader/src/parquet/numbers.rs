//! Arrays of numbers and booleans.
//!
//! The common cases (numbers that cannot be refused) are loops over slices that vectorise. Whatever they
//! meet that might be refused sends the array through the slow loops, value by value through the
//! functions that text goes through too; those find the first bad row.

use std::fmt::Display;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, PrimitiveArray};
use arrow_schema::DataType;
use zillion_device::simd::vectorised;
use zillion_feature::{FeatureKey, RawType, RawValue};

use super::decode::{Bad, unexpected};
use crate::id::{self, Id};
use crate::value::{self, Outcome, Refusal, Transform};

/// Whole numbers of any width.
pub(super) trait Whole: Copy {
    fn id<I: Id>(self, raw: RawType) -> Outcome<I>;
    /// The key of a value that [`Whole::fits`].
    fn mix(self) -> FeatureKey;
    fn fits(self, raw: RawType) -> bool;
    fn time(self) -> Outcome<i64>;
}

macro_rules! whole {
    ($wide:ty, $from:ident: $($narrow:ty),*) => { $(
        impl Whole for $narrow {
            #[inline(always)]
            fn id<I: Id>(self, raw: RawType) -> Outcome<I> {
                id::$from(raw, <$wide>::from(self))
            }
            #[inline(always)]
            fn mix(self) -> FeatureKey {
                FeatureKey::$from(<$wide>::from(self))
            }
            #[inline(always)]
            fn fits(self, raw: RawType) -> bool {
                self.id::<FeatureKey>(raw).is_ok()
            }
            fn time(self) -> Outcome<i64> {
                let wide = <$wide>::from(self);
                wide.try_into().map_err(|_: <$wide as TryInto<i64>>::Error| Refusal::NotTime)
            }
        }
    )* };
}

whole!(i64, from_i64: i8, i16, i32, i64);
whole!(u64, from_u64: u8, u16, u32, u64);

/// Calls `$body` with `$values` bound to the array under its integer type.
macro_rules! with_whole {
    ($array:expr, $values:ident => $body:expr, else $other:expr) => {
        match $array.data_type() {
            arrow_schema::DataType::Int8 => {
                let $values = $array.as_primitive::<arrow_array::types::Int8Type>();
                $body
            }
            arrow_schema::DataType::Int16 => {
                let $values = $array.as_primitive::<arrow_array::types::Int16Type>();
                $body
            }
            arrow_schema::DataType::Int32 => {
                let $values = $array.as_primitive::<arrow_array::types::Int32Type>();
                $body
            }
            arrow_schema::DataType::Int64 => {
                let $values = $array.as_primitive::<arrow_array::types::Int64Type>();
                $body
            }
            arrow_schema::DataType::UInt8 => {
                let $values = $array.as_primitive::<arrow_array::types::UInt8Type>();
                $body
            }
            arrow_schema::DataType::UInt16 => {
                let $values = $array.as_primitive::<arrow_array::types::UInt16Type>();
                $body
            }
            arrow_schema::DataType::UInt32 => {
                let $values = $array.as_primitive::<arrow_array::types::UInt32Type>();
                $body
            }
            arrow_schema::DataType::UInt64 => {
                let $values = $array.as_primitive::<arrow_array::types::UInt64Type>();
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

/// Ids out of arrays.
pub(super) trait ArrayId: Id {
    /// Appends the ids of an array of whole numbers or booleans.
    fn append_whole(
        array: &ArrayRef,
        raw: RawType,
        missing: &Self,
        ids: &mut Vec<Self>,
    ) -> Result<(), Bad>;
}

impl ArrayId for FeatureKey {
    fn append_whole(
        array: &ArrayRef,
        raw: RawType,
        missing: &Self,
        ids: &mut Vec<Self>,
    ) -> Result<(), Bad> {
        whole_keys(array, raw, *missing, ids)
    }
}

impl ArrayId for RawValue<'static> {
    fn append_whole(
        array: &ArrayRef,
        raw: RawType,
        missing: &Self,
        ids: &mut Vec<Self>,
    ) -> Result<(), Bad> {
        let of = |id: Option<Self>| id.unwrap_or_else(|| missing.clone());
        with_whole!(array, values => scan_values(values, |value| {
            ids.push(of(value.map(|v| v.id(raw)).transpose()?));
            Ok(())
        }), else {
            let Some(flags) = array.as_boolean_opt() else { unexpected(array) };
            ids.extend(flags.iter().map(|flag| of(flag.map(|f| Self::of_u64(u64::from(f))))));
            Ok(())
        })
    }
}

/// Appends the keys of an array of whole numbers or booleans.
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
    let all_fit = vectorised(
        #[inline(always)]
        || values.iter().fold(true, |fit, v| fit & v.fits(raw)),
    );
    if !all_fit {
        return scan_values(array, |value| {
            keys.push(match value {
                Some(value) => value.id(raw)?,
                None => missing,
            });
            Ok(())
        });
    }
    let start = keys.len();
    vectorised(
        #[inline(always)]
        || keys.extend(values.iter().map(|v| v.mix())),
    );
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

/// Appends the numbers of an array, transformed.
pub(super) fn numbers(
    array: &ArrayRef,
    map: &Transform,
    missing: Option<f32>,
    floats: &mut Vec<f32>,
) -> Result<(), Bad> {
    let start = floats.len();
    if missing.is_some() || array.null_count() == 0 {
        with_number!(array, values, number => {
            let values = values.values();
            if map.is_raw() {
                vectorised(#[inline(always)] || floats.extend(values.iter().map(|&x| number(x) as f32)));
            } else {
                floats.extend(values.iter().map(|&x| map.apply(number(x))));
            }
        }, else {
            let Some(flags) = array.as_boolean_opt() else { unexpected(array) };
            floats.extend((0..flags.len()).map(|i| map.apply(f64::from(u8::from(flags.value(i))))));
        });
        patch(array, &mut floats[start..], missing.unwrap_or_default());
        let added = &floats[start..];
        if vectorised(
            #[inline(always)]
            || added.iter().fold(true, |all, x| all & x.is_finite()),
        ) {
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
pub(super) fn scan(
    array: &ArrayRef,
    mut visit: impl FnMut(Option<f64>) -> Outcome<()>,
) -> Result<(), Bad> {
    with_number!(array, values, number => scan_values(values, |x| visit(x.map(number))), else {
        let Some(flags) = array.as_boolean_opt() else { unexpected(array) };
        scan_flags(flags, |flag| visit(flag.map(|f| f64::from(u8::from(f)))))
    })
}

/// Visits the rows of a primitive array.
pub(super) fn scan_values<T: ArrowPrimitiveType>(
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

pub(super) use with_whole;
