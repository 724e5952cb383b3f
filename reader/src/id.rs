//! One raw id to what it becomes, under its declared type. Text and arrays both end here, so that they
//! agree on what an id is, whatever is made of it.

use zillion_feature::{FeatureKey, RawType, RawValue};

use crate::value::{Outcome, Refusal, parse_i64, parse_u64};

/// What an id becomes: its key, or in [`RawRows`](crate::RawRows) the id itself.
pub(crate) trait Id: Clone {
    /// What holds the place of a missing one until somebody drops or replaces it.
    fn none() -> Self;
    fn of_i64(id: i64) -> Self;
    fn of_u64(id: u64) -> Self;
    fn of_text(text: &str) -> Self;
}

impl Id for FeatureKey {
    fn none() -> Self {
        Self::default()
    }
    #[inline(always)]
    fn of_i64(id: i64) -> Self {
        Self::from_i64(id)
    }
    #[inline(always)]
    fn of_u64(id: u64) -> Self {
        Self::from_u64(id)
    }
    #[inline]
    fn of_text(text: &str) -> Self {
        Self::from_text(text)
    }
}

impl Id for RawValue<'static> {
    fn none() -> Self {
        Self::Missing
    }
    fn of_i64(id: i64) -> Self {
        Self::Int(id)
    }
    fn of_u64(id: u64) -> Self {
        Self::Uint(id)
    }
    fn of_text(text: &str) -> Self {
        Self::Text(text.to_owned().into())
    }
}

#[inline(always)]
pub(crate) fn from_i64<I: Id>(raw: RawType, id: i64) -> Outcome<I> {
    if raw == RawType::U64 && id < 0 {
        return Err(Refusal::Negative);
    }
    Ok(I::of_i64(id))
}

#[inline(always)]
pub(crate) fn from_u64<I: Id>(raw: RawType, id: u64) -> Outcome<I> {
    if raw == RawType::I64 && id > i64::MAX as u64 {
        return Err(Refusal::Beyond64Bits);
    }
    Ok(I::of_u64(id))
}

/// The id of a text cell.
#[inline]
pub(crate) fn from_cell<I: Id>(raw: RawType, cell: &[u8]) -> Outcome<I> {
    match raw {
        RawType::I64 => parse_i64(cell.trim_ascii()).map(I::of_i64),
        RawType::U64 => parse_u64(cell.trim_ascii()).map(I::of_u64),
        RawType::String => from_bytes(cell),
    }
}

#[inline]
pub(crate) fn from_bytes<I: Id>(text: &[u8]) -> Outcome<I> {
    std::str::from_utf8(text).map(I::of_text).map_err(|_| Refusal::NotUtf8)
}
