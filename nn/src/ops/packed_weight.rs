//! Packed weights, and their products in the number type of the weight. This is the only place that
//! chooses a product by the [`DenseType`](crate::DenseType) of a weight.

use zillion_device::matmul::bf16::{self, Instructions};
use zillion_device::matmul::{self, Epilogue, Int8Rows, Int8Weight, Panel, Right, View};

/// A packed weight in the number type of its products.
#[derive(Debug)]
pub(crate) enum PackedWeight {
    F32(Vec<Panel>),
    Bf16 { panels: Vec<bf16::Panel>, instructions: Instructions },
    Int8(Int8Weight),
}

/// A packed weight that a product reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Packed<'a> {
    F32(&'a [Panel]),
    Bf16(&'a [bf16::Panel], Instructions),
    Int8(&'a Int8Weight),
}

impl<'a> From<&'a PackedWeight> for Packed<'a> {
    fn from(weight: &'a PackedWeight) -> Self {
        match weight {
            PackedWeight::F32(panels) => Self::F32(panels),
            PackedWeight::Bf16 { panels, instructions } => Self::Bf16(panels, *instructions),
            PackedWeight::Int8(weight) => Self::Int8(weight),
        }
    }
}

impl<'a> Packed<'a> {
    /// Returns the weight if its products have the bits of training. Returns `None` if its products
    /// are rounded, and [`Packed::multiply_rounded`] computes them.
    pub(crate) fn exact(self) -> Option<&'a [Panel]> {
        match self {
            Self::F32(panels) => Some(panels),
            Self::Bf16(..) | Self::Int8(_) => None,
        }
    }

    /// Computes the product of `x` and the weight from its row `first` on. Returns `false`, and
    /// computes nothing, if the weight is [exact](Packed::exact).
    pub(crate) fn multiply_rounded(
        self,
        first: usize,
        x: View<'_>,
        epilogue: Epilogue<'_>,
        out: &mut [f32],
        out_stride: usize,
    ) -> bool {
        match self {
            Self::F32(_) => return false,
            Self::Bf16(panels, instructions) => {
                let mut scratch = bf16::Scratch::default();
                bf16::linear_from(
                    instructions,
                    first,
                    x,
                    panels,
                    epilogue,
                    out,
                    out_stride,
                    &mut scratch,
                );
            }
            Self::Int8(weight) => {
                let mut rows = Int8Rows::default();
                rows.quantize_from(first, x);
                matmul::linear_int8(&rows, weight, epilogue, out, out_stride);
            }
        }
        true
    }
}

/// Returns the exact weight of a product: packed, or else as it is in `plain`. The bits of the
/// product are the same for both.
pub(crate) fn exact_weight<'a>(packed: Option<Packed<'a>>, plain: View<'a>) -> Right<'a> {
    match packed.and_then(Packed::exact) {
        Some(panels) => Right::Packed(panels),
        None => Right::Plain(plain),
    }
}
