//! Rows of resident tables in all their forms against their definitions, by bits: the rules of rows
//! of every type and width, sweeps, and the rows that a lookup returns.
//!
//! The definitions are those of `rows/src/dtype.rs`, `embedding/src/narrow` and
//! `embedding/src/table/sweep.rs`.

use super::super::kernels::{
    Count, MARK_ROWS, MarkRows, NarrowPart, PULL_ROWS, PullRows, ROW_SQUARES, RowRule, RowSquares,
    SquareSegment, StoredRows, TABLE_RULES, TableRules,
};
use super::super::{Gpu, GpuError};
use super::rows::rule;
use super::rules::apply;
use super::session::{Random, Session, Values};
use super::stored::{combine, largest, nearest, stochastic, unit, widen};
use super::table_rows::{initial_float, segments};
use super::{Outcome, Size};

/// The types of weights.
pub(super) const TYPES: [u32; 3] = [TableRules::F32, TableRules::F16, TableRules::BF16];
/// The dimensions of the segments of a full row, and those of a narrow row.
pub(super) const DIMS: [[usize; 2]; 2] = [[37, 5], [4, 3]];
/// The seed of the random bits of the step.
const ROUNDING: u64 = 0x5eed_0123_4567_89ab;

/// The forms of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Every row is full, and only rows with a gradient change.
    Full,
    /// Some rows are narrow.
    Grown,
    /// Rows without a gradient change too.
    Swept,
}

/// The rows of one width on the host.
pub(super) struct Stored {
    dtype: u32,
    pub(super) slab: Vec<u32>,
    pub(super) stride: usize,
    pub(super) width: usize,
    /// The first float of the state in a row.
    pub(super) state: usize,
    rules: Vec<RowRule>,
}

/// Returns a half of the words of a row.
pub(super) fn half(words: &[u32], i: usize) -> u16 {
    (words[i / 2] >> (16 * (i % 2))) as u16
}

/// Sets a half of the words of a row.
pub(super) fn set_half(words: &mut [u32], i: usize, half: u16) {
    let shift = 16 * (i % 2);
    words[i / 2] = words[i / 2] & !(0xffff << shift) | u32::from(half) << shift;
}

impl Stored {
    /// Makes rows whose segments have the dimensions `dims` and these rules.
    pub(super) fn new(
        random: &mut Random,
        dtype: u32,
        rows: usize,
        dims: [usize; 2],
        kinds: [u32; 2],
        form: Form,
    ) -> Self {
        let width = dims[0] + dims[1];
        let state = if dtype == TableRules::F32 { width } else { width.div_ceil(2) };
        let begins = [0, dims[0]];
        let rules = (0..2).map(|i| RowRule {
            state: (state + 2 * begins[i]) as u32,
            shift: [0, DIMS[0][0] - dims[0]][i] as u32,
            guarded: u32::from(kinds[0] % 2 == 1),
            flags: match (form, i) {
                (Form::Swept, 0) => RowRule::SWEPT | RowRule::L2_WHOLE,
                (Form::Swept, _) if kinds[1].is_multiple_of(2) => RowRule::SWEPT,
                _ => 0,
            },
            ..rule(kinds[i], begins[i], begins[i] + dims[i], width)
        });
        let rules: Vec<RowRule> = rules.collect();
        let stride = (state + 2 * width + 1).next_multiple_of(4);
        let mut slab: Vec<u32> =
            random.floats(rows * stride, Values::Plain).iter().map(|x| x.abs().to_bits()).collect();
        for row in slab.chunks_mut(stride) {
            for i in 0..width {
                let weight = if random.once_in(9) { 0.0 } else { random.unit() };
                match dtype {
                    TableRules::F32 => row[i] = weight.to_bits(),
                    _ => set_half(row, i, nearest(dtype, weight * 1e-3)),
                }
            }
        }
        Self { dtype, slab, stride, width, state, rules }
    }

    /// Returns a weight of a row.
    fn weight(&self, row: usize, i: usize) -> f32 {
        let words = &self.slab[row * self.stride..];
        match self.dtype {
            TableRules::F32 => f32::from_bits(words[i]),
            dtype => widen(dtype, half(words, i)),
        }
    }

    /// Changes a row with a gradient, or as one without a gradient. Returns the number of weights
    /// that were beyond the largest number.
    fn change(&mut self, row: usize, raw: Option<&[f32]>, scale: f32, key: u64) -> u32 {
        let Self { dtype, stride, width, state, .. } = *self;
        let words = &self.slab[row * stride..][..stride];
        let mut floats: Vec<f32> = (0..width).map(|i| self.weight(row, i)).collect();
        floats.extend(words[state..state + 2 * width].iter().map(|&x| f32::from_bits(x)));
        for rule in &self.rules {
            if raw.is_none() && rule.flags & RowRule::SWEPT == 0 {
                continue;
            }
            let l2 =
                if raw.is_some() || rule.flags & RowRule::L2_WHOLE > 0 { rule.l2 } else { 0.0 };
            let local = RowRule { state: width as u32 + 2 * rule.begin, l2, ..*rule };
            let mut gradient = vec![0.0; width];
            for i in rule.begin..rule.end {
                gradient[i as usize] = raw.map_or(0.0, |raw| raw[(i + rule.shift) as usize]);
            }
            apply(&local, scale, &mut floats, &gradient);
        }
        let words = &mut self.slab[row * stride..][..stride];
        for (word, x) in words[state..].iter_mut().zip(&floats[width..]) {
            *word = x.to_bits();
        }
        let seed = combine(ROUNDING, key);
        let mut beyond = 0;
        for (i, &x) in floats[..width].iter().enumerate() {
            if dtype == TableRules::F32 {
                words[i] = x.to_bits();
            } else {
                set_half(words, i, stochastic(dtype, x, unit(seed, i)));
                beyond += u32::from(x.abs() > largest(dtype));
            }
        }
        beyond
    }

    pub(super) fn upload(&self, session: &Session<'_>) -> Result<StoredRows, GpuError> {
        Ok(StoredRows {
            slab: session.upload(&self.slab)?,
            rules: session.upload(&self.rules)?,
            stride: self.stride as u32,
            width: self.width as u32,
            rule_count: self.rules.len() as u32,
            unused: 0,
        })
    }

    /// Returns all numbers of a slab: weights and states.
    fn numbers(&self, slab: &[u32]) -> Vec<f32> {
        let mut numbers = Vec::new();
        for row in slab.chunks(self.stride) {
            if self.dtype != TableRules::F32 {
                numbers.extend((0..2 * self.state).map(|i| widen(self.dtype, half(row, i))));
            }
            let first = if self.dtype == TableRules::F32 { 0 } else { self.state };
            numbers.extend(row[first..].iter().map(|&word| f32::from_bits(word)));
        }
        numbers
    }

    /// Compares the slab on the device.
    pub(super) fn compare(
        &self,
        session: &mut Session<'_>,
        name: &str,
        at: u64,
    ) -> Result<(), GpuError> {
        let got: Vec<u32> = session.download(at, self.slab.len())?;
        session.compare(name, &self.numbers(&got), &self.numbers(&self.slab))
    }
}

/// Returns gradients of which a few are not finite, and a few so large that weights saturate.
fn gradients(random: &mut Random, rows: usize, stride: usize) -> Vec<f32> {
    let mut all = random.floats(rows * stride, Values::Plain);
    for row in all.chunks_mut(stride) {
        match random.below(12) {
            0 => row[stride / 2] = f32::NAN,
            1 => row.iter_mut().for_each(|g| *g *= 1e8),
            _ => {}
        }
    }
    all
}

/// Compares the rules of one form of a table, and the rows that a lookup returns then.
fn check_form(
    session: &mut Session<'_>,
    random: &mut Random,
    dtype: u32,
    kinds: [u32; 2],
    form: Form,
    rows: usize,
) -> Result<(), GpuError> {
    let name = format!("{form:?}, type {dtype}, rules {kinds:?}, {rows} rows");
    let mut stored = DIMS.map(|dims| Stored::new(random, dtype, rows, dims, kinds, form));
    let [full_at, narrow_at] = [stored[0].upload(session)?, stored[1].upload(session)?];
    // The rows of the launch: some of the table's, or all of a swept one.
    let unique = if form == Form::Swept { rows / 3 } else { rows / 2 };
    let mut order: Vec<u32> = (0..rows as u32).collect();
    for i in (1..rows).rev() {
        order.swap(i, random.below(i + 1));
    }
    let mut slots = order[..unique].to_vec();
    if form == Form::Grown {
        slots.iter_mut().step_by(2).for_each(|slot| *slot |= TableRules::NARROW);
    }
    slots.iter_mut().skip(3).step_by(7).for_each(|slot| *slot = TableRules::NO_ROW);
    let width = stored[0].width;
    let sum_stride = width + 3;
    let sums = gradients(random, unique, sum_stride);
    let launched = if form == Form::Swept { rows } else { unique };
    let keys: Vec<u64> = (0..launched).map(|_| random.next()).collect();
    let slots_at = session.upload(&slots)?;
    let mut unique_of = vec![TableRules::NO_GRADIENT; rows];
    let unique_at = session.upload(&unique_of)?;
    if form == Form::Swept {
        let found = slots.iter().enumerate().filter(|(_, slot)| **slot != TableRules::NO_ROW);
        found.for_each(|(u, &slot)| unique_of[slot as usize] = u as u32);
        let count = Count::fixed(unique as u32);
        let mark = MarkRows { slots: slots_at, unique_of: unique_at, count };
        session.launch(&MARK_ROWS, mark.geometry(), &mark)?;
        let got: Vec<u32> = session.download(unique_at, rows)?;
        session.compare_words(&name, &got, &unique_of)?;
    }
    let [nonfinite, saturated] = [session.upload(&[0u32])?, session.upload(&[0u32])?];
    let scale = 0.75;
    let parameters = TableRules {
        rows: [full_at, narrow_at],
        slots: if form == Form::Swept { 0 } else { slots_at },
        sums: session.upload(&sums)?,
        unique_of: if form == Form::Swept { unique_at } else { 0 },
        keys: session.upload(&keys)?,
        rounding: session.upload(&[ROUNDING])?,
        scale: session.upload(&[scale])?,
        skip: session.upload(&[0u32])?,
        nonfinite,
        saturated,
        count: Count::at(session.upload(&[launched as u32])?, launched as u32 + 9),
        width: width as u32,
        sum_stride: sum_stride as u32,
        dtype,
        scratch: TableRules::scratch(dtype, width as u32),
    };
    check_squares(session, &name, form, &stored[0], &parameters, (&slots, &unique_of, &sums))?;
    session.launch(&TABLE_RULES, parameters.geometry(), &parameters)?;
    let mut counted = [0u32; 2];
    for (u, &key) in keys.iter().enumerate() {
        let (slot, from) = match form {
            Form::Swept => (u as u32, unique_of[u]),
            _ => (slots[u], u as u32),
        };
        if slot == TableRules::NO_ROW {
            continue;
        }
        let raw = sums.chunks(sum_stride).nth(from as usize).map(|raw| &raw[..width]);
        let is_finite = raw.is_none_or(|raw| raw.iter().all(|g| g.is_finite()));
        counted[0] += u32::from(!is_finite);
        if !is_finite && form != Form::Swept {
            continue;
        }
        let of_width = &mut stored[usize::from(slot >= TableRules::NARROW)];
        let row = (slot & !TableRules::NARROW) as usize;
        counted[1] += of_width.change(row, raw.filter(|_| is_finite), scale, key);
    }
    stored[0].compare(session, &name, full_at.slab)?;
    stored[1].compare(session, &format!("narrow rows, {name}"), narrow_at.slab)?;
    let got = [session.download(nonfinite, 1)?[0], session.download(saturated, 1)?[0]];
    session.compare_words(&format!("counts, {name}"), &got, &counted)?;
    if form != Form::Swept {
        check_pull(session, &name, &stored, &parameters, (&slots, &keys))?;
    }
    session.end_case(&name)
}

/// Compares the squared norms of the gradients before the rules.
fn check_squares(
    session: &mut Session<'_>,
    name: &str,
    form: Form,
    full: &Stored,
    rules: &TableRules,
    (slots, unique_of, sums): (&[u32], &[u32], &[f32]),
) -> Result<(), GpuError> {
    if form == Form::Grown {
        return Ok(());
    }
    let segment = |rule: &RowRule| SquareSegment {
        begin: rule.begin,
        end: rule.end,
        l2: rule.l2,
        l2_is_whole: u32::from(rule.flags & RowRule::L2_WHOLE > 0),
        ..SquareSegment::default()
    };
    let segments: Vec<SquareSegment> = full.rules.iter().map(segment).collect();
    let count = if form == Form::Swept { unique_of.len() } else { slots.len() };
    let out = session.poisoned::<f64>(count)?.address();
    let parameters = RowSquares {
        gradients: rules.sums,
        slab: rules.rows[0].slab,
        slots: rules.slots,
        unique_of: rules.unique_of,
        segments: session.upload(&segments)?,
        out,
        rows: Count::fixed(count as u32),
        gradient_stride: rules.sum_stride,
        stride: rules.rows[0].stride,
        width: rules.width,
        segment_count: segments.len() as u32,
        dtype: rules.dtype,
        ..RowSquares::default()
    };
    session.launch(&ROW_SQUARES, parameters.geometry(), &parameters)?;
    let square = |u: usize| {
        let (row, from) = match form {
            Form::Swept => (u, unique_of[u]),
            _ => (slots[u] as usize, u as u32),
        };
        if row == TableRules::NO_ROW as usize {
            return 0.0;
        }
        let raw = sums.chunks(rules.sum_stride as usize).nth(from as usize);
        let finite = raw.filter(|raw| raw[..full.width].iter().all(|g| g.is_finite()));
        if finite.is_none() && form != Form::Swept {
            return 0.0;
        }
        let of = |segment: &SquareSegment| {
            let is_whole = segment.l2_is_whole == 1;
            let l2 = if finite.is_some() || is_whole { segment.l2 } else { 0.0 };
            let mut lanes = [0.0f64; 8];
            for (index, i) in (segment.begin as usize..segment.end as usize).enumerate() {
                let g = finite.map_or(0.0, |raw| raw[i]);
                let x = f64::from(g + l2 * full.weight(row, i));
                lanes[index % 8] += x * x;
            }
            let [a, b, c, d, e, f, g, h] = lanes;
            ((a + e) + (c + g)) + ((b + f) + (d + h))
        };
        segments.iter().map(of).sum::<f64>()
    };
    let expected: Vec<f64> = (0..count).map(square).collect();
    let got: Vec<f64> = session.download(out, count)?;
    session.compare_words(&format!("squares, {name}"), &got, &expected)
}

/// Compares the rows that a lookup returns.
fn check_pull(
    session: &mut Session<'_>,
    name: &str,
    stored: &[Stored; 2],
    rules: &TableRules,
    (slots, keys): (&[u32], &[u64]),
) -> Result<(), GpuError> {
    let dtype = rules.dtype;
    let segments = segments(7, stored[0].state);
    let [narrow, full] = [DIMS[1], DIMS[0]];
    let part = |from: usize, to: usize, n: usize| NarrowPart {
        from: from as u32,
        to: to as u32,
        n: n as u32,
        unused: 0,
    };
    let parts = [part(0, 0, narrow[0]), part(narrow[0], full[0], narrow[1])];
    let stride = stored[0].width + 2;
    let out = session.poisoned::<f32>(slots.len() * stride)?.address();
    let parameters = PullRows {
        rows: rules.rows,
        slots: rules.slots,
        keys: rules.keys,
        segments: session.upload(&segments)?,
        parts: session.upload(&parts)?,
        out,
        count: rules.count,
        out_stride: stride as u32,
        segment_count: segments.len() as u32,
        part_count: parts.len() as u32,
        dtype,
    };
    session.launch(&PULL_ROWS, parameters.geometry(), &parameters)?;
    let mut expected = Vec::new();
    for (&slot, &key) in slots.iter().zip(keys) {
        let row = (slot & !TableRules::NARROW) as usize;
        expected.extend((0..stride).map(|i| {
            let part = parts.iter().find(|part| (part.to..part.to + part.n).contains(&(i as u32)));
            match (slot >= TableRules::NARROW, part) {
                _ if i >= stored[0].width => 0.0,
                _ if slot == TableRules::NO_ROW => initial_float(&segments, dtype, key, i),
                (false, _) => stored[0].weight(row, i),
                (true, Some(part)) => stored[1].weight(row, i - (part.to - part.from) as usize),
                (true, None) => initial_float(&segments, dtype, key, i),
            }
        }));
    }
    let got = session.download(out, expected.len())?;
    session.compare(&format!("pulled rows, {name}"), &got, &expected)
}

/// Compares rules, squares and lookups of tables in all forms.
pub(super) fn rules(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("table_rules", gpu)?;
    let mut random = Random(121);
    let rows = if size == Size::Small { 60 } else { 30_000 };
    let pairs = [
        [RowRule::SGD, RowRule::ROWWISE_ADAGRAD],
        [RowRule::ADAGRAD, RowRule::SGD],
        [RowRule::ADAM, RowRule::FTRL],
        [RowRule::GROUP_FTRL, RowRule::MOMENTUM],
    ];
    for dtype in TYPES {
        for kinds in pairs {
            for form in [Form::Full, Form::Grown, Form::Swept] {
                check_form(&mut session, &mut random, dtype, kinds, form, rows)?;
            }
        }
    }
    session.finish()
}
