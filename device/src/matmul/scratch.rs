//! Scratch memory of products: lines of floats that grow to the largest product and are reused.

/// The number of rows of a block of [`outer_product`](super::outer_product), equal to the rows of a
/// tile. Smaller blocks would read and write the result more often.
pub(super) const OUTER_BLOCK: usize = 256;

/// The number of floats of a cache line, which is the unit of the widths of panels.
pub(super) const LINE: usize = 16;

/// A cache line of floats.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; LINE]);

/// The memory in which a product packs its operands. The memory grows to the largest product and is
/// then reused.
#[derive(Debug, Default)]
pub struct Scratch(Vec<Line>);

impl Scratch {
    /// Returns the largest number of floats that [`outer_product`](super::outer_product) needs for
    /// `rows` rows and `columns` columns on the right.
    pub fn floats(rows: usize, columns: usize) -> usize {
        rows.min(OUTER_BLOCK) * columns.next_multiple_of(LINE)
    }

    /// Returns `count` lines with arbitrary contents.
    pub(super) fn lines(&mut self, count: usize) -> &mut [Line] {
        if self.0.len() < count {
            self.0.resize(count, Line([0.0; LINE]));
        }
        &mut self.0[..count]
    }
}

/// Copies floats to as many lines as they fill. The rest of the last line keeps its contents.
#[inline(always)]
pub(super) fn copy_row(from: &[f32], to: &mut [Line]) {
    let (whole, rest) = from.as_chunks::<LINE>();
    for (line, floats) in to.iter_mut().zip(whole) {
        line.0 = *floats;
    }
    if !rest.is_empty() {
        to[whole.len()].0[..rest.len()].copy_from_slice(rest);
    }
}
