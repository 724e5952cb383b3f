//! The number types in which the products of dense layers are computed when rows are scored.
//!
//! Training always uses f32, and so do scores that must be those of training. A server can choose a
//! faster type, which changes the scores a little.
//!
//! To add a type, add it here, its packing in `cpu/packed_params.rs`, and its product in
//! `ops/packed_weight.rs`, which is the only place that chooses a product by the type of a weight.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number type of the products of dense layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseType {
    /// The single precision of training.
    #[default]
    F32,
    /// 8-bit integers, with a scale for each column of a weight and for each row of an input.
    Int8,
}

impl DenseType {
    /// All number types of dense layers.
    pub const ALL: [Self; 2] = [Self::F32, Self::Int8];

    /// Returns the name of the type in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Int8 => "int8",
        }
    }

    /// Returns the type with this name, or `None` if there is no such type.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dense| dense.name() == name)
    }

    /// Returns whether scores in this type have the bits of the scores of training.
    pub fn is_exact(self) -> bool {
        self == Self::F32
    }
}

impl fmt::Display for DenseType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
