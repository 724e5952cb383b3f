//! The writing of rows. One pass looks up the keys, creates the rows of new keys and applies the
//! optimizer.

use zillion_device::simd::vectorised;
use zillion_feature::{FeatureKey, Use};

use crate::changes::Changes;
use crate::error::Result;
use crate::index::{AtHome, Entry};
use crate::narrow::Narrow;
use crate::narrow::shape::NarrowShape;
use crate::optimizer::{Kernel, LANES, RowKernel, Shaping, with_kernel};
use crate::prefetch::in_turn;
use crate::shape::{SegmentShape, TableShape, TableStep};
use crate::table::Table;
use crate::table::slabs::RowSlabs;
use crate::table::uses::note_use;
use zillion_rows::row::{Meta, floats_mut};

/// The inputs of a push. All stages of the push read them.
pub(super) struct Push<'a> {
    pub(super) shape: &'a TableShape,
    pub(super) keys: &'a [FeatureKey],
    /// The gradients, with one stride for each key. They are empty if a device applies them.
    pub(super) gradients: &'a [f32],
    pub(super) occurrences: Times<'a>,
    pub(super) step: &'a TableStep,
    /// The index entries of the keys, if they have already been looked up in this step, else
    /// `None`. A key without a row at that time may have one now.
    pub(super) known: Option<&'a [Entry]>,
}

impl Table {
    /// Prefetches the cache lines of a row that is pushed.
    #[inline(always)]
    fn found(&mut self, entry: Entry) -> Entry {
        let (slabs, row) = self.slabs_of(entry);
        slabs.prefetch_mut(row);
        entry
    }

    /// Adds the keys of a push, which are in the order of their slots, to the demand of the step.
    pub(super) fn count_demand(&mut self, keys: &[FeatureKey]) {
        if self.shape.priority.is_none() {
            return;
        }
        let mut left = keys;
        for (slots, demand) in self.demand.values_mut() {
            let (of_group, after) =
                left.split_at(left.partition_point(|key| key.slot() < slots.end));
            demand.keys += of_group.len() as u64;
            left = after;
        }
    }

    /// Applies the gradients of `keys` in the order of the keys. `gradients` has one stride for
    /// each key. An unknown key gets a row if it is admitted, and is refused if the vocabulary is
    /// fixed. A gradient with a number that is not finite is dropped, and so are all gradients of a
    /// skipped step: the row keeps its weights and its state. Each of these cases is counted.
    /// `occurrences` gives the number of occurrences of each key, which some kinds of admission
    /// need.
    ///
    /// Rows, admission, metadata and the list of changed keys depend on the keys alone, and not on
    /// the gradients. So they can be decided before the gradients are known.
    pub(crate) fn push(
        &mut self,
        keys: &[FeatureKey],
        gradients: &[f32],
        occurrences: Times<'_>,
        step: &TableStep,
    ) -> Result<()> {
        let shape = &*self.shape.clone();
        self.count_demand(keys);
        let pulled = std::mem::take(&mut self.known);
        let looked_up = step.permits.rows(occurrences.first..occurrences.first + keys.len());
        let known = looked_up.or_else(|| pulled.rows(keys, &self.index));
        let push = Push { shape, keys, gradients, occurrences, step, known };
        match (&shape.segments[..], &step.kernels[..]) {
            // Most tables have one segment; its rule is chosen here and not for each row.
            ([segment], [kernel]) => {
                let shaping = Shaping { l2: segment.l2, scale: step.scale };
                with_kernel!(kernel, rule => push.run(self, &OneRule { rule, segment, shaping }))?;
            }
            (segments, kernels) => {
                push.run(self, &AllRules { segments, kernels, scale: step.scale })?;
            }
        }
        self.known = pulled;
        self.grow_due()
    }
}

/// The update rules of all segments of a row.
trait Rules {
    /// Applies the gradient `raw` to a row. `companion` begins with the optimizer state.
    fn apply(&self, weights: &mut [f32], companion: &mut [u32], raw: &[f32]);
}

/// The rule of a table with one segment.
struct OneRule<'a, K> {
    rule: &'a K,
    segment: &'a SegmentShape,
    shaping: Shaping,
}

impl<K: RowKernel> Rules for OneRule<'_, K> {
    #[inline(always)]
    fn apply(&self, weights: &mut [f32], companion: &mut [u32], raw: &[f32]) {
        apply_rule(self.rule, self.segment, self.shaping, weights, companion, raw);
    }
}

/// The rules of a table with several segments. The kind of each rule is looked up for each row.
struct AllRules<'a> {
    segments: &'a [SegmentShape],
    kernels: &'a [Kernel],
    scale: f32,
}

impl Rules for AllRules<'_> {
    #[inline(always)]
    fn apply(&self, weights: &mut [f32], companion: &mut [u32], raw: &[f32]) {
        for (segment, kernel) in self.segments.iter().zip(self.kernels) {
            let shaping = Shaping { l2: segment.l2, scale: self.scale };
            with_kernel!(kernel, k => apply_rule(k, segment, shaping, weights, companion, raw));
        }
    }
}

impl Push<'_> {
    fn run(&self, table: &mut Table, rules: &impl Rules) -> Result<()> {
        vectorised(
            #[inline(always)]
            || {
                in_turn(
                    table,
                    self.keys.len(),
                    #[inline(always)]
                    |table, i| self.ask(table, i),
                    #[inline(always)]
                    |table, i| self.look(table, i),
                    #[inline(always)]
                    |table, i| self.look_again(table, i),
                    #[inline(always)]
                    |table, i, entry| self.apply(rules, table, i, entry),
                )
            },
        )
    }

    #[inline(always)]
    fn gradient(&self, i: usize) -> &[f32] {
        let stride = self.shape.stride();
        &self.gradients[i * stride..(i + 1) * stride]
    }

    #[inline(always)]
    pub(super) fn ask(&self, table: &Table, i: usize) {
        if self.known.is_some_and(|rows| !rows[i].is_none()) {
            return;
        }
        table.index.prefetch(self.keys[i]);
        if let Some(candidates) = &table.candidates {
            candidates.prefetch(self.keys[i]);
        }
    }

    #[inline(always)]
    pub(super) fn look(&self, table: &mut Table, i: usize) -> Entry {
        let entry = match self.known {
            Some(rows) => rows[i],
            None => match table.index.get_at_home(self.keys[i]) {
                AtHome::Found(entry) => entry,
                AtHome::Absent | AtHome::Beyond => Entry::NONE,
            },
        };
        // The row of an undecided key is created or searched for further when its cache lines have
        // arrived.
        if entry.is_none() { Entry::UNDECIDED } else { table.found(entry) }
    }

    /// Finds or creates the row of a key whose row the first lookup has not found.
    #[inline(never)]
    pub(super) fn look_again(&self, table: &mut Table, i: usize) -> Result<Entry> {
        let Self { occurrences, step, .. } = *self;
        let key = self.keys[i];
        let entry = match table.index.get(key) {
            Some(entry) => entry,
            None if table.dense.is_some() => {
                table.counters.refused += 1;
                return Ok(Entry::NONE);
            }
            None if !step.permits.has(occurrences.first + i)
                && table.count_refused(key, || occurrences.of(i), step.at.step) =>
            {
                return Ok(Entry::NONE);
            }
            None if !table.admit(key, || occurrences.of(i), step.at) => return Ok(Entry::NONE),
            None => table.create(key, step.epoch)?,
        };
        Ok(table.found(entry))
    }

    /// Returns whether the gradient of a key moves its row.
    #[inline(always)]
    fn moves(&self, i: usize) -> bool {
        !self.step.is_skipped && finite(self.gradient(i), self.shape.width)
    }

    /// Applies a key's gradient to its row. Updates the metadata of the row and the list of changed
    /// keys, also if the gradient is dropped.
    #[inline(always)]
    fn apply(&self, rules: &impl Rules, table: &mut Table, i: usize, entry: Entry) {
        if entry.is_none() {
            return;
        }
        if table.narrow.is_some()
            && let Some(row) = entry.narrow_row()
        {
            return self.apply_to_narrow(table, i, row);
        }
        let row = entry.row();
        let Table { slabs, changes, scratch, counters, snapshot, .. } = table;
        let RowSlabs { weights, companion, .. } = slabs;
        let companion = companion.row_mut(row);
        if let Some(snapshot) = snapshot {
            snapshot.save(false, self.shape, self.keys[i], weights.words(row), companion);
        }
        if self.moves(i) {
            counters.pushed += 1;
            counters.saturated += weights.change(
                row,
                scratch,
                self.shape.width,
                #[inline(always)]
                || self.step.rounding.row(self.keys[i].0),
                #[inline(always)]
                |weights| rules.apply(weights, companion, self.gradient(i)),
            );
        } else {
            counters.nonfinite += 1;
        }
        self.note(self.shape, changes, companion, i);
    }

    /// Applies a key's gradient to a narrow row, with the same rules. Only the part of the gradient
    /// for the floats of the row is used. A row that has had enough pushes grows after all keys are
    /// done. The function is not inlined, so that the code for full rows stays short.
    #[inline(never)]
    fn apply_to_narrow(&self, table: &mut Table, i: usize, row: u32) {
        let Table { narrow: Some(narrow), changes, scratch, counters, snapshot, .. } = table else {
            return;
        };
        let Some(small) = self.shape.narrow.as_deref() else { return };
        let NarrowShape { at, shape, .. } = small;
        let Narrow { slabs, gradient, due, .. } = &mut **narrow;
        let RowSlabs { weights, companion, .. } = slabs;
        let companion = companion.row_mut(row);
        if let Some(snapshot) = snapshot {
            snapshot.save(true, shape, self.keys[i], weights.words(row), companion);
        }
        if self.moves(i) {
            counters.pushed += 1;
            counters.narrow_gradients += 1;
            let (segments, kernels) = (&shape.segments[..], &self.step.narrow[..]);
            let rules = AllRules { segments, kernels, scale: self.step.scale };
            gradient.resize(shape.stride(), 0.0);
            small.gather(self.gradient(i), gradient);
            counters.saturated += vectorised(
                #[inline(always)]
                || {
                    weights.change(
                        row,
                        scratch,
                        shape.width,
                        #[inline(always)]
                        || self.step.rounding.row(self.keys[i].0),
                        #[inline(always)]
                        |weights| rules.apply(weights, companion, gradient),
                    )
                },
            );
        } else {
            counters.nonfinite += 1;
        }
        self.note(shape, changes, companion, i);
        if shape.meta(companion).count >= *at {
            due.push(self.keys[i]);
        }
    }

    /// Records a push in the companion row and in the list of changed keys. Both records need the
    /// step of the row's previous push. So `touch`, which overwrites this step, is called last.
    #[inline(always)]
    pub(super) fn note(
        &self,
        shape: &TableShape,
        changes: &mut Option<Changes>,
        companion: &mut [u32],
        i: usize,
    ) {
        if let Some(changes) = changes
            && shape.meta(companion).dirty_epoch != changes.epoch
        {
            changes.note(self.keys[i]);
        }
        if let (Some(statistics), Some(uses)) = (&shape.spec.statistics, self.occurrences.uses) {
            note_use(shape, statistics, companion, uses[i], self.step.at.now);
        }
        touch(shape, companion, self.step);
    }
}

/// The numbers of occurrences of the keys of a run in the batch, and the uses of their rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times<'a> {
    /// The position of the run's first key in the plan, counted from 0.
    pub(crate) first: usize,
    /// The offsets of the keys' occurrences, and one offset more for the end. The list can be empty
    /// if occurrences are not needed.
    pub(crate) offsets: &'a [u32],
    /// The use of each key's row; `None` if the table keeps no statistics of use.
    pub(crate) uses: Option<&'a [Use]>,
}

impl Times<'_> {
    #[inline(always)]
    pub(crate) fn of(self, key: usize) -> u32 {
        self.offsets[key + 1] - self.offsets[key]
    }
}

/// Returns whether the first `width` floats of a row are finite.
pub(crate) fn is_finite(row: &[f32], width: usize) -> bool {
    vectorised(
        #[inline(always)]
        || finite(row, width),
    )
}

/// Returns whether the first `width` floats of a row are finite. Callers must be vectorised
/// themselves.
#[inline(always)]
fn finite(row: &[f32], width: usize) -> bool {
    // Nearly always all floats are finite, including the padding.
    all_are_finite(row) || row[..width].iter().all(|x| x.is_finite())
}

#[inline(always)]
fn all_are_finite(row: &[f32]) -> bool {
    // The largest bit pattern decides, because the bit patterns of infinities and NaNs are above
    // all others.
    const MAGNITUDE: u32 = u32::MAX >> 1;
    let (whole, rest) = row.as_chunks::<LANES>();
    let mut largest = [0; LANES];
    for chunk in whole {
        for (largest, &x) in largest.iter_mut().zip(chunk) {
            *largest = (x.to_bits() & MAGNITUDE).max(*largest);
        }
    }
    for (largest, &x) in largest.iter_mut().zip(rest) {
        *largest = (x.to_bits() & MAGNITUDE).max(*largest);
    }
    largest.iter().all(|&bits| bits < f32::INFINITY.to_bits())
}

/// Applies the rule of one segment to one row.
#[inline(always)]
pub(crate) fn apply_rule(
    rule: &impl RowKernel,
    segment: &SegmentShape,
    shaping: Shaping,
    weights: &mut [f32],
    companion: &mut [u32],
    raw: &[f32],
) {
    let weights = &mut weights[segment.weights.clone()];
    let state = floats_mut(&mut companion[segment.state.clone()]);
    rule.row(weights, state, &raw[segment.weights.clone()], shaping);
}

/// Records a push in the metadata of a row.
#[inline(always)]
pub(crate) fn touch(shape: &TableShape, companion: &mut [u32], step: &TableStep) {
    let count = shape.meta(companion).count.saturating_add(1);
    let meta = Meta { count, last_step: step.at.now, dirty_epoch: step.epoch };
    shape.set_meta(companion, meta);
}
