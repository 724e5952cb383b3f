//! The number types in which the products of dense layers are computed when rows are scored.
//!
//! Training always uses f32, and so do scores that must be those of training. A server can choose a
//! faster type, which changes the scores a little.
//!
//! To add a type, add it here, its packing in `cpu/packed_params.rs`, and its product in
//! `ops/packed_weight.rs`, which is the only place that chooses a product by the type of a weight.

use std::fmt;

use serde::{Deserialize, Serialize};
use zillion_device::matmul::INT8_INNER;
use zillion_device::matmul::bf16::Instructions;

/// The minimum number of rows of a weight that is quantised. The rounding of each input costs about
/// as much as the product saves below this number, and a sum of few terms has a large error.
const LEAST_ROWS: usize = 32;

/// The minimum number of columns of a weight that is quantised. The kernels of 8-bit integers
/// compute 16 columns at a time, and the last layers with few columns decide the score.
const LEAST_COLUMNS: usize = 16;

/// The number type of the products of dense layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DenseType {
    /// The single precision of training.
    #[default]
    F32,
    /// Factors of bf16 and sums of f32. The processor must have the instructions.
    Bf16,
    /// 8-bit integers, with a scale for each column of a weight and for each row of an input.
    Int8,
}

impl DenseType {
    /// All number types of dense layers.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// Returns the name of the type in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// Returns the type with this name, or `None` if there is no such type.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dense| dense.name() == name)
    }

    /// Returns whether this processor can compute products of the type.
    pub fn is_available(self) -> bool {
        self != Self::Bf16 || Instructions::detect().is_some()
    }

    /// Returns whether scores in this type have the bits of the scores of training.
    pub fn is_exact(self) -> bool {
        self == Self::F32
    }
}

impl TryFrom<String> for DenseType {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match Self::from_name(&name) {
            Some(dense) if dense.is_available() => Ok(dense),
            Some(_) => Err(format!(
                "this processor has neither AMX-BF16 nor AVX512-BF16, which dense layers of {name} \
                 need; choose f32 or int8"
            )),
            None => Err(format!(
                "dense layers cannot have this number type; choose one of {}",
                Self::ALL.map(Self::name).join(", ")
            )),
        }
    }
}

impl From<DenseType> for String {
    fn from(dense: DenseType) -> Self {
        dense.name().to_owned()
    }
}

impl fmt::Display for DenseType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns whether the products with a weight of this shape may be rounded.
pub(crate) fn is_large_shape(rows: usize, cols: usize) -> bool {
    rows >= LEAST_ROWS && cols >= LEAST_COLUMNS
}

/// Returns whether the products with a weight of this shape are rounded to 8-bit integers.
pub(crate) fn is_quantisable(rows: usize, cols: usize) -> bool {
    is_large_shape(rows, cols) && rows <= INT8_INNER
}
