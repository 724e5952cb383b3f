//! The batches of a step: each lies in one block of device memory, whose parts have fixed places.

use bytemuck::cast_slice;

use super::super::Timer;
use super::super::rows::{BATCHES, Batch, COLUMNS, draw_keys};
use crate::gpu::error::GpuError;
use crate::gpu::kernels::RowClasses;
use crate::gpu::memory::Memory;

/// The number of numeric columns.
pub(super) const NUMBERS: usize = 13;

/// The places of the parts of a batch in its block, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) classes: usize,
    pub(super) numbers: usize,
    pub(super) labels: usize,
    pub(super) inverse: usize,
    pub(super) starts: usize,
    pub(super) occurrences: usize,
    pub(super) slots: usize,
    pub(super) bytes: usize,
}

impl Places {
    fn new(rows: usize, unique: usize) -> Self {
        let mut at = 0;
        let mut take = |words: usize| {
            let place = at;
            at += (words * 4).next_multiple_of(256);
            place
        };
        Self {
            classes: take(4),
            numbers: take(rows * NUMBERS),
            labels: take(rows),
            inverse: take(rows * COLUMNS),
            starts: take(unique + 1),
            occurrences: take(rows * COLUMNS),
            slots: take(unique),
            bytes: take(0),
        }
    }
}

/// One batch on the host.
#[derive(Debug)]
pub(super) struct HostBatch {
    pub(super) planned: Batch,
    /// The numbers, column after column.
    pub(super) numbers: Vec<f32>,
    pub(super) labels: Vec<f32>,
}

/// Several planned batches of the same size.
#[derive(Debug)]
pub(super) struct Batches {
    pub(super) rows: usize,
    pub(super) table_rows: usize,
    pub(super) all: Vec<HostBatch>,
    pub(super) places: Places,
    /// The largest numbers of unique and of long rows.
    pub(super) most: RowClasses,
}

/// Returns a number between -1 and 1 that depends on `word` alone.
pub(super) fn unit_of(word: u64) -> f32 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / 8_388_608.0 - 1.0
}

impl Batches {
    /// Draws and plans batches. A label depends on some keys and on a number, so it can be learnt.
    pub(super) fn new(rows: usize, table_rows: u64, thresholds: [usize; 2]) -> Self {
        let mut all = Vec::new();
        for seed in 0..BATCHES as u64 {
            let keys = draw_keys(rows, table_rows, seed);
            let number = |at: usize| unit_of(seed << 40 | at as u64);
            let label = |row: usize| {
                let of_keys = (0..COLUMNS)
                    .step_by(5)
                    .map(|column| unit_of(u64::from(keys[row * COLUMNS + column]) | 1 << 60));
                f32::from(u8::from(of_keys.sum::<f32>() + number(row) > 0.3))
            };
            all.push(HostBatch {
                numbers: (0..rows * NUMBERS).map(number).collect(),
                labels: (0..rows).map(label).collect(),
                planned: Batch::new(&keys, thresholds),
            });
        }
        let most = |of: fn(&RowClasses) -> u32| {
            all.iter().map(|batch| of(&batch.planned.classes)).max().unwrap_or(0)
        };
        let most = RowClasses {
            unique: most(|classes| classes.unique),
            long_rows: most(|classes| classes.long_rows),
            medium_rows: most(|classes| classes.medium_rows),
            unused: 0,
        };
        let places = Places::new(rows, most.unique as usize);
        Self { rows, table_rows: table_rows as usize, all, places, most }
    }

    /// Uploads the block of each batch.
    pub(super) fn upload(&self, timer: &mut Timer<'_>) -> Result<Vec<Memory>, GpuError> {
        let at = self.places;
        let mut blocks = Vec::new();
        for HostBatch { planned, numbers, labels } in &self.all {
            let mut block = vec![0u8; at.bytes];
            let mut put = |place: usize, bytes: &[u8]| {
                block[place..place + bytes.len()].copy_from_slice(bytes);
            };
            put(at.classes, bytemuck::bytes_of(&planned.classes));
            put(at.numbers, cast_slice(numbers));
            put(at.labels, cast_slice(labels));
            for (column, inverse) in planned.inverse.iter().enumerate() {
                put(at.inverse + column * self.rows * 4, cast_slice(inverse));
            }
            put(at.starts, cast_slice(&planned.starts));
            put(at.occurrences, cast_slice(&planned.occurrences));
            put(at.slots, cast_slice(&planned.slots));
            blocks.push(timer.upload(&block)?);
        }
        Ok(blocks)
    }
}
