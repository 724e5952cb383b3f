//! Blocks of floats on the wire: the rows of a table, or their gradients.
//!
//! A block begins with a byte that names its form. In the form [`WHOLE`], every float takes four
//! bytes. In the form [`HALVES`], every float takes two bytes: its upper half. The lower half of
//! every float is then zero, as in all numbers of the type bf16. Both forms give the reader the
//! floats of the sender bit by bit, so the form never changes a result. A sender that expects
//! numbers of bf16 looks at all floats of a block, and sends the block whole if one of them is
//! another number.

use std::ops::Range;

use zillion_feature::TableRows;

use super::{Reader, WireError, WireResult};

/// The form of a block whose floats take four bytes.
const WHOLE: u8 = 0;

/// The form of a block whose floats take two bytes.
const HALVES: u8 = 1;

/// The smallest number of bytes that a float takes in any form.
pub(super) const LEAST_BYTES: usize = size_of::<u16>();

/// Appends rows as a block, without the padding that they have in memory. `expects_bf16` says
/// whether to look for the form of two bytes.
pub(super) fn write_block(
    out: &mut Vec<u8>,
    rows: &TableRows,
    range: &Range<usize>,
    width: usize,
    expects_bf16: bool,
) {
    let values = &rows.values[range.start * rows.stride..range.end * rows.stride];
    // Rows without padding are one long row.
    let (row, width) = match rows.stride == width {
        true => (values.len(), values.len()),
        false => (rows.stride, width),
    };
    let packed = || values.chunks_exact(row.max(1)).map(|row| &row[..width]);
    let floats = packed().len() * width;
    if expects_bf16 && packed().all(are_bf16) {
        out.reserve(1 + floats * size_of::<u16>());
        out.push(HALVES);
        packed().for_each(|row| write_halves(out, row));
    } else {
        out.reserve(1 + floats * size_of::<f32>());
        out.push(WHOLE);
        packed().for_each(|row| out.extend_from_slice(bytemuck::cast_slice(row)));
    }
}

/// Copies the rows of a block to the rows of a table, in the places of `range`. The padding becomes
/// zero.
///
/// # Errors
/// Returns an error if the form is unknown, or if the body does not have all rows.
pub(super) fn take_block(
    body: &mut Reader<'_>,
    rows: &mut TableRows,
    range: &Range<usize>,
    width: usize,
) -> WireResult<()> {
    let stride = rows.stride;
    let form = body.u8()?;
    let size = match form {
        WHOLE => size_of::<f32>(),
        HALVES => size_of::<u16>(),
        other => {
            return Err(WireError::new(format!(
                "a block of floats has the unknown form {other}; use the same version of the \
                 program on all hosts"
            )));
        }
    };
    let bytes = body.take_entries(range.len(), width * size)?;
    let values = &mut rows.values[range.start * stride..range.end * stride];
    let copy = |values: &mut [f32], bytes: &[u8]| match form {
        WHOLE => bytemuck::cast_slice_mut(values).copy_from_slice(bytes),
        _ => read_halves(bytes, values),
    };
    if stride == width {
        copy(values, bytes);
        return Ok(());
    }
    let packed = bytes.chunks_exact((width * size).max(1));
    for (row, packed) in values.chunks_exact_mut(stride.max(1)).zip(packed) {
        copy(&mut row[..width], packed);
        row[width..].fill(0.0);
    }
    Ok(())
}

/// Returns whether all floats are numbers of bf16, so that their lower halves are zero.
fn are_bf16(values: &[f32]) -> bool {
    values.iter().fold(0, |bits, value| bits | value.to_bits()) & 0xffff == 0
}

/// Appends the upper halves of floats.
fn write_halves(out: &mut Vec<u8>, values: &[f32]) {
    let before = out.len();
    out.resize(before + values.len() * size_of::<u16>(), 0);
    for (bytes, value) in out[before..].as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = ((value.to_bits() >> 16) as u16).to_le_bytes();
    }
}

/// Fills floats from their upper halves.
fn read_halves(bytes: &[u8], values: &mut [f32]) {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Makes rows with a padding of NaN, which must not be sent.
    fn rows(bits: &[u32], width: usize, stride: usize) -> TableRows {
        let mut rows = TableRows::default();
        rows.reshape(bits.len() / width, stride);
        rows.values.fill(f32::NAN);
        for (row, bits) in rows.values.chunks_exact_mut(stride).zip(bits.chunks_exact(width)) {
            row.iter_mut().zip(bits).for_each(|(value, &bits)| *value = f32::from_bits(bits));
        }
        rows
    }

    fn write(rows: &TableRows, range: &Range<usize>, width: usize, expects_bf16: bool) -> Vec<u8> {
        let mut block = b"before".to_vec();
        write_block(&mut block, rows, range, width, expects_bf16);
        block.split_off(6)
    }

    fn read(block: &[u8], count: usize, width: usize, stride: usize) -> WireResult<TableRows> {
        let mut rows = TableRows::default();
        rows.reshape(count, stride);
        rows.values.fill(7.0);
        let mut body = Reader::new(block);
        take_block(&mut body, &mut rows, &(0..count), width)?;
        body.end().map(|()| rows)
    }

    #[test]
    fn numbers_of_bf16_take_two_bytes_and_others_four() {
        let special = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0, 1.5, f32::MIN_POSITIVE];
        let bits = special.map(f32::to_bits);
        let block = write(&rows(&bits, 3, 4), &(0..2), 3, true);
        assert_eq!((block[0], block.len()), (HALVES, 1 + 6 * 2));
        let block = write(&rows(&bits, 3, 4), &(0..2), 3, false);
        assert_eq!((block[0], block.len()), (WHOLE, 1 + 6 * 4));
        // One float that is not a number of bf16 makes its whole block larger.
        let mut other = bits;
        other[5] = 1.1f32.to_bits();
        let block = write(&rows(&other, 3, 4), &(0..2), 3, true);
        assert_eq!((block[0], block.len()), (WHOLE, 1 + 6 * 4));
        let block = write(&rows(&other, 3, 4), &(0..1), 3, true);
        assert_eq!((block[0], block.len()), (HALVES, 1 + 3 * 2));
    }

    #[test]
    fn a_block_of_another_form_or_length_is_refused() {
        for form in 0..=u8::MAX {
            let size = if form == HALVES { 2 } else { 4 };
            let mut block = vec![form];
            block.resize(1 + 6 * size, 0);
            let is_known = form == WHOLE || form == HALVES;
            assert_eq!(read(&block, 2, 3, 4).is_ok(), is_known, "form {form}");
            assert!(read(&block[..block.len() - 1], 2, 3, 4).is_err());
            block.push(0);
            assert!(read(&block, 2, 3, 4).is_err());
        }
        let error = read(&[2, 0, 0], 0, 3, 4).unwrap_err().to_string();
        assert!(error.contains("the unknown form 2"), "{error}");
        assert!(read(&[], 0, 3, 4).is_err(), "a block without rows has a form too");
        assert!(read(&[HALVES], usize::MAX / 4, 8, 0).is_err());
    }

    proptest! {
        #[test]
        fn a_block_is_what_was_sent(
            (width, padding, expects_bf16) in (1usize..6, 0usize..4, any::<bool>()),
            mask in prop_oneof![Just(0xffff_0000u32), Just(u32::MAX)],
            mut bits in prop::collection::vec(any::<u32>(), 0..60),
            (begin, end) in (0usize..8, 0usize..8),
        ) {
            bits.truncate(bits.len() / width * width);
            bits.iter_mut().for_each(|bits| *bits &= mask);
            let (count, stride) = (bits.len() / width, width + padding);
            let range = begin.min(count)..end.clamp(begin.min(count), count);
            let block = write(&rows(&bits, width, stride), &range, width, expects_bf16);
            let sent = &bits[range.start * width..range.end * width];
            let has_halves = expects_bf16 && sent.iter().all(|bits| bits & 0xffff == 0);
            prop_assert_eq!(block[0] == HALVES, has_halves);
            let size = if has_halves { 2 } else { 4 };
            prop_assert_eq!(block.len(), 1 + sent.len() * size);
            let got = read(&block, range.len(), width, stride).unwrap();
            for (row, sent) in got.values.chunks_exact(stride).zip(sent.chunks_exact(width)) {
                let row: Vec<u32> = row.iter().map(|value| value.to_bits()).collect();
                prop_assert_eq!(&row[..width], sent);
                prop_assert!(row[width..].iter().all(|&bits| bits == 0));
            }
        }

        #[test]
        fn any_bytes_are_a_block_or_an_error(
            block in prop::collection::vec(any::<u8>(), 0..80),
            (count, width, padding) in (0usize..9, 1usize..5, 0usize..4),
        ) {
            let floats = count * width;
            let is_block = match block.first() {
                Some(&WHOLE) => block.len() == 1 + floats * 4,
                Some(&HALVES) => block.len() == 1 + floats * 2,
                _ => false,
            };
            prop_assert_eq!(read(&block, count, width, width + padding).is_ok(), is_block);
        }
    }
}
