//! The reading of rows. Reading never adds a key.

use zillion_device::simd::vectorised;
use zillion_device::slab::Slab;
use zillion_feature::FeatureKey;

use crate::error::Result;
use crate::index::{AtHome, Entry};
use crate::prefetch::in_turn;
use crate::table::Table;
use crate::table::found_rows::{FoundBuffers, FoundRows};
use crate::table::weights::WeightSlab;
use zillion_rows::dtype::{Bf16, F16, Half, widen};

/// The row that a read returns for a key without a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// The initial row, from which training would start.
    Initial,
    /// The row that the table declares for unknown keys in evaluation.
    Declared,
}

/// The keys of a read, and the form of its output.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    keys: &'a [FeatureKey],
    absent: Absent,
    /// The distance between the beginnings of two rows in the output, in floats.
    stride: usize,
}

/// The buffers that a read fills in addition to the rows.
struct Notes<'a> {
    /// The number of pushes of each row; `None` if they are not read.
    counts: Option<&'a mut [u32]>,
    /// The index entry of each key, or [`Entry::NONE`] for a key without a row. The whole buffer is
    /// `None` if the entries are not kept.
    rows: Option<&'a mut [Entry]>,
}

impl Table {
    /// Copies the rows of `keys` to `out`, which has one stride for each key. Writes their numbers
    /// of pushes to `counts`, and the keys with their index entries to `known`. Returns the number
    /// of keys without a row.
    pub(crate) fn read(
        &self,
        keys: &[FeatureKey],
        out: &mut [f32],
        counts: Option<&mut [u32]>,
        known: Option<FoundBuffers<'_>>,
        absent: Absent,
    ) -> Result<u64> {
        let rows = known.map(|known| {
            known.keys.copy_from_slice(keys);
            known.rows
        });
        let notes = Notes { counts, rows };
        let stride = self.shape.stride();
        let wanted = Wanted { keys, absent, stride };
        if self.narrow.is_some() {
            let ask = |row| self.prefetch_weights(row);
            return self.read_rows(wanted, out, notes, ask, |key, row, target| {
                self.copy_of_either_width(key, row, target);
            });
        }
        let weights = match &self.slabs.weights {
            WeightSlab::F32(weights) => weights,
            WeightSlab::F16(halves) => return self.read_halves::<F16>(wanted, halves, out, notes),
            WeightSlab::Bf16(halves) => {
                return self.read_halves::<Bf16>(wanted, halves, out, notes);
            }
        };
        // The strides of most tables are compiled separately, so that copying a row takes a few
        // instructions and no call.
        match stride {
            4 => self.read_floats::<4>(wanted, weights, out, notes),
            8 => self.read_floats::<8>(wanted, weights, out, notes),
            12 => self.read_floats::<12>(wanted, weights, out, notes),
            16 => self.read_floats::<16>(wanted, weights, out, notes),
            20 => self.read_floats::<20>(wanted, weights, out, notes),
            32 => self.read_floats::<32>(wanted, weights, out, notes),
            64 => self.read_floats::<64>(wanted, weights, out, notes),
            _ => self.read_floats::<0>(wanted, weights, out, notes),
        }
    }

    /// Reads rows of 32-bit weights. `STRIDE` is the stride if it is known at compile time, or 0.
    fn read_floats<const STRIDE: usize>(
        &self,
        wanted: Wanted<'_>,
        weights: &Slab<f32>,
        out: &mut [f32],
        notes: Notes<'_>,
    ) -> Result<u64> {
        let stride = if STRIDE == 0 { wanted.stride } else { STRIDE };
        self.read_rows(
            Wanted { stride, ..wanted },
            out,
            notes,
            #[inline(always)]
            |entry| weights.prefetch(entry.row()),
            #[inline(always)]
            |_, entry, target| target.copy_from_slice(&weights.row(entry.row())[..stride]),
        )
    }

    /// Reads rows of 16-bit weights.
    fn read_halves<H: Half>(
        &self,
        wanted: Wanted<'_>,
        halves: &Slab<u16>,
        out: &mut [f32],
        notes: Notes<'_>,
    ) -> Result<u64> {
        self.read_rows(
            wanted,
            out,
            notes,
            #[inline(always)]
            |entry| halves.prefetch(entry.row()),
            #[inline(always)]
            |_, entry, target| widen::<H>(halves.row(entry.row()), target),
        )
    }

    /// Reads rows of any number type. `ask` prefetches the cache lines of a row, and `copy` copies
    /// a row to its place.
    #[inline(always)]
    fn read_rows(
        &self,
        Wanted { keys, absent, stride }: Wanted<'_>,
        out: &mut [f32],
        Notes { mut counts, mut rows }: Notes<'_>,
        ask: impl Fn(Entry),
        copy: impl Fn(FeatureKey, Entry, &mut [f32]),
    ) -> Result<u64> {
        let wants_counts = counts.is_some();
        let mut missing = 0;
        vectorised(
            #[inline(always)]
            || {
                in_turn(
                    &mut missing,
                    keys.len(),
                    #[inline(always)]
                    |_, i| self.index.prefetch(keys[i]),
                    #[inline(always)]
                    |_, i| match self.index.get_at_home(keys[i]) {
                        AtHome::Found(entry) => self.prefetch_found(entry, wants_counts, &ask),
                        AtHome::Absent => Entry::NONE,
                        AtHome::Beyond => Entry::UNDECIDED,
                    },
                    #[inline(always)]
                    |_, i| {
                        Ok(match self.index.get(keys[i]) {
                            Some(entry) => self.prefetch_found(entry, wants_counts, &ask),
                            None => Entry::NONE,
                        })
                    },
                    #[inline(always)]
                    |missing, i, entry| {
                        let target = &mut out[i * stride..(i + 1) * stride];
                        if let Some(rows) = rows.as_deref_mut() {
                            rows[i] = entry;
                        }
                        if !entry.is_none() {
                            copy(keys[i], entry, target);
                        }
                        let count = counts.as_deref_mut().map(|counts| &mut counts[i]);
                        *missing += self.complete(keys[i], entry, target, count, absent);
                    },
                )
            },
        )?;
        Ok(missing)
    }

    /// Prefetches the parts of a row that the read needs, and returns the index entry of the row.
    #[inline(always)]
    fn prefetch_found(&self, entry: Entry, wants_counts: bool, ask: impl Fn(Entry)) -> Entry {
        ask(entry);
        if wants_counts {
            self.prefetch_companion(entry);
        }
        entry
    }

    /// Completes the read of a key after its row has been copied. Writes the absent row if the key
    /// has no row, and writes the number of pushes if `count` is given. Returns 1 if the key has no
    /// row, else 0.
    #[inline(always)]
    fn complete(
        &self,
        key: FeatureKey,
        entry: Entry,
        target: &mut [f32],
        count: Option<&mut u32>,
        absent: Absent,
    ) -> u64 {
        if let Some(count) = count {
            *count = if entry.is_none() { 0 } else { self.meta_of(entry).count };
        }
        if entry.is_none() {
            self.fill_absent(absent, key, target);
        }
        u64::from(entry.is_none())
    }

    fn fill_absent(&self, absent: Absent, key: FeatureKey, target: &mut [f32]) {
        match absent {
            Absent::Initial => self.shape.fill_initial(key, target),
            Absent::Declared => self.shape.fill_unknown(key, target),
        }
    }

    /// Begins a pull of `keys` keys. Returns the buffers into which the pull writes the index
    /// entries of the keys.
    pub(crate) fn begin_pull(&mut self, keys: usize) -> FoundRows {
        let mut known = std::mem::take(&mut self.known);
        known.begin(keys, &self.index);
        known
    }

    /// Ends a pull that has read all of its keys. Counts the keys, and keeps their index entries
    /// for the push of the same keys.
    pub(crate) fn end_pull(&mut self, known: FoundRows, keys: usize, missing: u64) {
        self.known = known;
        self.counters.pulled += keys as u64;
        self.counters.missing += missing;
    }
}
