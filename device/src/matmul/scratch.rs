//! Scratch memory of products: lines of floats that grow to the largest product and are reused.

/// The number of rows in a block of [`outer_product`](super::outer_product), which is also the
/// number of rows in a tile. With smaller blocks, the result would be read and written more often.
pub const OUTER_BLOCK: usize = 256;

/// The number of floats in a cache line. The width of a panel is a multiple of it.
pub(super) const LINE: usize = 16;

/// A cache line of floats.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; LINE]);

/// The memory into which a product packs its operands. It grows to the size of the largest product,
/// and is then reused.
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

/// Copies floats to the lines from the first one on. The rest of the last line keeps its contents.
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
