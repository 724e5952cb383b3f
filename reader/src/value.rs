//! One raw value to what a batch holds. Text and Parquet both end here, so that they agree.

use std::sync::Arc;

use zillion_feature::{FeatureKey, NumericMap, TimeUnit};

use crate::field::{Field, Role};
use crate::id;

/// Why a value cannot be used. Small, because it travels through the inner loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotWhole,
    Beyond64Bits,
    Negative,
    NotNumber,
    NotFinite,
    BeyondF32,
    Missing,
    NotLabel,
    NotWeight,
    NotTime,
    NotInUnit,
    NotUtf8,
    TooManyIds,
    NoSideRow,
    NoText,
    List,
    Object,
    Weighted,
}

pub(crate) type Outcome<T> = Result<T, Refusal>;

/// Longest piece of a refused text that a message shows.
const SHOWN: usize = 48;

impl Refusal {
    /// Whether the row alone is to blame, so that it can be left out; else it is all that stands together.
    pub(crate) fn is_about_one_row(self) -> bool {
        self != Self::TooManyIds
    }

    /// The message: the text, what is wrong with it, what to do. `text` is `None` for a missing value.
    pub(crate) fn explain(self, field: &Field, text: Option<&[u8]>) -> String {
        let used_by = &field.used_by;
        let shown = shorten(text.unwrap_or_default());
        let says = |problem: &str| format!("\"{shown}\" {problem}");
        match self {
            Self::NotWhole => says(&format!(
                "is not a whole number; declare `type = \"string\"` for {used_by} if its ids are text, or add this text to `data.null` if it stands for a missing value"
            )),
            Self::Beyond64Bits => says(&format!(
                "does not fit the declared 64-bit type of {used_by}; declare `type = \"u64\"` or `type = \"string\"`"
            )),
            Self::Negative => says(&format!(
                "is negative, but {used_by} is declared u64; declare `type = \"i64\"`"
            )),
            Self::NotNumber => says(&format!(
                "is not a number, which {used_by} needs; add it to `data.null` if it stands for a missing value{}",
                if text.is_some_and(|t| t.contains(&b',')) {
                    ", or set `data.decimal = \",\"` if its comma stands before a fraction"
                } else {
                    ""
                }
            )),
            Self::NotFinite => says(&format!(
                "is not finite; clean the data, or write it as a missing value and give {used_by} a `missing = <number>`"
            )),
            Self::BeyondF32 => says(&format!(
                "is too large for 32-bit floats; scale the column that {used_by} reads"
            )),
            Self::Missing => match field.role {
                Role::Numeric { .. } | Role::Number { .. } => format!(
                    "the value is missing; give {used_by} a `missing = <number>` or clean the data"
                ),
                _ => format!("the value is missing, and {used_by} needs one in every row"),
            },
            Self::NotLabel => says(&format!(
                "is not 0 or 1, which {used_by} needs; map the labels to 0 and 1 first, or give it \
                 `at_least = <number>`"
            )),
            Self::NotWeight => says("is not a weight; weights are finite and not negative"),
            Self::NotTime => says("is not a time; event times are whole numbers"),
            Self::NotInUnit => match field.role {
                Role::EventTime { unit: Some(unit) } => says(&format!(
                    "is no number of {unit} since 1970 that an event can have (from 1980 to 2199); set \
                     `columns.event_time_unit` to what the column counts, or remove it if that is something else"
                )),
                _ => unreachable!("only event times have a unit"),
            },
            Self::NotUtf8 => says("is not UTF-8; convert the file (`iconv -t UTF-8`)"),
            Self::NoSideRow => match &field.role {
                Role::SideRow(lookup) => says(&lookup.explain(used_by)),
                other => unreachable!("{other:?} looks nothing up"),
            },
            Self::NoText => says(&format!(
                "is a number with a fraction, which {used_by} cannot tell from other spellings of it; write it as a string"
            )),
            Self::List => match field.role {
                Role::Id { .. } | Role::RawId { .. } => says(&format!(
                    "is a list or has a weight, but {used_by} reads one plain id a row; declare `kind = \"ids\"`"
                )),
                _ => says(&format!(
                    "is a list, but {used_by} reads one value a row; name another column"
                )),
            },
            Self::Object => says(&format!(
                "is an object, which {used_by} cannot read; write its parts as keys of their own"
            )),
            Self::Weighted => says(&format!(
                "has weights other than 1, which a request for {used_by} has no place for; rows like this can be scored from files alone"
            )),
            Self::TooManyIds => {
                "more than 2^31 ids in one window; lower `data.shuffle_window`".to_owned()
            }
        }
    }
}

pub(crate) fn shorten(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}..", text[..end].escape_debug()),
        None => text.escape_debug().to_string(),
    }
}

/// A feature's transform, with the results for small counts at hand: most numbers of a log are small
/// counts, and a logarithm costs as much as decoding ten of them.
#[derive(Clone, Debug)]
pub(crate) struct Transform {
    map: NumericMap,
    small: Arc<[f32]>,
}

impl Transform {
    const SMALL: u32 = 1024;

    pub(crate) fn new(map: NumericMap) -> Self {
        let small = match map {
            NumericMap::Log1p => (0..Self::SMALL).map(|i| map.apply(f64::from(i))).collect(),
            _ => Arc::default(),
        };
        Self { map, small }
    }

    pub(crate) fn is_raw(&self) -> bool {
        self.map == NumericMap::Raw
    }

    /// What the map makes of a number, bit for bit.
    #[inline]
    pub(crate) fn apply(&self, x: f64) -> f32 {
        // Saturates; the comparison of bits also tells -0 from 0.
        let count = x as u32;
        match self.small.get(count as usize) {
            Some(&y) if f64::from(count).to_bits() == x.to_bits() => y,
            _ => self.map.apply(x),
        }
    }
}

/// A finite number through a feature's transform.
#[inline]
pub(crate) fn numeric(map: &Transform, x: f64) -> Outcome<f32> {
    if !x.is_finite() {
        return Err(Refusal::NotFinite);
    }
    let y = map.apply(x);
    if y.is_finite() { Ok(y) } else { Err(Refusal::BeyondF32) }
}

#[inline]
pub(crate) fn finite(x: f64) -> Outcome<f64> {
    if x.is_finite() { Ok(x) } else { Err(Refusal::NotFinite) }
}

/// A number as a label: 0 or 1 as it stands, or any number held against a threshold.
#[inline]
pub(crate) fn label(x: f64, at_least: Option<f64>) -> Outcome<f32> {
    match at_least {
        Some(threshold) => Ok(f32::from(u8::from(finite(x)? >= threshold))),
        None if x == 0.0 || x == 1.0 => Ok(x.abs() as f32),
        None => Err(Refusal::NotLabel),
    }
}

pub(crate) fn label_from_cell(cell: &[u8]) -> Outcome<f32> {
    let cell = cell.trim_ascii();
    match cell {
        b"0" => Ok(0.0),
        b"1" => Ok(1.0),
        _ if cell.eq_ignore_ascii_case(b"true") => Ok(1.0),
        _ if cell.eq_ignore_ascii_case(b"false") => Ok(0.0),
        _ => parse_f64(cell).map_err(|_| Refusal::NotLabel).and_then(|x| label(x, None)),
    }
}

#[inline]
pub(crate) fn weight(x: f64) -> Outcome<f32> {
    let y = x as f32;
    if y.is_finite() && x >= 0.0 { Ok(y) } else { Err(Refusal::NotWeight) }
}

/// A group id: whole numbers by value, so that a column of numbers groups alike in text and in
/// Parquet, and everything else by its text.
pub(crate) fn group_from_bytes(text: &[u8]) -> Outcome<u64> {
    if is_canonical(text) {
        if let Ok(id) = parse_i64(text) {
            return Ok(FeatureKey::from_i64(id).0);
        }
        if let Ok(id) = parse_u64(text) {
            return Ok(FeatureKey::from_u64(id).0);
        }
    }
    id::from_bytes(text).map(|key: FeatureKey| key.0)
}

/// Whether a text is what writing the number that it stands for gives again.
fn is_canonical(text: &[u8]) -> bool {
    matches!(text, b"0" | [b'-', b'1'..=b'9', ..] | [b'1'..=b'9', ..])
}

pub(crate) fn time_from_cell(cell: &[u8]) -> Outcome<i64> {
    parse_i64(cell.trim_ascii()).map_err(|_| Refusal::NotTime)
}

/// An event time as it stands, if it can be one.
#[inline]
pub(crate) fn time(time: i64, unit: Option<TimeUnit>) -> Outcome<i64> {
    match unit {
        Some(unit) if unit.to_ms(time).is_none() => Err(Refusal::NotInUnit),
        _ => Ok(time),
    }
}

#[inline]
pub(crate) fn parse_i64(text: &[u8]) -> Outcome<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let magnitude = parse_digits(digits)?;
    if negative {
        // -2^63 has no positive twin.
        0i64.checked_sub_unsigned(magnitude).ok_or(Refusal::Beyond64Bits)
    } else {
        i64::try_from(magnitude).map_err(|_| Refusal::Beyond64Bits)
    }
}

#[inline]
pub(crate) fn parse_u64(text: &[u8]) -> Outcome<u64> {
    match text {
        [b'-', digits @ ..] => match parse_digits(digits)? {
            0 => Ok(0),
            _ => Err(Refusal::Negative),
        },
        [b'+', digits @ ..] | digits => parse_digits(digits),
    }
}

#[inline]
fn parse_digits(digits: &[u8]) -> Outcome<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Refusal::NotWhole);
    }
    let step = |value: u64, digit: u8| value * 10 + u64::from(digit - b'0');
    // Nineteen digits always fit.
    if digits.len() <= 19 {
        return Ok(digits.iter().fold(0, |value, &digit| step(value, digit)));
    }
    digits.iter().try_fold(0u64, |value, &digit| {
        value
            .checked_mul(10)
            .and_then(|v| v.checked_add(u64::from(digit - b'0')))
            .ok_or(Refusal::Beyond64Bits)
    })
}

/// A number as Rust (and C, and Python) write it. NaN and infinities parse; the caller refuses them.
#[inline]
pub(crate) fn parse_f64(text: &[u8]) -> Outcome<f64> {
    // Counts are the common case; up to 15 digits are exact.
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
    let text = std::str::from_utf8(text).map_err(|_| Refusal::NotNumber)?;
    text.parse().map_err(|_| Refusal::NotNumber)
}

/// The same with a comma before the fraction. A point is refused: there it separates thousands, and
/// reading 1.234 as a little more than one would be wrong without a sign of it.
pub(crate) fn parse_f64_with_comma(text: &[u8]) -> Outcome<f64> {
    let mut buffer = [0; 64];
    if text.contains(&b'.') || text.len() > buffer.len() {
        return Err(Refusal::NotNumber);
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
        assert_eq!(parse_i64(b"9223372036854775808"), Err(Refusal::Beyond64Bits));
        assert_eq!(parse_u64(b"18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), Err(Refusal::Beyond64Bits));
        assert_eq!(parse_u64(b"00000000000000000000000000042"), Ok(42));
        assert_eq!(parse_u64(b"-1"), Err(Refusal::Negative));
        for text in ["", "-", "+", "4 2", "42.0", "0x2a", "--1", "\u{663}"] {
            assert_eq!(parse_i64(text.as_bytes()), Err(Refusal::NotWhole), "{text:?}");
        }
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
    fn labels_are_zero_or_one_in_any_spelling() {
        for (text, value) in
            [("0", 0.0), (" 1", 1.0), ("1.0", 1.0), ("True", 1.0), ("FALSE", 0.0), ("-0.0", 0.0)]
        {
            assert_eq!(
                label_from_cell(text.as_bytes()).map(f32::to_bits),
                Ok(f32::to_bits(value)),
                "{text}"
            );
        }
        for text in ["2", "0.5", "-1", "yes", "nan", "1e-400x"] {
            assert_eq!(label_from_cell(text.as_bytes()), Err(Refusal::NotLabel), "{text}");
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

    #[test]
    fn a_transform_is_its_map_bit_for_bit() {
        let maps = [
            NumericMap::Raw,
            NumericMap::Log1p,
            NumericMap::Standardise { mean: 3.0, inverse_std: 0.3 },
        ];
        for map in maps {
            let transform = Transform::new(map);
            let numbers = (-2000..2000).map(|i| f64::from(i) / 2.0);
            for x in numbers.chain([-0.0, 1e300, -1e300, f64::MAX, 1e-300, 4e9]) {
                assert_eq!(transform.apply(x).to_bits(), map.apply(x).to_bits(), "{map:?} {x}");
            }
        }
    }

    #[test]
    fn long_texts_are_shortened() {
        assert_eq!(shorten("ä".repeat(60).as_bytes()), format!("{}..", "ä".repeat(48)));
        assert_eq!(shorten(b"a\n\xff"), "a\\n\u{fffd}");
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
