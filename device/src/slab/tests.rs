//! Tests of the slab against a model, and of its memory against the numbers of the operating
//! system.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{CHUNK_BYTES, FIRST_BYTES, MAX_ROW_BYTES, Slab};
use crate::error::DeviceError;

/// Checks the slab after every step of the model.
fn assert_consistent(slab: &Slab<u32>, model: &BTreeMap<u32, u32>) {
    assert_eq!(slab.len(), model.len());
    assert_eq!(slab.is_empty(), model.is_empty());
    let bytes = slab.bytes();
    assert_eq!(bytes.used, model.len() * slab.stride() * 4);
    let mapped: usize = slab.chunks.iter().flatten().map(|chunk| chunk.bytes()).sum();
    assert_eq!(bytes.reserved, mapped);
    let empty = slab.chunks.iter().flatten().filter(|chunk| chunk.is_empty()).count();
    assert!(empty <= 1, "{empty} chunks without rows are kept");
    if model.is_empty() {
        assert_eq!(bytes.reserved, 0);
    }
    if let [Some(first)] = slab.chunks.as_slice()
        && let Some(&last) = model.keys().next_back()
    {
        let (row_bytes, end) = (slab.stride() * 4, last as usize + 1);
        let worth = (3 * model.len() * row_bytes / 2).max(end * row_bytes * 8 / 7);
        let most = worth + row_bytes + FIRST_BYTES;
        assert!(first.bytes() <= most, "{} bytes of at most {most}", first.bytes());
    }
}

#[derive(Clone, Debug)]
enum Turn {
    Alloc(usize),
    /// Frees several live rows, one after another. The first number is a position among the live
    /// rows, in 256ths of their number. Each time, the row at this position is freed. The second
    /// number is the number of freed rows.
    Free(usize, usize),
    Write(usize, u32),
    Clear,
}

fn turns() -> impl Strategy<Value = Turn> {
    prop_oneof![
        8 => (1usize..40).prop_map(Turn::Alloc),
        8 => (0usize..256, 1usize..40).prop_map(|(place, count)| Turn::Free(place, count)),
        2 => (200usize..256, 1usize..200).prop_map(|(place, count)| Turn::Free(place, count)),
        4 => (0usize..256, any::<u32>()).prop_map(|(place, value)| Turn::Write(place, value)),
        1 => Just(Turn::Clear),
    ]
}

/// Draws a stride in words. Rows are tiny, of usual size, or so large that few of them fit a chunk.
/// With large rows, chunks are often added and returned.
fn strides() -> impl Strategy<Value = usize> {
    prop_oneof![
        1usize..40,
        Just(16usize),
        Just(1024usize),
        30_000usize..60_000,
        Just(MAX_ROW_BYTES / 4)
    ]
}

fn nth_live(model: &BTreeMap<u32, u32>, place: usize) -> Option<u32> {
    model.keys().nth(place * model.len() / 256).copied()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_slab_is_a_map_from_numbers_to_rows(stride in strides(), turns in prop::collection::vec(turns(), 1..60)) {
        let mut slab = Slab::<u32>::new(stride).unwrap();
        let mut model = BTreeMap::<u32, u32>::new();
        for turn in turns {
            match turn {
                Turn::Alloc(count) => {
                    for value in 0..count as u32 {
                        let row = slab.alloc().unwrap();
                        let lowest = (0..).find(|row| !model.contains_key(row)).unwrap();
                        prop_assert_eq!(row, lowest);
                        prop_assert!(slab.row(row).iter().all(|word| *word == 0), "row {} is dirty", row);
                        slab.row_mut(row).fill(value);
                        model.insert(row, value);
                    }
                }
                Turn::Free(place, count) => {
                    for _ in 0..count {
                        let Some(row) = nth_live(&model, place) else { break };
                        slab.free(row);
                        model.remove(&row);
                        prop_assert!(!slab.is_live(row));
                    }
                }
                Turn::Write(place, value) => {
                    if let Some(row) = nth_live(&model, place) {
                        slab.row_mut(row).fill(value);
                        model.insert(row, value);
                    }
                }
                Turn::Clear => {
                    slab.clear();
                    model.clear();
                }
            }
            assert_consistent(&slab, &model);
            for (row, value) in &model {
                prop_assert!(slab.is_live(*row));
                slab.prefetch(*row);
                slab.prefetch_mut(*row);
                let words = slab.row(*row);
                prop_assert_eq!(words.len(), stride);
                prop_assert!(words.iter().all(|word| word == value));
            }
        }
    }

    #[test]
    fn the_chunk_of_a_row_is_its_quotient(stride in 1usize..=MAX_ROW_BYTES, row in any::<u32>()) {
        let slab = Slab::<u8>::new(stride).unwrap();
        for row in [row, 0, u32::MAX, row / slab.places.rows_per_chunk as u32 * slab.places.rows_per_chunk as u32] {
            let row_size = row as usize;
            prop_assert_eq!(
                slab.places.split(row),
                (row_size / slab.places.rows_per_chunk, row_size % slab.places.rows_per_chunk)
            );
        }
    }
}

#[test]
fn a_small_slab_is_small() {
    let mut slab = Slab::<f32>::new(16).unwrap();
    assert_eq!(slab.bytes().reserved, 0);
    slab.alloc().unwrap();
    assert_eq!(slab.bytes().reserved, FIRST_BYTES);
    for rows in 2..=100_000usize {
        slab.alloc().unwrap();
        let bytes = slab.bytes();
        assert_eq!(bytes.used, rows * 64);
        let most = if bytes.used <= CHUNK_BYTES {
            (bytes.used * 3 / 2 + FIRST_BYTES).min(CHUNK_BYTES)
        } else {
            bytes.used.next_multiple_of(CHUNK_BYTES)
        };
        assert!((bytes.used..=most).contains(&bytes.reserved), "{bytes:?}");
        assert!(bytes.reserved <= Slab::<f32>::mapped_bytes(rows, 64));
        // The bookkeeping takes one bit per row, and little more.
        assert!(bytes.bookkeeping <= rows / 4 + 2048, "{} for {rows}", bytes.bookkeeping);
    }
}

#[test]
fn whole_lines_are_aligned() {
    let mut slab = Slab::<f32>::new(16).unwrap();
    for _ in 0..70_000 {
        let row = slab.alloc().unwrap();
        assert_eq!(slab.row(row).as_ptr().addr() % 64, 0);
    }
    assert_eq!(slab.row(0).as_ptr().addr() % CHUNK_BYTES, 0);
}

#[test]
fn a_slab_at_the_edge_of_a_chunk_does_not_map_repeatedly() {
    let mut slab = Slab::<u8>::new(MAX_ROW_BYTES).unwrap();
    for _ in 0..3 {
        slab.alloc().unwrap();
    }
    let reserved = slab.bytes().reserved;
    for _ in 0..10 {
        slab.free(2);
        assert_eq!(slab.bytes().reserved, reserved);
        assert_eq!(slab.alloc().unwrap(), 2);
    }
}

#[test]
fn rows_without_bytes_or_with_too_many_are_refused() {
    for stride in [0, MAX_ROW_BYTES / 4 + 1, usize::MAX] {
        assert!(matches!(Slab::<f32>::new(stride), Err(DeviceError::RowSize { .. })));
    }
    assert!(matches!(Slab::<()>::new(5), Err(DeviceError::RowSize { bytes: 0, .. })));
}

#[test]
#[should_panic(expected = "row 1 is freed but not live")]
fn freeing_twice_panics() {
    let mut slab = Slab::<f32>::new(4).unwrap();
    for _ in 0..3 {
        slab.alloc().unwrap();
    }
    slab.free(1);
    slab.free(1);
}

#[test]
fn absent_rows_cannot_be_read() {
    let mut slab = Slab::<u8>::new(MAX_ROW_BYTES).unwrap();
    for _ in 0..8 {
        slab.alloc().unwrap();
    }
    // Both rows of the chunks with rows 2, 3 and 4, 5 are freed. The first chunk is kept, and the
    // second chunk is returned.
    for row in 2..6 {
        slab.free(row);
    }
    for row in [4, 5, 8, u32::MAX] {
        assert!(!slab.is_live(row));
        slab.prefetch(row);
        let read = std::panic::AssertUnwindSafe(|| slab.row(row)[0]);
        assert!(std::panic::catch_unwind(read).is_err(), "row {row}");
    }
    assert_eq!(slab.alloc().unwrap(), 2);
}
