//! The conversion of raw values to keys and numbers.
//!
//! Training (the readers of text, JSON and arrays) and serving (requests) both use this module, so
//! that a value has the same meaning in both. One function converts a raw value to a key, and
//! another function converts it to a number.
//!
//! The errors are small and contain no text, because the inner loops of the reader return them. The
//! reader and the request encoder convert them to messages.

use std::borrow::Cow;

use crate::key::FeatureKey;
use crate::schema::{RawType, TimeUnit};

/// The smallest number of double precision that may have been rounded to a whole number.
const FIRST_ROUNDED: f64 = 9_007_199_254_740_992.0;

/// The reason why a raw value is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueError {
    /// The value is not a whole number, but its declared type requires one.
    NotWhole,
    /// The whole number does not fit the 64-bit type.
    Beyond64Bits,
    /// The number is negative, but its declared type has no sign.
    Negative,
    /// The text is not a number, but the feature requires one.
    NotNumber,
    /// The number is NaN or infinite.
    NotFinite,
    /// The id is a floating-point number that is so large that it may have been rounded.
    Rounded,
    /// The text is not UTF-8.
    NotUtf8,
    /// The value is a floating-point number, but its declared type is text. Such a number has no
    /// unique text, because it can be written in several ways.
    NoText,
    /// The value is neither a date nor a time.
    NotTime,
    /// The text is a date whose order of day and month is unknown.
    AmbiguousDate,
    /// The value is a number, but the rule of the time has no unit.
    NoTimeUnit,
    /// The number is not a time of the years 1980 to 2199 in this unit.
    NotInUnit(TimeUnit),
}

/// A raw value in a request or a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RawValue<'a> {
    /// A missing value, such as an empty cell or a null.
    #[default]
    Missing,
    /// A whole number that fits an `i64`.
    Int(i64),
    /// A whole number that fits a `u64` but not an `i64`.
    Uint(u64),
    /// A floating-point number of 64 bits.
    Float(f64),
    /// A boolean. As a number it is 1 or 0; as a text it is `true` or `false`.
    Bool(bool),
    /// A text. An empty text is a missing value, as in files.
    Text(Cow<'a, str>),
}

/// A type that an id can be read into: the key of the id, or the id itself for raw rows.
pub trait RawId: Clone {
    /// Returns a placeholder for a missing id. The caller drops or replaces it later.
    fn none() -> Self;
    /// Converts a signed id.
    fn of_i64(id: i64) -> Self;
    /// Converts an unsigned id.
    fn of_u64(id: u64) -> Self;
    /// Converts a text id.
    fn of_text(text: &str) -> Self;
}

impl RawId for FeatureKey {
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

impl RawId for RawValue<'static> {
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

impl RawValue<'_> {
    /// Returns the value as an id of the declared type `raw`, or `None` if the value is missing.
    ///
    /// # Errors
    /// Returns an error if the value cannot be an id of this type.
    pub fn id<I: RawId>(&self, raw: RawType) -> Result<Option<I>, ValueError> {
        match self {
            Self::Missing => Ok(None),
            Self::Int(id) => id_from_int(raw, *id).map(Some),
            Self::Uint(id) => id_from_uint(raw, *id).map(Some),
            Self::Bool(flag) => Ok(Some(id_from_flag(raw, *flag))),
            Self::Float(x) => id_from_float(raw, *x).map(Some),
            Self::Text(text) if text.is_empty() => Ok(None),
            Self::Text(text) => id_from_cell(raw, text.as_bytes()).map(Some),
        }
    }

    /// Returns the value as a number, or `None` if the value is missing.
    ///
    /// # Errors
    /// Returns an error if the value is not a finite number.
    pub fn number(&self) -> Result<Option<f64>, ValueError> {
        let x = match self {
            Self::Missing => return Ok(None),
            Self::Int(x) => *x as f64,
            Self::Uint(x) => *x as f64,
            Self::Float(x) => *x,
            Self::Bool(flag) => f64::from(u8::from(*flag)),
            Self::Text(text) if text.is_empty() => return Ok(None),
            Self::Text(text) => parse_f64(text.as_bytes().trim_ascii())?,
        };
        finite(x).map(Some)
    }
}

/// Returns a whole number as an id of the declared type `raw`. If the type is text, the id is the
/// decimal text of the number.
///
/// # Errors
/// Returns an error if the number does not fit the type.
pub fn id_from_int<I: RawId>(raw: RawType, id: i64) -> Result<I, ValueError> {
    match raw {
        RawType::String => Ok(I::of_text(&id.to_string())),
        RawType::I64 | RawType::U64 => id_from_i64(raw, id),
    }
}

/// Returns an unsigned whole number as an id of the declared type `raw`, like [`id_from_int`].
///
/// # Errors
/// Returns an error if the number does not fit the type.
pub fn id_from_uint<I: RawId>(raw: RawType, id: u64) -> Result<I, ValueError> {
    match raw {
        RawType::String => Ok(I::of_text(&id.to_string())),
        RawType::I64 | RawType::U64 => id_from_u64(raw, id),
    }
}

/// Returns a boolean as an id of the declared type `raw`: the number 1 or 0, or the text `true` or
/// `false`.
pub fn id_from_flag<I: RawId>(raw: RawType, flag: bool) -> I {
    match raw {
        RawType::String => I::of_text(if flag { "true" } else { "false" }),
        RawType::I64 | RawType::U64 => I::of_u64(u64::from(flag)),
    }
}

/// Returns a signed number as an id. `raw` must be a type of whole numbers.
///
/// # Errors
/// Returns an error if the number does not fit the type.
#[inline(always)]
pub fn id_from_i64<I: RawId>(raw: RawType, id: i64) -> Result<I, ValueError> {
    if raw == RawType::U64 && id < 0 {
        return Err(ValueError::Negative);
    }
    Ok(I::of_i64(id))
}

/// Returns an unsigned number as an id. `raw` must be a type of whole numbers.
///
/// # Errors
/// Returns an error if the number does not fit the type.
#[inline(always)]
pub fn id_from_u64<I: RawId>(raw: RawType, id: u64) -> Result<I, ValueError> {
    if raw == RawType::I64 && id > i64::MAX as u64 {
        return Err(ValueError::Beyond64Bits);
    }
    Ok(I::of_u64(id))
}

/// Returns a floating-point number as an id of the declared type `raw`. Some programs write the
/// whole number 42 as 42.0, for example in a column where a value is missing.
///
/// # Errors
/// Returns an error if the number is not whole, if it may have been rounded (from 2⁵³ on), if it
/// does not fit the type, or if the type is text.
#[inline]
pub fn id_from_float<I: RawId>(raw: RawType, x: f64) -> Result<I, ValueError> {
    match raw {
        RawType::String => Err(ValueError::NoText),
        RawType::I64 | RawType::U64 if x.fract() != 0.0 => Err(ValueError::NotWhole),
        RawType::I64 | RawType::U64 if x.abs() >= FIRST_ROUNDED => Err(ValueError::Rounded),
        RawType::I64 | RawType::U64 => id_from_i64(raw, x as i64),
    }
}

/// Returns the text of a cell as an id of the declared type `raw`. A whole number may end with
/// `.0`, because some programs write a column of whole numbers so if a value is missing. Longer
/// fractions are refused: in `42.000` the point may separate thousands.
///
/// # Errors
/// Returns an error if the text is not an id of the type.
#[inline]
pub fn id_from_cell<I: RawId>(raw: RawType, cell: &[u8]) -> Result<I, ValueError> {
    match raw {
        RawType::I64 => match parse_whole(cell.trim_ascii(), parse_i64) {
            Err(ValueError::NotWhole) => id_from_word(raw, cell),
            parsed => parsed.map(I::of_i64),
        },
        RawType::U64 => match parse_whole(cell.trim_ascii(), parse_u64) {
            Err(ValueError::NotWhole) => id_from_word(raw, cell),
            parsed => parsed.map(I::of_u64),
        },
        RawType::String => id_from_bytes(cell),
    }
}

/// Returns the id of a text that means true or false, as the number 1 or 0.
#[cold]
fn id_from_word<I: RawId>(raw: RawType, cell: &[u8]) -> Result<I, ValueError> {
    parse_flag(cell.trim_ascii()).map(|flag| id_from_flag(raw, flag)).ok_or(ValueError::NotWhole)
}

/// Parses the words `true` and `false`, in letters of either case.
fn parse_flag(text: &[u8]) -> Option<bool> {
    let is = |word: &str| text.eq_ignore_ascii_case(word.as_bytes());
    if is("true") { Some(true) } else { is("false").then_some(false) }
}

/// Parses a text as a whole number, without the fraction `.0`.
#[inline]
fn parse_whole<T>(
    text: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, ValueError>,
) -> Result<T, ValueError> {
    match (parse(text), text) {
        (Err(ValueError::NotWhole), [whole @ .., b'.', b'0']) => parse(whole),
        (parsed, _) => parsed,
    }
}

/// Returns a text id that is given as bytes.
///
/// # Errors
/// Returns an error if the text is not UTF-8.
#[inline]
pub fn id_from_bytes<I: RawId>(text: &[u8]) -> Result<I, ValueError> {
    std::str::from_utf8(text).map(I::of_text).map_err(|_| ValueError::NotUtf8)
}

/// Returns the group id of a cell. A whole number in its usual spelling is grouped by its value, so
/// that a column of numbers has the same groups in text and in Parquet. All other cells are grouped
/// by their text.
///
/// # Errors
/// Returns an error if the text is not UTF-8.
pub fn group_from_bytes(text: &[u8]) -> Result<u64, ValueError> {
    if is_canonical(text) {
        if let Ok(id) = parse_i64(text) {
            return Ok(FeatureKey::from_i64(id).0);
        }
        if let Ok(id) = parse_u64(text) {
            return Ok(FeatureKey::from_u64(id).0);
        }
    }
    id_from_bytes(text).map(|key: FeatureKey| key.0)
}

/// Returns whether the beginning of a text fits a whole number in its usual spelling, which has no
/// leading zeros and no plus sign. The rest of the text is not checked.
fn is_canonical(text: &[u8]) -> bool {
    matches!(text, b"0" | [b'-', b'1'..=b'9', ..] | [b'1'..=b'9', ..])
}

/// Returns the number unchanged if it is finite.
///
/// # Errors
/// Returns an error if the number is NaN or infinite.
#[inline]
pub fn finite(x: f64) -> Result<f64, ValueError> {
    if x.is_finite() { Ok(x) } else { Err(ValueError::NotFinite) }
}

/// Parses a text as a signed whole number.
///
/// # Errors
/// Returns an error if the text is not a whole number, or if the number does not fit 64 bits.
#[inline]
pub fn parse_i64(text: &[u8]) -> Result<i64, ValueError> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let magnitude = parse_digits(digits)?;
    if negative {
        // The number -2^63 has no positive counterpart.
        0i64.checked_sub_unsigned(magnitude).ok_or(ValueError::Beyond64Bits)
    } else {
        i64::try_from(magnitude).map_err(|_| ValueError::Beyond64Bits)
    }
}

/// Parses a text as an unsigned whole number.
///
/// # Errors
/// Returns an error if the text is not a whole number, or if the number is negative or does not fit
/// 64 bits.
#[inline]
pub fn parse_u64(text: &[u8]) -> Result<u64, ValueError> {
    match text {
        [b'-', digits @ ..] => match parse_digits(digits)? {
            0 => Ok(0),
            _ => Err(ValueError::Negative),
        },
        [b'+', digits @ ..] | digits => parse_digits(digits),
    }
}

#[inline]
fn parse_digits(digits: &[u8]) -> Result<u64, ValueError> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ValueError::NotWhole);
    }
    let mut digits = digits.iter().map(|digit| u64::from(digit - b'0'));
    // A number of nineteen digits always fits.
    if digits.len() <= 19 {
        return Ok(digits.fold(0, |value, digit| value * 10 + digit));
    }
    let value = digits.try_fold(0u64, |value, digit| value.checked_mul(10)?.checked_add(digit));
    value.ok_or(ValueError::Beyond64Bits)
}

/// Parses a text as a floating-point number in the common notation of Rust, C and Python. NaN and
/// infinities are accepted; the caller must refuse them. The words `true` and `false` are the
/// numbers 1 and 0.
///
/// # Errors
/// Returns an error if the text is not a number.
#[inline]
pub fn parse_f64(text: &[u8]) -> Result<f64, ValueError> {
    // Counts are the most common case, and numbers of up to 15 digits are exact.
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.len() <= 15
        && let Ok(magnitude) = parse_digits(digits)
    {
        let x = magnitude as f64;
        return Ok(if negative { -x } else { x });
    }
    let text = std::str::from_utf8(text).map_err(|_| ValueError::NotNumber)?;
    match text.parse() {
        Ok(x) => Ok(x),
        Err(_) => parse_flag(text.as_bytes())
            .map(|flag| f64::from(u8::from(flag)))
            .ok_or(ValueError::NotNumber),
    }
}

/// Parses a text as a floating-point number with a decimal comma. A text with a point is refused,
/// because the point may separate thousands. If 1.234 were then read as a number slightly above 1,
/// nobody would notice the error.
///
/// # Errors
/// Returns an error if the text is not a number, or if it contains a point.
pub fn parse_f64_with_comma(text: &[u8]) -> Result<f64, ValueError> {
    let mut buffer = [0; 64];
    if text.contains(&b'.') || text.len() > buffer.len() {
        return Err(ValueError::NotNumber);
    }
    let buffer = &mut buffer[..text.len()];
    buffer.copy_from_slice(text);
    if let Some(at) = buffer.iter().position(|&b| b == b',') {
        buffer[at] = b'.';
    }
    parse_f64(buffer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_ends_of_the_integer_types_parse() {
        assert_eq!(parse_i64(b"-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(parse_i64(b"9223372036854775807"), Ok(i64::MAX));
        assert_eq!(parse_i64(b"9223372036854775808"), Err(ValueError::Beyond64Bits));
        assert_eq!(parse_u64(b"18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), Err(ValueError::Beyond64Bits));
        assert_eq!(parse_u64(b"00000000000000000000000000042"), Ok(42));
        assert_eq!(parse_u64(b"-1"), Err(ValueError::Negative));
        for text in ["", "-", "+", "4 2", "42.0", "0x2a", "--1", "\u{663}"] {
            assert_eq!(parse_i64(text.as_bytes()), Err(ValueError::NotWhole), "{text:?}");
        }
    }

    #[test]
    fn words_of_truth_are_numbers() {
        for (text, x) in [("true", 1.0), ("False", 0.0), ("TRUE", 1.0)] {
            assert_eq!(parse_f64(text.as_bytes()), Ok(x), "{text}");
            let id = id_from_cell::<RawValue<'static>>(RawType::I64, text.as_bytes());
            assert_eq!(id, Ok(RawValue::Uint(x as u64)), "{text}");
        }
        assert_eq!(parse_f64(b"yes"), Err(ValueError::NotNumber));
    }

    #[test]
    fn whole_numbers_with_a_fraction_of_zero_are_ids() {
        let id = |raw, text: &str| id_from_cell::<RawValue<'static>>(raw, text.as_bytes());
        assert_eq!(id(RawType::I64, "-42.0"), Ok(RawValue::Int(-42)));
        assert_eq!(id(RawType::U64, "18446744073709551615.0"), Ok(RawValue::Uint(u64::MAX)));
        assert_eq!(id(RawType::String, "42.0"), Ok(RawValue::Text("42.0".into())));
        for text in ["42.5", "42.00", "42.000", ".0", "42.", "4.2.0", "nan"] {
            assert_eq!(id(RawType::I64, text), Err(ValueError::NotWhole), "{text}");
        }
        let of = |x| id_from_float::<RawValue<'static>>(RawType::I64, x);
        assert_eq!(of(-0.0), Ok(RawValue::Int(0)));
        assert_eq!(of(8e15), Ok(RawValue::Int(8_000_000_000_000_000)));
        assert_eq!(of(1e16), Err(ValueError::Rounded));
        for x in [0.5, f64::NAN] {
            assert_eq!(of(x), Err(ValueError::NotWhole), "{x}");
        }
        assert_eq!(of(f64::INFINITY), Err(ValueError::NotWhole));
    }

    #[test]
    fn a_decimal_comma_is_one_and_a_point_is_none() {
        for (text, x) in [("1,5", 1.5), ("-0,25", -0.25), ("7", 7.0), ("2,5e3", 2500.0)] {
            assert_eq!(parse_f64_with_comma(text.as_bytes()), Ok(x), "{text}");
        }
        for text in ["1.5", "1.234,5", "1,2,3", "", "a"] {
            assert!(parse_f64_with_comma(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn groups_agree_between_numbers_and_their_texts() {
        for id in [0, 1, -1, 42, i64::MIN, i64::MAX] {
            assert_eq!(group_from_bytes(id.to_string().as_bytes()), Ok(FeatureKey::from_i64(id).0));
        }
        assert_eq!(group_from_bytes(b"18446744073709551615"), Ok(FeatureKey::from_u64(u64::MAX).0));
        assert_ne!(group_from_bytes(b"007"), group_from_bytes(b"7"));
    }

    proptest! {
        #[test]
        fn integers_parse_as_the_standard_library_does(n in any::<i64>(), m in any::<u64>(), text in "[-+0-9. ]{0,22}") {
            prop_assert_eq!(parse_i64(n.to_string().as_bytes()), Ok(n));
            prop_assert_eq!(parse_u64(m.to_string().as_bytes()), Ok(m));
            prop_assert_eq!(parse_i64(text.as_bytes()).ok(), text.parse().ok());
        }

        #[test]
        fn numbers_parse_as_the_standard_library_does(x in any::<f64>(), text in "-?[0-9]{1,18}(\\.[0-9]{0,4})?") {
            prop_assume!(!x.is_nan());
            prop_assert_eq!(parse_f64(x.to_string().as_bytes()).map(f64::to_bits), Ok(x.to_bits()));
            prop_assert_eq!(parse_f64(text.as_bytes()).ok().map(f64::to_bits), text.parse::<f64>().ok().map(f64::to_bits));
        }
    }
}
