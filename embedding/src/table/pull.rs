//! Reading rows: never inserts.

use zillion_device::slab::Slab;
use zillion_feature::FeatureKey;

use super::weights::{WeightSlab, copy_halves};
use super::{BLOCK, Table, UNKNOWN, in_blocks};
use crate::dtype::{Bf16, F16, Half};
use crate::error::Result;
use crate::index::AtHome;

/// What a read finds for a key that the table does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// The row that training would start from.
    Initial,
    /// What the table declares for evaluation.
    Declared,
}

impl Table {
    /// Copies the rows of `keys` to `out` (`keys.len()` strides) and how often each has been pushed to
    /// `counts`. Returns the number of keys that are not there.
    pub(crate) fn read(
        &self,
        keys: &[FeatureKey],
        out: &mut [f32],
        counts: Option<&mut [u32]>,
        absent: Absent,
    ) -> Result<u64> {
        if self.narrow.is_some() {
            return self.read_widths(keys, out, counts, absent);
        }
        let stride = self.shape.stride();
        let weights = match &self.weights {
            WeightSlab::F32(weights) => weights,
            WeightSlab::F16(halves) => {
                return self.read_halves::<F16>(halves, keys, out, counts, absent);
            }
            WeightSlab::Bf16(halves) => {
                return self.read_halves::<Bf16>(halves, keys, out, counts, absent);
            }
        };
        // The widths of most tables, so that a row is a few moves and not a call.
        match stride {
            4 => self.read_rows::<4>(weights, keys, out, counts, absent),
            8 => self.read_rows::<8>(weights, keys, out, counts, absent),
            12 => self.read_rows::<12>(weights, keys, out, counts, absent),
            16 => self.read_rows::<16>(weights, keys, out, counts, absent),
            20 => self.read_rows::<20>(weights, keys, out, counts, absent),
            32 => self.read_rows::<32>(weights, keys, out, counts, absent),
            64 => self.read_rows::<64>(weights, keys, out, counts, absent),
            _ => self.read_rows::<0>(weights, keys, out, counts, absent),
        }
    }

    /// The same where weights have 16 bits: a block is widened in one go, and what is not there put over it.
    fn read_halves<H: Half>(
        &self,
        halves: &Slab<u16>,
        keys: &[FeatureKey],
        out: &mut [f32],
        mut counts: Option<&mut [u32]>,
        absent: Absent,
    ) -> Result<u64> {
        let stride = self.shape.stride();
        let wants_counts = counts.is_some();
        let mut rows = [[UNKNOWN; BLOCK]; 2];
        let mut missing = 0;
        in_blocks(
            &mut rows,
            keys.len(),
            |_, block| keys[block].iter().for_each(|&key| self.index.prefetch(key)),
            |rows, block, half| {
                self.find(&keys[block], &mut rows[half], |row| {
                    halves.prefetch(row);
                    if wants_counts {
                        self.companion.prefetch(row);
                    }
                });
                Ok(())
            },
            |rows, block, half| {
                let rows = &rows[half][..block.len()];
                let targets = &mut out[block.start * stride..block.end * stride];
                copy_halves::<H>(halves, rows, targets, stride);
                for ((target, &row), i) in targets.chunks_exact_mut(stride).zip(rows).zip(block) {
                    let count = counts.as_deref_mut().map(|counts| &mut counts[i]);
                    missing += self.complete(keys[i], row, target, count, absent);
                }
            },
        )?;
        Ok(missing)
    }

    /// Finds the rows of a block, and asks for the lines of each that is there.
    #[inline(always)]
    pub(super) fn find(&self, keys: &[FeatureKey], rows: &mut [u32; BLOCK], ask: impl Fn(u32)) {
        let found = |row: u32| {
            ask(row);
            row
        };
        let mut beyond = 0u32;
        for (i, (row, &key)) in rows.iter_mut().zip(keys).enumerate() {
            *row = match self.index.get_at_home(key) {
                AtHome::Row(row) => found(row),
                AtHome::Absent => UNKNOWN,
                AtHome::Beyond => {
                    beyond |= 1 << i;
                    UNKNOWN
                }
            };
        }
        while beyond != 0 {
            let i = beyond.trailing_zeros() as usize;
            rows[i] = self.index.get(keys[i]).map_or(UNKNOWN, found);
            beyond &= beyond - 1;
        }
    }

    /// What is left to do when the rows that are there have been copied: writes what a key without a row reads as, and
    /// the count, where it is wanted. Returns the number of keys without a row.
    #[inline(always)]
    pub(super) fn complete(
        &self,
        key: FeatureKey,
        row: u32,
        target: &mut [f32],
        count: Option<&mut u32>,
        absent: Absent,
    ) -> u64 {
        if let Some(count) = count {
            *count = match row {
                UNKNOWN => 0,
                _ => self.meta_of(row).count,
            };
        }
        if row == UNKNOWN {
            self.fill_absent(absent, key, target);
        }
        u64::from(row == UNKNOWN)
    }

    fn fill_absent(&self, absent: Absent, key: FeatureKey, target: &mut [f32]) {
        match absent {
            Absent::Initial => self.shape.fill_initial(key, target),
            Absent::Declared => self.shape.fill_unknown(key, target),
        }
    }

    /// `STRIDE` is the stride, or 0 for any.
    fn read_rows<const STRIDE: usize>(
        &self,
        weights: &Slab<f32>,
        keys: &[FeatureKey],
        out: &mut [f32],
        mut counts: Option<&mut [u32]>,
        absent: Absent,
    ) -> Result<u64> {
        let stride = if STRIDE == 0 { self.shape.stride() } else { STRIDE };
        let wants_counts = counts.is_some();
        let mut rows = [[UNKNOWN; BLOCK]; 2];
        let mut missing = 0;
        in_blocks(
            &mut rows,
            keys.len(),
            |_, block| keys[block].iter().for_each(|&key| self.index.prefetch(key)),
            |rows, block, half| {
                self.find(&keys[block], &mut rows[half], |row| {
                    weights.prefetch(row);
                    if wants_counts {
                        self.companion.prefetch(row);
                    }
                });
                Ok(())
            },
            |rows, block, half| {
                let targets =
                    out[block.start * stride..block.end * stride].chunks_exact_mut(stride);
                for ((target, &row), i) in targets.zip(&rows[half]).zip(block) {
                    if row != UNKNOWN {
                        target.copy_from_slice(&weights.row(row)[..stride]);
                    }
                    let count = counts.as_deref_mut().map(|counts| &mut counts[i]);
                    missing += self.complete(keys[i], row, target, count, absent);
                }
            },
        )?;
        Ok(missing)
    }

    /// [`Table::read`] for training: counted.
    pub(crate) fn pull(
        &mut self,
        keys: &[FeatureKey],
        out: &mut [f32],
        counts: Option<&mut [u32]>,
    ) -> Result<()> {
        let missing = self.read(keys, out, counts, Absent::Initial)?;
        self.counters.pulled += keys.len() as u64;
        self.counters.missing += missing;
        Ok(())
    }
}
