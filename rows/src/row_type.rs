//! The number types of the weights in published versions, and the rounding to them.
//!
//! A version can store its weights in fewer bytes than training has them. Every row is rounded when
//! its layer is written, and widened to f32 when it is looked up. A server therefore computes with
//! the rounded rows, and so does the trainer when it computes the parity scores of the version
//! ([`RoundedRows`](crate::RoundedRows)).
//!
//! In the type [`Int8`](RowType::Int8), each segment of a row has a scale of its own, because
//! vectors and linear weights have different magnitudes. A weight is a whole number from -127 to
//! 127, times the scale.
//!
//! # Invariants
//! * Rounding a rounded row changes nothing. So a merge of layers, which widens and rounds each
//!   row, keeps every bit. For this reason, a scale has at most 16 significant bits: the product
//!   with a number of 7 bits is then exact, and so is the quotient that gives the scale back.

use serde::{Deserialize, Serialize};

use crate::dtype::{Dtype, F16, Half};
use crate::layout::TableLayout;

/// The number type of the weights in the layers of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowType {
    /// The IEEE 754 single precision: four bytes per weight.
    #[default]
    F32,
    /// The IEEE 754 half precision: two bytes per weight.
    F16,
    /// The bfloat16 format: two bytes per weight.
    Bf16,
    /// One byte per weight, and a scale of four bytes for each segment of a row.
    Int8,
}

/// The largest magnitude of the whole number that stands for a weight in the type int8.
pub(crate) const STEPS: f32 = 127.0;

/// The magnitude below which all weights of a segment become zero in the type int8. Scales near the
/// smallest numbers of f32 would have too few bits.
const LEAST: f32 = 1e-30;

/// The bits of an f32 that a scale does not use.
const UNUSED_BITS: u32 = 0xff;

impl RowType {
    /// All number types of published weights.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Int8];

    /// Returns the name of the type in job files and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// Returns the type with this name, or `None` if there is no such type.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|row_type| row_type.name() == name)
    }

    /// Returns whether this type is f32, the default type.
    pub fn is_f32(&self) -> bool {
        *self == Self::F32
    }

    /// Returns the number of bytes of the weights of a row with `width` weights in `segments`
    /// segments.
    pub fn row_bytes(self, width: usize, segments: usize) -> usize {
        match self {
            Self::F32 => width * 4,
            Self::F16 | Self::Bf16 => width * 2,
            Self::Int8 => width + segments * size_of::<f32>(),
        }
    }

    /// Returns the number of finite weights that become the largest number of the type, because
    /// they are beyond it. Only f16 has so small a largest number.
    pub(crate) fn count_clamped(self, row: &[f32]) -> u64 {
        let is_clamped = |weight: &&f32| weight.is_finite() && weight.abs() > F16::MAX;
        match self {
            Self::F16 => row.iter().filter(is_clamped).count() as u64,
            _ => 0,
        }
    }

    /// Rounds the weights of a full row to numbers of the type. Segments with a weight that is not
    /// finite become NaN in the type int8, so that the error becomes visible.
    pub fn round(self, layout: &TableLayout, row: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::F16 => Dtype::F16.round_nearest(row),
            Self::Bf16 => Dtype::Bf16.round_nearest(row),
            Self::Int8 => {
                for segment in &layout.segments {
                    let weights = &mut row[segment.offset..segment.offset + segment.dim];
                    let scale = scale_of(weights);
                    weights.iter_mut().for_each(|w| *w = f32::from(quantize(*w, scale)) * scale);
                }
            }
        }
    }
}

/// Returns the scale of a segment: the smallest number of 16 significant bits with which every
/// weight is at most 127 scales. The result is NaN if a weight is not finite.
pub(crate) fn scale_of(weights: &[f32]) -> f32 {
    if weights.iter().any(|w| !w.is_finite()) {
        return f32::NAN;
    }
    let largest = weights.iter().fold(0.0f32, |largest, w| largest.max(w.abs()));
    if largest < LEAST {
        return 0.0;
    }
    let scale = (largest / STEPS).to_bits();
    let up = f32::from_bits((scale + UNUSED_BITS) & !UNUSED_BITS);
    // Near the largest f32, 127 scales would be infinite.
    if is_scale(up) { up } else { f32::from_bits(scale & !UNUSED_BITS) }
}

/// Returns the whole number that stands for a weight in a segment with this scale.
pub(crate) fn quantize(weight: f32, scale: f32) -> i8 {
    if scale == 0.0 {
        return 0;
    }
    // The conversion of a float to an integer saturates, and gives 0 for NaN.
    (weight / scale).round_ties_even().clamp(-STEPS, STEPS) as i8
}

/// Returns whether a scale of a file is one that a writer can have written.
pub(crate) fn is_scale(scale: f32) -> bool {
    scale >= 0.0 && (scale * STEPS).is_finite() && scale.to_bits() & UNUSED_BITS == 0
}

#[cfg(test)]
mod tests {
    use zillion_feature::random::mix64;

    use super::*;
    use crate::layout::SegmentLayout;

    fn layout() -> TableLayout {
        let segment = |name: &str, offset, dim| SegmentLayout { name: name.into(), offset, dim };
        TableLayout {
            name: "ids".into(),
            stride: 20,
            segments: vec![segment("vector", 0, 16), segment("linear", 16, 1)],
            narrow: None,
            published: RowType::Int8,
            hot: None,
        }
    }

    /// Returns rows of all magnitudes, from numbers that become zero up to the largest ones.
    fn rows() -> impl Iterator<Item = Vec<f32>> {
        (0..20_000u64).map(|row| {
            let exponent = (mix64(row) % 255) as i32 - 127;
            let unit = |i: u64| (mix64(row * 31 + i) % 2_000_001) as f32 / 1e6 - 1.0;
            (0..17).map(|i| unit(i) * 2f32.powi(exponent)).collect()
        })
    }

    #[test]
    fn rounding_twice_changes_nothing() {
        let layout = layout();
        for row_type in RowType::ALL {
            for row in rows() {
                let mut once = row.clone();
                row_type.round(&layout, &mut once);
                let mut twice = once.clone();
                row_type.round(&layout, &mut twice);
                let bits = |row: &[f32]| row.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
                // The sign of a zero may get lost once, and not twice.
                assert_eq!(bits(&once), bits(&twice), "{row_type:?}: {row:?}");
            }
        }
    }

    #[test]
    fn a_weight_moves_by_half_a_step_at_most() {
        let layout = layout();
        for row in rows() {
            let mut rounded = row.clone();
            RowType::Int8.round(&layout, &mut rounded);
            for range in [0..16, 16..17] {
                let largest = row[range.clone()].iter().fold(0f32, |m, w| m.max(w.abs()));
                let step = (largest / 127.0).max(LEAST) * 1.0001;
                for (a, b) in row[range.clone()].iter().zip(&rounded[range.clone()]) {
                    assert!((a - b).abs() <= step * 0.5 || largest < LEAST, "{a} became {b}");
                }
            }
        }
    }

    #[test]
    fn segments_have_scales_of_their_own() {
        let mut row = vec![1e-3; 16];
        row.push(50.0);
        RowType::Int8.round(&layout(), &mut row);
        assert!(row[..16].iter().all(|w| (w - 1e-3).abs() < 1e-6), "{row:?}");
        assert!((row[16] - 50.0).abs() < 1e-2);
    }

    #[test]
    fn numbers_that_are_not_finite_become_visible() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut row = vec![0.5; 17];
            row[3] = bad;
            assert!(scale_of(&row).is_nan());
            RowType::Int8.round(&layout(), &mut row);
            assert!(row[..16].iter().all(|w| w.is_nan()) && row[16].is_finite(), "{row:?}");
        }
        let largest = [f32::MAX, -f32::MAX];
        assert!(is_scale(scale_of(&largest)) && is_scale(0.0));
        let others = [f32::NAN, f32::INFINITY, -1.0, f32::MAX, 0.1];
        assert!(others.into_iter().all(|scale| !is_scale(scale)));
        for name in RowType::ALL.map(RowType::name) {
            assert_eq!(RowType::from_name(name).map(RowType::name), Some(name));
        }
        assert_eq!(RowType::from_name("int4"), None);
    }
}
