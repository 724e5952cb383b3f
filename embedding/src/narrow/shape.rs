//! The shape of a narrow row, resolved once into what the loops need.
//!
//! A narrow row is a row of a smaller table: its segments have the same rules, seeds and metadata,
//! so that every loop over rows takes the smaller shape and knows nothing of growth. This file
//! leads from the one shape to the other.

use std::ops::Range;

use zillion_rows::TableSpec;

use crate::error::Result;
use crate::optimizer::Kernel;
use crate::shape::TableShape;

/// The rows of a table before they are full.
#[derive(Debug)]
pub(crate) struct NarrowShape {
    /// Pushes that make a row full.
    pub(crate) at: u32,
    /// Narrow rows as a table of their own would have them.
    pub(crate) shape: TableShape,
    /// Floats: where they are in a full row, and in a narrow one.
    floats: Vec<(Range<usize>, Range<usize>)>,
    /// Words of state, in the same way.
    state: Vec<(Range<usize>, Range<usize>)>,
    /// The table's segment of each of the narrow row's.
    of: Vec<usize>,
}

impl NarrowShape {
    /// Resolves a valid spec; `None` where all rows are full.
    pub(crate) fn new(spec: &TableSpec) -> Result<Option<Self>> {
        let (Some(growth), Some(small)) = (spec.grow, spec.narrow_spec()) else {
            return Ok(None);
        };
        let (full, narrow) = (spec.layout(), small.layout());
        // Only the first segment may be missing.
        let missing = spec.segments.len() - small.segments.len();
        let mut shape = Self {
            at: growth.at,
            floats: Vec::new(),
            state: Vec::new(),
            of: (missing..spec.segments.len()).collect(),
            shape: TableShape::new(small)?,
        };
        let mut full_state: Vec<usize> = vec![0];
        for segment in &spec.segments {
            let length = segment.optimizer.state_len(segment.dim);
            full_state.push(full_state.last().copied().unwrap_or(0) + length);
        }
        for (at, &of) in shape.of.iter().enumerate() {
            let (wide, own) = (&spec.segments[of], &shape.shape.segments[at]);
            let start = full.segments[of].offset;
            shape.floats.push((start..start + narrow.segments[at].dim, own.weights.clone()));
            let whole = wide.optimizer.state_len(wide.dim);
            if whole == own.state.len() {
                // The same dimension, or one number a row.
                let start = full_state[of];
                shape.state.push((start..start + whole, own.state.clone()));
                continue;
            }
            // Numbers a float, kind after kind: the first of each kind.
            let dim = own.weights.len();
            for kind in 0..whole / wide.dim {
                let from = own.state.start + kind * dim;
                let to = full_state[of] + kind * wide.dim;
                shape.state.push((to..to + dim, from..from + dim));
            }
        }
        Ok(Some(shape))
    }

    /// The rules of its segments, out of those of the table's.
    pub(crate) fn kernels(&self, table: &[Kernel]) -> Vec<Kernel> {
        self.of.iter().map(|&segment| table[segment]).collect()
    }

    /// Copies what a narrow row has of a full row's gradient.
    #[inline(always)]
    pub(crate) fn gather(&self, full: &[f32], narrow: &mut [f32]) {
        for (from, to) in &self.floats {
            narrow[to.clone()].copy_from_slice(&full[from.clone()]);
        }
    }

    /// Copies the weights of a narrow row to where they belong in a full one.
    pub(crate) fn spread<T: Copy>(&self, narrow: &[T], full: &mut [T]) {
        for (to, from) in &self.floats {
            full[to.clone()].copy_from_slice(&narrow[from.clone()]);
        }
    }

    /// Copies state, metadata and what a row was used for.
    pub(crate) fn spread_companion(&self, table: &TableShape, narrow: &[u32], full: &mut [u32]) {
        for (to, from) in &self.state {
            full[to.clone()].copy_from_slice(&narrow[from.clone()]);
        }
        let tail = table.companion_tail();
        let own = self.shape.companion_tail();
        full[tail].copy_from_slice(&narrow[own]);
    }
}
