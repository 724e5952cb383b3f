//! The conversion of arrays of numbers and booleans.
//!
//! The common case is numbers that cannot be refused: a simple loop over a slice converts them, and
//! the compiler vectorises this loop. If the loop meets a number that may be refused, a slower loop
//! decodes the array value by value with the functions that also decode text. The slower loop finds
//! the first bad row.

use std::fmt::Display;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, PrimitiveArray, downcast_integer_array};
use arrow_schema::DataType;
use zillion_device::simd::vectorised;
use zillion_feature::raw_value::{RawId, ValueError, id_from_float, id_from_i64, id_from_u64};
use zillion_feature::{FeatureKey, RawType, RawValue};

use super::bad::{Bad, unexpected};
use crate::value::{self, Outcome, Refusal, Transform};

/// A whole number of any width.
pub(super) trait Whole: Copy {
    fn id<I: RawId>(self, raw: RawType) -> Result<I, ValueError>;
    /// Returns the key of the value. The caller must have checked the value with [`Whole::fits`].
    fn mix(self) -> FeatureKey;
    fn fits(self, raw: RawType) -> bool;
    fn time(self) -> Outcome<i64>;
}

macro_rules! impl_whole {
    ($wide:ty, $id_from:ident, $key_from:ident: $($narrow:ty),*) => { $(
        impl Whole for $narrow {
            #[inline(always)]
            fn id<I: RawId>(self, raw: RawType) -> Result<I, ValueError> {
                $id_from(raw, <$wide>::from(self))
            }
            #[inline(always)]
            fn mix(self) -> FeatureKey {
                FeatureKey::$key_from(<$wide>::from(self))
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

impl_whole!(i64, id_from_i64, from_i64: i8, i16, i32, i64);
impl_whole!(u64, id_from_u64, from_u64: u8, u16, u32, u64);

/// A type of ids that can be read from an array.
pub(super) trait ArrayId: RawId {
    /// Appends the ids of an array of whole numbers, of floating-point numbers without a fraction,
    /// or of booleans.
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
        downcast_integer_array!(
            array => mix_all(array, raw, *missing, ids),
            _ => scan_ids(array, raw, |id: Option<Self>| ids.push(id.unwrap_or(*missing)))
        )
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
        downcast_integer_array!(
            array => scan_values(array.iter(), |value| {
                ids.push(of(value.map(|v| v.id(raw)).transpose()?));
                Ok(())
            }),
            _ => scan_ids(array, raw, |id| ids.push(of(id)))
        )
    }
}

/// Calls `visit` with the id in each row of an array of floating-point numbers or booleans, or with
/// `None` if the row is null.
pub(super) fn scan_ids<I: RawId>(
    array: &ArrayRef,
    raw: RawType,
    mut visit: impl FnMut(Option<I>),
) -> Result<(), Bad> {
    // A whole number from this one on may stand for several numbers.
    let first_rounded = match array.data_type() {
        DataType::Float16 => 2048.0,
        DataType::Float32 => 16_777_216.0,
        _ => f64::INFINITY,
    };
    scan(array, |x| {
        let id = match x {
            Some(x) if x.abs() >= first_rounded && x.fract() == 0.0 => {
                return Err(ValueError::Rounded.into());
            }
            x => x.map(|x| id_from_float(raw, x)).transpose()?,
        };
        visit(id);
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
        return scan_values(array.iter(), |value| {
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

/// Writes `missing` into `values` for each row of the array that is null.
fn patch<T: Copy>(array: &dyn Array, values: &mut [T], missing: T) {
    if let Some(nulls) = array.nulls().filter(|n| n.null_count() > 0) {
        for (row, value) in values.iter_mut().enumerate() {
            if nulls.is_null(row) {
                *value = missing;
            }
        }
    }
}

/// Transforms the numbers of an array and appends them.
pub(super) fn numbers(
    array: &ArrayRef,
    map: &Transform,
    missing: Option<f32>,
    floats: &mut Vec<f32>,
) -> Result<(), Bad> {
    let start = floats.len();
    if missing.is_some() || array.null_count() == 0 {
        downcast_integer_array!(
            array => extend(floats, array, map, |x| x as f64),
            DataType::Float16 => extend(floats, array.as_primitive::<Float16Type>(), map, |x| x.to_f64()),
            DataType::Float32 => extend(floats, array.as_primitive::<Float32Type>(), map, f64::from),
            DataType::Float64 => extend(floats, array.as_primitive::<Float64Type>(), map, |x| x),
            _ => {
                let Some(flags) = array.as_boolean_opt() else { unexpected(array) };
                let number = |i: usize| map.apply(f64::from(u8::from(flags.value(i))));
                floats.extend((0..flags.len()).map(number));
            }
        );
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

/// Transforms and appends all values of an array. The values of null rows are converted too,
/// although they have no meaning.
fn extend<T: ArrowPrimitiveType>(
    floats: &mut Vec<f32>,
    array: &PrimitiveArray<T>,
    map: &Transform,
    number: impl Fn(T::Native) -> f64,
) {
    let values: &[T::Native] = array.values();
    if map.is_raw() {
        vectorised(
            #[inline(always)]
            || floats.extend(values.iter().map(|&x| number(x) as f32)),
        );
    } else {
        floats.extend(values.iter().map(|&x| map.apply(number(x))));
    }
}

/// Calls `visit` with the number in each row of an array of numbers or booleans, or with `None` if
/// the row is null.
pub(super) fn scan(
    array: &ArrayRef,
    mut visit: impl FnMut(Option<f64>) -> Outcome<()>,
) -> Result<(), Bad> {
    downcast_integer_array!(
        array => scan_values(array.iter(), |x| visit(x.map(|x| x as f64))),
        DataType::Float16 => {
            let numbers = array.as_primitive::<Float16Type>();
            scan_values(numbers.iter(), |x| visit(x.map(|x| x.to_f64())))
        },
        DataType::Float32 => {
            let numbers = array.as_primitive::<Float32Type>();
            scan_values(numbers.iter(), |x| visit(x.map(f64::from)))
        },
        DataType::Float64 => scan_values(array.as_primitive::<Float64Type>().iter(), visit),
        _ => {
            let Some(flags) = array.as_boolean_opt() else { unexpected(array) };
            scan_values(flags.iter(), |flag| visit(flag.map(|f| f64::from(u8::from(f)))))
        }
    )
}

/// Calls `visit` with the value of each row, and stops at the first value that `visit` refuses.
pub(super) fn scan_values<T: Copy + Display>(
    values: impl Iterator<Item = Option<T>>,
    mut visit: impl FnMut(Option<T>) -> Outcome<()>,
) -> Result<(), Bad> {
    for (row, value) in values.enumerate() {
        visit(value).map_err(|refusal| Bad {
            row,
            refusal,
            text: value.map(|v| v.to_string().into_bytes()),
        })?;
    }
    Ok(())
}
