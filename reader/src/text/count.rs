//! The counting of the rows of a chunk, without decoding them.

use zillion_device::simd::vectorised;

use super::chunks::Chunk;
use super::lines::Lines;
use super::records::{Records, Step};
use super::settings::Grammar;

/// Returns the number of rows of a chunk.
pub fn count_rows(chunk: &Chunk, grammar: Grammar) -> usize {
    let mut rows = 0;
    match grammar {
        Grammar::Cells(dialect) if dialect.quote.is_none_or(|q| !chunk.bytes.contains(&q)) => {
            rows = lines_of_cells(&chunk.bytes);
        }
        Grammar::Cells(dialect) => {
            let mut records = Records::new(dialect, &chunk.bytes);
            while matches!(records.advance(), Step::Record | Step::LastRecord) {
                rows += 1;
            }
        }
        grammar => {
            let mut lines = Lines::new(grammar, &chunk.bytes);
            while lines.advance().is_some() {
                rows += 1;
            }
        }
    }
    rows
}

/// Returns the number of lines that are not empty. If no cell is quoted, this is the number of
/// records. A carriage return or a line feed ends a line.
fn lines_of_cells(bytes: &[u8]) -> usize {
    let is_end = |byte: u8| (byte == b'\n') | (byte == b'\r');
    let first = bytes.first().map_or(0, |&byte| usize::from(!is_end(byte)));
    // A line begins at each character that follows a line end and is not itself a line end.
    let begins = vectorised(
        #[inline(always)]
        || {
            let behind = bytes.get(1..).unwrap_or_default();
            let pairs = bytes.iter().zip(behind);
            pairs.map(|(&a, &b)| usize::from(is_end(a) & !is_end(b))).sum::<usize>()
        },
    );
    first + begins
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::Dialect;

    proptest! {
        #[test]
        fn lines_are_counted_as_records_are(text in "[ab,\n\r]{0,40}") {
            let dialect = Dialect { delimiter: b',', quote: None };
            let mut records = Records::new(dialect, text.as_bytes());
            let mut rows = 0;
            while matches!(records.advance(), Step::Record | Step::LastRecord) {
                rows += 1;
            }
            prop_assert_eq!(lines_of_cells(text.as_bytes()), rows, "{:?}", text);
        }
    }
}
