//! The packed weights of a version, which all threads that score with the version read.
//!
//! A product reads a packed weight faster than a weight that is not packed, for any number of rows:
//! 197 against 163 GFLOP/s for 8 to 256 rows on a Sapphire Rapids processor, and 70 against 43 for
//! one row. A version is scored many times, so its weights are packed once, when it is loaded. A
//! weight can be packed in another number type than f32. Then its products are computed in this
//! type.

use crate::cpu::dense_type::{DenseType, is_large_shape, is_quantisable};
use crate::cpu::packing::{Packing, Weight};
use crate::cpu::program::Program;
use crate::ops::PackedWeight;
use crate::params::Params;
use zillion_device::matmul::bf16::{self, Instructions};
use zillion_device::matmul::{Int8Weight, Panel};

/// The packed weights of the products of a graph, for one set of parameters.
#[derive(Debug)]
pub struct PackedParams {
    weights: Vec<(Weight, PackedWeight)>,
    dense: DenseType,
}

impl PackedParams {
    /// Packs the weights of `params` that the products of a program read. `piece` is called after
    /// each panel, so that a loader can give way to requests.
    ///
    /// # Panics
    /// Panics if the parameters are not those of the program's graph.
    pub fn new(program: &Program, params: &Params, piece: &mut dyn FnMut()) -> Self {
        Self::with_type(DenseType::F32, program, params, piece)
    }

    /// Packs the weights as [`PackedParams::new`] does, in a number type, which must be
    /// [available](DenseType::is_available). With a type other than f32, weights with less than 32
    /// rows or 16 columns, such as the last layer of a model, stay f32, and so do weights that a
    /// product reads transposed.
    ///
    /// # Panics
    /// Panics if the parameters are not those of the program's graph.
    pub fn with_type(
        dense: DenseType,
        program: &Program,
        params: &Params,
        piece: &mut dyn FnMut(),
    ) -> Self {
        let weights = Packing::new(program, |_| true).into_weights();
        let weights = weights.into_iter().map(|weight| {
            let packed = match dense {
                DenseType::Int8 => quantize(&weight, params, piece),
                DenseType::Bf16 => narrow(&weight, params, piece),
                DenseType::F32 => None,
            };
            (weight, packed.unwrap_or_else(|| pack_panels(&weight, params, piece)))
        });
        Self { weights: weights.collect(), dense }
    }

    /// Returns the number type of the products.
    pub fn dense(&self) -> DenseType {
        self.dense
    }

    /// Returns the number of bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        let bytes = self.weights.iter().map(|(weight, packed)| match packed {
            PackedWeight::F32(_) => {
                let (rows, cols) = weight.packed_shape();
                Panel::floats(rows, cols) * size_of::<f32>()
            }
            PackedWeight::Bf16 { .. } => {
                let (rows, cols) = weight.packed_shape();
                bf16::Panel::bytes(rows, cols)
            }
            PackedWeight::Int8(quantised) => quantised.bytes(),
        });
        bytes.sum()
    }

    /// Returns a packed weight, or `None` if the weight is not packed here.
    pub(crate) fn packed(&self, weight: &Weight) -> Option<&PackedWeight> {
        let found = self.weights.iter().find(|(packed, _)| packed == weight);
        found.map(|(_, packed)| packed)
    }
}

fn pack_panels(weight: &Weight, params: &Params, piece: &mut dyn FnMut()) -> PackedWeight {
    let (rows, cols) = weight.packed_shape();
    let mut panels = Panel::list(rows, cols);
    for panel in &mut panels {
        panel.fill(weight.view(params));
        piece();
    }
    PackedWeight::F32(panels)
}

/// Returns whether the products with a weight may be rounded.
fn is_large(weight: &Weight) -> bool {
    let (rows, cols) = weight.packed_shape();
    !weight.is_turned() && is_large_shape(rows, cols)
}

/// Packs a weight as numbers of bf16. Returns `None` if the weight stays f32.
fn narrow(weight: &Weight, params: &Params, piece: &mut dyn FnMut()) -> Option<PackedWeight> {
    let instructions = Instructions::detect().filter(|_| is_large(weight))?;
    let (rows, cols) = weight.packed_shape();
    let mut panels = bf16::Panel::list(rows, cols);
    for panel in &mut panels {
        panel.fill(weight.view(params));
        piece();
    }
    Some(PackedWeight::Bf16 { panels, instructions })
}

/// Quantises a weight. Returns `None` if the weight stays f32.
fn quantize(weight: &Weight, params: &Params, piece: &mut dyn FnMut()) -> Option<PackedWeight> {
    let (rows, cols) = weight.packed_shape();
    if weight.is_turned() || !is_quantisable(rows, cols) {
        return None;
    }
    Int8Weight::pack_by_piece(weight.view(params), piece).map(PackedWeight::Int8)
}
