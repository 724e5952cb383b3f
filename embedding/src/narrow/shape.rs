//! The shape of narrow rows, computed once in the form that the loops over rows need.
//!
//! A narrow row is a row of a smaller table: its segments have the same rules, seeds and metadata.
//! So every loop over rows takes the smaller shape and needs no code for growth. This file maps the
//! positions of the two shapes to each other.

use std::ops::Range;

use zillion_rows::TableSpec;

use crate::error::Result;
use crate::optimizer::Kernel;
use crate::shape::TableShape;

/// The shape of a table's narrow rows, and their mapping to full rows.
#[derive(Debug)]
pub(crate) struct NarrowShape {
    /// The number of pushes after which a row is full.
    pub(crate) at: u32,
    /// The shape of a table whose rows are all narrow.
    pub(crate) shape: TableShape,
    /// The ranges of floats in a full row, each with its range in a narrow row.
    floats: Vec<(Range<usize>, Range<usize>)>,
    /// The ranges of state words in a full row, each with its range in a narrow row.
    state: Vec<(Range<usize>, Range<usize>)>,
    /// The index of the table's segment that each segment of a narrow row belongs to.
    of: Vec<usize>,
}

impl NarrowShape {
    /// Computes the shape from a valid spec. Returns `None` if all rows are full.
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
                // The two segments have the same dimension, or a state of one number for each row.
                let start = full_state[of];
                shape.state.push((start..start + whole, own.state.clone()));
                continue;
            }
            // The state has some numbers for each float, kind after kind; the narrow row has the
            // first `dim` numbers of each kind.
            let dim = own.weights.len();
            for kind in 0..whole / wide.dim {
                let from = own.state.start + kind * dim;
                let to = full_state[of] + kind * wide.dim;
                shape.state.push((to..to + dim, from..from + dim));
            }
        }
        Ok(Some(shape))
    }

    /// Returns the rules of the narrow row's segments, selected from the rules of the table's
    /// segments.
    pub(crate) fn kernels(&self, table: &[Kernel]) -> Vec<Kernel> {
        self.of.iter().map(|&segment| table[segment]).collect()
    }

    /// Copies the part of a full row's gradient that applies to a narrow row.
    #[inline(always)]
    pub(crate) fn gather(&self, full: &[f32], narrow: &mut [f32]) {
        for (from, to) in &self.floats {
            narrow[to.clone()].copy_from_slice(&full[from.clone()]);
        }
    }

    /// Copies the weights of a narrow row to their places in a full row.
    pub(crate) fn spread<T: Copy>(&self, narrow: &[T], full: &mut [T]) {
        for (to, from) in &self.floats {
            full[to.clone()].copy_from_slice(&narrow[from.clone()]);
        }
    }

    /// Copies the state, the metadata and the use statistics of a narrow row to their places in a
    /// full row.
    pub(crate) fn spread_companion(&self, table: &TableShape, narrow: &[u32], full: &mut [u32]) {
        for (to, from) in &self.state {
            full[to.clone()].copy_from_slice(&narrow[from.clone()]);
        }
        let tail = table.companion_tail();
        let own = self.shape.companion_tail();
        full[tail].copy_from_slice(&narrow[own]);
    }
}
