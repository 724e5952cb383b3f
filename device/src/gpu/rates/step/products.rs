//! The products of a layer: our own exact ones, or those of the library.

use super::model::{Layer, Model};
use crate::gpu::device::{Gpu, Stream};
use crate::gpu::error::GpuError;
use crate::gpu::kernels::{CombineLanes, Count, Outer, Product as Exact};
use crate::gpu::memory::Memory;
use crate::gpu::product::{Element, Epilogue, Precision, Product};

/// One product of a step.
pub(super) enum Multiply {
    Exact(Exact),
    Outer(Outer, CombineLanes),
    Library(Product),
}

/// Returns a product of the library without operands.
fn empty(precision: Precision, [m, n, k]: [usize; 3]) -> Product {
    Product {
        precision,
        output: Element::F32,
        m,
        n,
        k,
        transpose_a: false,
        transpose_b: true,
        a: Memory::NULL,
        lda: k,
        b: Memory::NULL,
        ldb: k,
        c: Memory::NULL,
        ldc: n,
        accumulate: false,
        epilogue: Epilogue::None,
        bias: Memory::NULL,
    }
}

impl Layer {
    /// Returns an operand of a product, or its copy of type bf16.
    fn operand(&self, library: Option<Precision>, wide: Memory, number: usize) -> Memory {
        if library == Some(Precision::Bf16) { self.narrow[number] } else { wide }
    }
}

impl Multiply {
    /// Returns the product of a layer's inputs with its weight, with bias and relu.
    pub(super) fn forward(
        library: Option<Precision>,
        rows: usize,
        layer: &Layer,
        input: Memory,
        is_last: bool,
    ) -> Self {
        let Layer { inputs, padded, units, .. } = *layer;
        let Some(precision) = library else {
            return Self::Exact(Exact {
                a: input.address(),
                b: layer.weight.weights.address(),
                c: layer.output.address(),
                bias: layer.bias.weights.address(),
                rows: Count::fixed(rows as u32),
                n: units as u32,
                k: inputs as u32,
                lda: padded as u32,
                ldb: units as u32,
                ldc: units as u32,
                relu: 1,
                ..Exact::default()
            });
        };
        // The bias has the type of the result.
        let (output, c, bias) = match precision {
            Precision::Bf16 if !is_last => (Element::Bf16, layer.narrow[2], layer.narrow_bias),
            _ => (Element::F32, layer.output, layer.bias.weights),
        };
        // The library takes columns of padding as terms, because it is faster so.
        Self::Library(Product {
            output,
            a: input,
            b: layer.operand(library, layer.transposed, 1),
            c,
            epilogue: Epilogue::BiasRelu,
            bias,
            ..empty(precision, [rows, units, padded])
        })
    }

    /// Returns the product that gives the gradient of a layer's first `columns` inputs.
    pub(super) fn input(
        library: Option<Precision>,
        rows: usize,
        layer: &Layer,
        to: Memory,
        columns: usize,
        accumulate: bool,
    ) -> Self {
        let Layer { padded, units, .. } = *layer;
        let Some(precision) = library else {
            return Self::Exact(Exact {
                a: layer.gradient.address(),
                b: layer.transposed.address(),
                c: to.address(),
                rows: Count::fixed(rows as u32),
                n: columns as u32,
                k: units as u32,
                lda: units as u32,
                ldb: padded as u32,
                ldc: padded as u32,
                accumulate: accumulate.into(),
                ..Exact::default()
            });
        };
        Self::Library(Product {
            a: layer.operand(library, layer.gradient, 3),
            b: layer.operand(library, layer.weight.weights, 0),
            output: match (precision, accumulate) {
                (Precision::Bf16, false) => Element::Bf16,
                _ => Element::F32,
            },
            c: to,
            ldc: padded,
            accumulate,
            ..empty(precision, [rows, columns, units])
        })
    }

    /// Returns the product that gives the gradient of a layer's weight.
    pub(super) fn weight(
        library: Option<Precision>,
        rows: usize,
        layer: &Layer,
        input: Memory,
        model: &Model,
    ) -> Self {
        let Layer { inputs, padded, units, .. } = *layer;
        let Some(precision) = library else {
            let outer = Outer {
                a: input.address(),
                b: layer.gradient.address(),
                c: model.outer_parts.address(),
                tiles: model.split.tiles,
                lanes: model.split.lanes,
                m: inputs as u32,
                n: units as u32,
                lda: padded as u32,
                ldb: units as u32,
                lane_count: model.split.lane_count,
                unused: 0,
            };
            let lanes = CombineLanes {
                parts: model.outer_parts.address(),
                out: layer.weight.gradient.address(),
                split: model.split,
                size: (inputs * units) as u32,
                mean: 0,
            };
            return Self::Outer(outer, lanes);
        };
        Self::Library(Product {
            transpose_a: true,
            transpose_b: false,
            a: input,
            lda: padded,
            b: layer.operand(library, layer.gradient, 3),
            ldb: units,
            c: layer.weight.gradient,
            ..empty(precision, [padded, units, rows])
        })
    }

    /// Lets the library choose its algorithm.
    pub(super) fn prepare(&self, gpu: &dyn Gpu, stream: Stream) -> Result<(), GpuError> {
        match self {
            Self::Library(product) => gpu.prepare(stream, product),
            Self::Exact(_) | Self::Outer(..) => Ok(()),
        }
    }
}
