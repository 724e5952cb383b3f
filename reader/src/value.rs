//! The conversion of one raw value to its form in a batch. Text and Parquet share this code, so
//! that they produce the same batches.

use std::sync::Arc;

use zillion_feature::raw_value::{ValueError, finite, parse_f64};
use zillion_feature::{
    Bucketizer, Classes, FeatureKey, LabelColumn, LabelKind, LabelSpec, LabelValues, NumericMap,
    RawValue, TimeUnit,
};

/// The reason why a value cannot be used. The type is small, because inner loops return it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The raw value cannot be converted.
    Raw(ValueError),
    BeyondF32,
    Missing,
    NotLabel,
    /// The value of a label's column is neither one of the positive nor of the negative values.
    OtherLabel,
    NotClass,
    NegativeCount,
    NotWeight,
    NotTime,
    /// The event time is not plausible in the unit that the job names.
    NotInUnit(TimeUnit),
    TooManyIds,
    /// A vector has another number of floats than its feature.
    VectorSize {
        found: u32,
    },
    /// A float inside a vector is missing.
    VectorGap,
    /// An element of a list is missing, but its place matters.
    ListGap,
    NoSideRow,
    List,
    Object,
    Weighted,
}

impl From<ValueError> for Refusal {
    fn from(error: ValueError) -> Self {
        Self::Raw(error)
    }
}

pub(crate) type Outcome<T> = Result<T, Refusal>;

/// The maximum number of characters of a refused text that a message shows.
const SHOWN: usize = 48;

impl Refusal {
    /// Returns whether the problem concerns only one row, so that the row can be left out. The only
    /// exception is [`Refusal::TooManyIds`], which concerns several rows together.
    pub(crate) fn is_about_one_row(self) -> bool {
        self != Self::TooManyIds
    }
}

/// Returns a refused text in the form of a message: escaped and cut to [`SHOWN`] characters.
pub(crate) fn shorten(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}..", text[..end].escape_debug()),
        None => text.escape_debug().to_string(),
    }
}

/// A feature's transform with a table of the results for small whole numbers. Most numbers in a log
/// are small counts, and one logarithm takes the time of decoding ten counts.
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

    /// Returns the transform of a number. A result from the table is bit for bit equal to the
    /// computed result.
    #[inline]
    pub(crate) fn apply(&self, x: f64) -> f32 {
        // The conversion to `u32` saturates. The comparison of bits also distinguishes -0 from 0.
        let count = x as u32;
        match self.small.get(count as usize) {
            Some(&y) if f64::from(count).to_bits() == x.to_bits() => y,
            _ => self.map.apply(x),
        }
    }
}

/// Applies a feature's transform to a finite number.
#[inline]
pub(crate) fn numeric(map: &Transform, x: f64) -> Outcome<f32> {
    if !x.is_finite() {
        return Err(ValueError::NotFinite.into());
    }
    let y = map.apply(x);
    if y.is_finite() { Ok(y) } else { Err(Refusal::BeyondF32) }
}

/// The rule by which the value in a column becomes a label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LabelRule {
    /// The number is the label, and must be 0 or 1.
    Flag,
    /// The label is 1 for each number that reaches the threshold, and 0 for any other number.
    AtLeast(f64),
    /// The label is 1 for some values of the column, and 0 for others.
    Values(Arc<LabelValues>),
    /// The number is the label, and must be finite as a 32-bit float.
    Number,
    /// The number is the label, and must be finite as a 32-bit float and not negative.
    Count,
    /// The label is the index of the class whose number or text the column has.
    Class(Arc<ClassIndex>),
}

/// The classes of a label, in an order that can be searched.
#[derive(Debug, PartialEq)]
pub(crate) enum ClassIndex {
    /// The numbers in ascending order, with their indices.
    Numbers(Vec<(i64, f32)>),
    /// The texts in ascending order, with their indices.
    Texts(Vec<(String, f32)>),
}

impl ClassIndex {
    fn new(classes: &Classes) -> Self {
        fn sorted<T: Ord + Clone>(names: &[T]) -> Vec<(T, f32)> {
            let mut sorted: Vec<(T, f32)> =
                names.iter().cloned().zip((0u16..).map(f32::from)).collect();
            sorted.sort_by(|a, b| a.0.cmp(&b.0));
            sorted
        }
        match classes {
            Classes::Numbers(numbers) => Self::Numbers(sorted(numbers)),
            Classes::Texts(texts) => Self::Texts(sorted(texts)),
        }
    }

    /// Returns the index of the class of a number, or refuses the number.
    pub(crate) fn find_number(&self, x: f64) -> Outcome<f32> {
        let Self::Numbers(numbers) = self else { return Err(Refusal::NotClass) };
        // Classes are at most 2^53, so the conversion of a class is exact.
        let found = numbers.binary_search_by(|(number, _)| (*number as f64).total_cmp(&(x + 0.0)));
        found.map(|at| numbers[at].1).map_err(|_| Refusal::NotClass)
    }

    /// Returns the index of the class of a text, or refuses the text.
    pub(crate) fn find_text(&self, text: &[u8]) -> Outcome<f32> {
        let Self::Texts(texts) = self else { return Err(Refusal::NotClass) };
        let found = texts.binary_search_by(|(name, _)| name.as_bytes().cmp(text));
        found.map(|at| texts[at].1).map_err(|_| Refusal::NotClass)
    }

    /// Returns the names of the first classes for a message.
    pub(crate) fn describe(&self) -> String {
        /// The number of classes that a message names.
        const NAMED: usize = 8;
        let mut names: Vec<(f32, String)> = match self {
            Self::Numbers(all) => all.iter().map(|(name, at)| (*at, name.to_string())).collect(),
            Self::Texts(all) => {
                all.iter().map(|(name, at)| (*at, shorten(name.as_bytes()))).collect()
            }
        };
        names.sort_by(|a, b| a.0.total_cmp(&b.0));
        let more = if names.len() > NAMED { ", .." } else { "" };
        let first: Vec<String> = names.into_iter().take(NAMED).map(|(_, name)| name).collect();
        format!("{}{more}", first.join(", "))
    }
}

impl LabelRule {
    pub(crate) fn of(label: &LabelSpec) -> Self {
        if let Some(values) = &label.values {
            return Self::Values(Arc::new(values.clone()));
        }
        if let Some(classes) = &label.classes {
            return Self::Class(Arc::new(ClassIndex::new(classes)));
        }
        match (label.kind, label.at_least) {
            (LabelKind::Binary, Some(threshold)) => Self::AtLeast(threshold),
            (LabelKind::Binary, None) => Self::Flag,
            (LabelKind::Number, _) => Self::Number,
            // A label of classes has a list of them.
            (LabelKind::Count | LabelKind::Class, _) => Self::Count,
        }
    }
}

/// Converts a number to a label.
#[inline]
pub(crate) fn label(x: f64, rule: &LabelRule) -> Outcome<f32> {
    match rule {
        LabelRule::AtLeast(threshold) => Ok(f32::from(u8::from(finite(x)? >= *threshold))),
        LabelRule::Values(values) => flag_label(values.of_number(x)),
        LabelRule::Class(classes) => classes.find_number(x),
        LabelRule::Flag if x == 0.0 || x == 1.0 => Ok(x.abs() as f32),
        LabelRule::Flag => Err(Refusal::NotLabel),
        LabelRule::Count if x < 0.0 => Err(Refusal::NegativeCount),
        LabelRule::Number | LabelRule::Count => {
            let y = finite(x)? as f32;
            if y.is_finite() { Ok(y) } else { Err(Refusal::BeyondF32) }
        }
    }
}

/// Converts the result of a comparison with the values of a label to the label.
#[inline]
pub(crate) fn label_from(is_positive: Option<bool>) -> Outcome<Option<f32>> {
    flag_label(is_positive).map(Some)
}

fn flag_label(is_positive: Option<bool>) -> Outcome<f32> {
    is_positive.map(|flag| f32::from(u8::from(flag))).ok_or(Refusal::OtherLabel)
}

/// Appends a label. If the label is `None` and there is a mask, the mask marks the row. If there is
/// no mask, the row is refused.
#[inline]
pub(crate) fn push_label(labels: &mut LabelColumn, label: Option<f32>) -> Outcome<()> {
    match &mut labels.mask {
        Some(mask) => mask.push(label.is_some()),
        None if label.is_none() => return Err(Refusal::Missing),
        None => {}
    }
    labels.values.push(label.unwrap_or_default());
    Ok(())
}

/// Returns a float of a vector.
#[inline]
pub(crate) fn vector_float(x: Option<f64>) -> Outcome<f32> {
    let y = finite(x.ok_or(Refusal::VectorGap)?)? as f32;
    if y.is_finite() { Ok(y) } else { Err(Refusal::BeyondF32) }
}

/// Returns the key of the bucket that contains a number, or `missing` if there is no number.
#[inline]
pub(crate) fn bucket(
    buckets: &Bucketizer,
    x: Option<f64>,
    missing: FeatureKey,
) -> Outcome<FeatureKey> {
    x.map_or(Ok(missing), |x| Ok(buckets.key(finite(x)?)))
}

/// Returns a finite number unchanged. Returns NaN for a missing number, or refuses it if `needed`
/// is true.
#[inline]
pub(crate) fn number(x: Option<f64>, needed: bool) -> Outcome<f64> {
    match x {
        Some(x) => Ok(finite(x)?),
        None if needed => Err(Refusal::Missing),
        None => Ok(f64::NAN),
    }
}

pub(crate) fn label_from_cell(cell: &[u8]) -> Outcome<f32> {
    let cell = cell.trim_ascii();
    match cell {
        b"0" => Ok(0.0),
        b"1" => Ok(1.0),
        _ if cell.eq_ignore_ascii_case(b"true") => Ok(1.0),
        _ if cell.eq_ignore_ascii_case(b"false") => Ok(0.0),
        _ => {
            parse_f64(cell).map_err(|_| Refusal::NotLabel).and_then(|x| label(x, &LabelRule::Flag))
        }
    }
}

#[inline]
pub(crate) fn weight(x: f64) -> Outcome<f32> {
    let y = x as f32;
    if y.is_finite() && x >= 0.0 { Ok(y) } else { Err(Refusal::NotWeight) }
}

/// Returns the refusal of an event time that cannot be read.
pub(crate) fn refuse_time(error: ValueError) -> Refusal {
    match error {
        ValueError::NotInUnit(unit) => Refusal::NotInUnit(unit),
        ValueError::AmbiguousDate => error.into(),
        _ => Refusal::NotTime,
    }
}

/// Returns a text that is copied as it is. An empty text is a missing value.
pub(crate) fn kept_text(text: &[u8]) -> Outcome<RawValue<'static>> {
    let text = std::str::from_utf8(text).map_err(|_| ValueError::NotUtf8)?;
    Ok(if text.is_empty() { RawValue::Missing } else { RawValue::Text(text.to_owned().into()) })
}

/// Returns an event time unchanged, or refuses it if it is not plausible in its unit.
#[inline]
pub(crate) fn time(time: i64, unit: Option<TimeUnit>) -> Outcome<i64> {
    match unit {
        Some(unit) if unit.to_ms(time).is_none() => Err(Refusal::NotInUnit(unit)),
        _ => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn classes_are_found_by_number_or_text() {
        let numbers = ClassIndex::new(&Classes::Numbers(vec![5, -1, 3]));
        for (x, class) in [(5.0, 0.0), (-1.0, 1.0), (3.0, 2.0)] {
            assert_eq!(numbers.find_number(x), Ok(class));
        }
        for x in [0.0, 3.5, f64::NAN, f64::INFINITY] {
            assert_eq!(numbers.find_number(x), Err(Refusal::NotClass), "{x}");
        }
        let zero = ClassIndex::new(&Classes::Numbers(vec![1, 0]));
        assert_eq!(zero.find_number(-0.0), Ok(1.0));
        let names = ["news", "sports", "b c"].map(str::to_owned).to_vec();
        let texts = ClassIndex::new(&Classes::Texts(names));
        assert_eq!(texts.find_text(b"sports"), Ok(1.0));
        assert_eq!(texts.find_text(b"b c"), Ok(2.0));
        assert_eq!(texts.find_text(b"Sports"), Err(Refusal::NotClass));
        assert_eq!(texts.describe(), "news, sports, b c");
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
}
