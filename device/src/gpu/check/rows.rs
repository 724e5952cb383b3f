//! The sums of row gradients and the row optimizers against their definitions, by bits.
//!
//! The chains are those of `nn/src/ops/gather.rs`, written here once more in their plainest form.

use super::super::kernels::{
    Geometry, GradientSource, ROW_RULES, ROW_SUMS, RowClasses, RowPart, RowRule, RowUpdate,
};
use super::super::{Gpu, GpuError};
use super::rules::apply;
use super::session::{Random, Session, Values};
use super::{Outcome, Size};

/// Rows with more occurrences are medium, and rows with more than the second number are long.
const CLASSES: [usize; 2] = [8, 64];

/// A table, a batch of its rows, and their gradients on the host.
struct Case {
    /// The parts of a row as ranges of floats.
    parts: Vec<RowPart>,
    width: usize,
    stride: usize,
    table_rows: usize,
    /// The unique row of each value of each gather.
    keys: Vec<Vec<usize>>,
    /// The gradient of each gather and part; empty where the gather does not cover the part.
    gradients: Vec<Vec<Vec<f32>>>,
    factors: Vec<Vec<f32>>,
    unique: usize,
}

impl Case {
    /// Makes a batch in which few rows occur often and most occur once.
    fn new(
        random: &mut Random,
        dims: &[usize],
        rows: usize,
        gathers: usize,
        values: Values,
    ) -> Self {
        let mut parts = Vec::new();
        let mut width = 0;
        for &dim in dims {
            parts.push(RowPart { begin: width as u32, end: (width + dim) as u32 });
            width += dim;
        }
        let stride = (3 * width + 3).next_multiple_of(4);
        let mut ids = Vec::new();
        for gather in 0..gathers {
            ids.push(
                (0..rows)
                    .map(|_| match random.below(10) {
                        // One key has a tenth of all values, as a missing value has.
                        0 => 0,
                        1..=3 => 1 + random.below(12),
                        _ => 13 + gather * rows + random.below(rows),
                    })
                    .collect::<Vec<_>>(),
            );
        }
        // Unique rows by falling class, as the plan orders them.
        let mut counts = std::collections::BTreeMap::new();
        ids.iter().flatten().for_each(|&id| *counts.entry(id).or_insert(0usize) += 1);
        let class =
            |count: usize| 2 - usize::from(count > CLASSES[0]) - usize::from(count > CLASSES[1]);
        let mut order: Vec<(usize, usize)> =
            counts.iter().map(|(&id, &n)| (class(n), id)).collect();
        order.sort_unstable();
        let place: std::collections::BTreeMap<usize, usize> =
            order.iter().enumerate().map(|(place, &(_, id))| (id, place)).collect();
        let keys: Vec<Vec<usize>> =
            ids.iter().map(|ids| ids.iter().map(|id| place[id]).collect()).collect();
        let gradients = (0..gathers)
            .map(|gather| {
                let of = |(part, &dim): (usize, &usize)| {
                    // The second part lacks the second gather.
                    if part == 1 && gather == 1 {
                        vec![]
                    } else {
                        random.floats(rows * (dim + dim % 4 * 3), values)
                    }
                };
                dims.iter().enumerate().map(of).collect()
            })
            .collect();
        let factors = (0..gathers)
            .map(|gather| if gather % 4 == 3 { random.floats(rows, Values::Plain) } else { vec![] })
            .collect();
        let unique = order.len();
        Self { parts, width, stride, table_rows: 2 * unique, keys, gradients, factors, unique }
    }

    /// Returns the distance of two rows of a part's gradient.
    fn gradient_stride(&self, part: usize) -> usize {
        let dim = (self.parts[part].end - self.parts[part].begin) as usize;
        dim + dim % 4 * 3
    }

    /// Computes the sums of all unique rows.
    fn sums(&self) -> Vec<f32> {
        let mut sums = vec![0.0f32; self.unique * self.width];
        for (gather, keys) in self.keys.iter().enumerate() {
            for (value, &key) in keys.iter().enumerate() {
                for (part, range) in self.parts.iter().enumerate() {
                    let from = &self.gradients[gather][part];
                    if from.is_empty() {
                        continue;
                    }
                    let stride = self.gradient_stride(part);
                    let by = self.factors[gather].get(value).copied().unwrap_or(1.0);
                    for e in range.begin..range.end {
                        let g = from[value * stride + (e - range.begin) as usize];
                        sums[key * self.width + e as usize] += by * g;
                    }
                }
            }
        }
        sums
    }

    /// Uploads all but the rules and the results.
    fn upload(
        &self,
        session: &Session<'_>,
        slots: &[u32],
    ) -> Result<(RowUpdate, RowClasses), GpuError> {
        let gathers = self.keys.len();
        let mut occurrences = vec![Vec::new(); self.unique];
        let gather_bits = usize::BITS - gathers.leading_zeros();
        for (gather, keys) in self.keys.iter().enumerate() {
            for (value, &key) in keys.iter().enumerate() {
                occurrences[key].push((value as u32) << gather_bits | gather as u32);
            }
        }
        let mut starts = vec![0u32];
        for list in &occurrences {
            starts.push(starts[starts.len() - 1] + list.len() as u32);
        }
        let more_than = |n: usize| occurrences.iter().filter(|list| list.len() > n).count() as u32;
        let classes = RowClasses {
            unique: self.unique as u32,
            long_rows: more_than(CLASSES[1]),
            medium_rows: more_than(CLASSES[0]) - more_than(CLASSES[1]),
            unused: 0,
        };
        let mut sources = Vec::new();
        for part in 0..self.parts.len() {
            for gather in 0..gathers {
                let gradient = &self.gradients[gather][part];
                let factors = &self.factors[gather];
                sources.push(GradientSource {
                    gradient: if gradient.is_empty() { 0 } else { session.upload(gradient)? },
                    stride: self.gradient_stride(part) as u32,
                    flags: if factors.is_empty() { 0 } else { GradientSource::FACTORS },
                    factors: if factors.is_empty() { 0 } else { session.upload(factors)? },
                    ..GradientSource::default()
                });
            }
        }
        let update = RowUpdate {
            slots: session.upload(slots)?,
            sources: session.upload(&sources)?,
            parts: session.upload(&self.parts)?,
            starts: session.upload(&starts)?,
            occurrences: session.upload(&occurrences.concat())?,
            classes: session.upload(&[classes])?,
            stride: self.stride as u32,
            width: self.width as u32,
            part_count: self.parts.len() as u32,
            gathers: gathers as u32,
            gather_bits,
            ..RowUpdate::default()
        };
        Ok((update, classes))
    }
}

/// Returns a rule of a kind for the floats `begin..end`, with its state behind the weights.
pub(super) fn rule(kind: u32, begin: usize, end: usize, width: usize) -> RowRule {
    let (a, b, c, d) = match kind {
        RowRule::MOMENTUM => (0.9, 1.0, 0.0, 0.0),
        RowRule::ADAM => (0.999, 0.1, 0.001, 0.044_7),
        _ => (20.0, 1.0, 0.01, 0.1),
    };
    RowRule {
        kind,
        begin: begin as u32,
        end: end as u32,
        // The state of a segment has at most two floats for each weight.
        state: (width + 2 * begin) as u32,
        lr: 0.05,
        eps: 1e-8,
        a,
        b,
        c,
        d,
        l21: 0.02,
        l2: 1e-4,
        low: -0.7,
        high: 0.8,
        clip_norm: 0.5,
        clip_value: 0.3,
        ..RowRule::default()
    }
}

/// Applies rules to all unique rows of a slab on the host. Returns the number of rows whose
/// gradient is not finite.
fn update(
    case: &Case,
    rules: &[RowRule],
    scale: f32,
    slab: &mut [f32],
    slots: &[u32],
    sums: &[f32],
) -> u32 {
    let mut nonfinite = 0;
    for (u, raw) in sums.chunks(case.width).enumerate() {
        if !raw.iter().all(|x| x.is_finite()) {
            nonfinite += 1;
            continue;
        }
        let row = &mut slab[slots[u] as usize * case.stride..][..case.stride];
        rules.iter().for_each(|rule| apply(rule, scale, row, raw));
    }
    nonfinite
}

/// Returns a slab with states that are not negative, and a permutation of slots.
fn make_slab(random: &mut Random, case: &Case) -> (Vec<f32>, Vec<u32>) {
    let mut slab = random.floats(case.table_rows * case.stride, Values::Plain);
    for row in slab.chunks_mut(case.stride) {
        row[case.width..].iter_mut().for_each(|x| *x = x.abs());
        if random.once_in(4) {
            row[0] = 0.0;
        }
    }
    let mut slots: Vec<u32> = (0..case.table_rows as u32).collect();
    for i in (1..slots.len()).rev() {
        slots.swap(i, random.below(i + 1));
    }
    slots.truncate(case.unique);
    (slab, slots)
}

/// Compares sums and rules in one launch, for rows of every number of threads.
pub(super) fn fast_updates(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("row_update", gpu)?;
    let mut random = Random(31);
    // The dimensions of the parts, the rows of the batch, the gathers.
    let shapes: &[(&[usize], usize, usize)] = match size {
        Size::Small => &[
            (&[1], 150, 2),
            (&[16], 260, 3),
            (&[16, 1], 150, 3),
            (&[8, 4, 3], 90, 4),
            (&[32], 120, 2),
            (&[64], 90, 2),
            (&[128], 110, 2),
            (&[100], 80, 1),
        ],
        Size::Full => &[
            (&[16], 8192, 26),
            (&[16], 65_536, 26),
            (&[16, 1], 8192, 26),
            (&[1], 8192, 26),
            (&[32], 8192, 10),
            (&[64], 4096, 8),
            (&[128], 8192, 8),
        ],
    };
    let kinds = [RowRule::ROWWISE_ADAGRAD, RowRule::SGD, RowRule::ADAGRAD, RowRule::ADAM];
    for (index, &(dims, rows, gathers)) in shapes.iter().enumerate() {
        let values = if index % 3 == 2 { Values::Special } else { Values::Plain };
        let case = Case::new(&mut random, dims, rows, gathers, values);
        let sums = case.sums();
        for kind in kinds {
            let name = format!("rule {kind}, parts {dims:?}, {rows} rows of {gathers} columns");
            let (mut slab, slots) = make_slab(&mut random, &case);
            // A segment for each part, or one for all of them.
            let rules: Vec<RowRule> = if index % 2 == 0 {
                vec![rule(kind, 0, case.width, case.width)]
            } else {
                let of =
                    |part: &RowPart| rule(kind, part.begin as usize, part.end as usize, case.width);
                case.parts.iter().map(of).collect()
            };
            let scale = 0.75;
            let (mut parameters, classes) = case.upload(&session, &slots)?;
            parameters.slab = session.upload(&slab)?;
            parameters.rules = session.upload(&rules)?;
            parameters.rule_count = rules.len() as u32;
            parameters.scale = session.upload(&[scale])?;
            parameters.skip = session.upload(&[0u32])?;
            parameters.nonfinite = session.upload(&[0u32])?;
            let sum_stride = case.width.next_multiple_of(4);
            parameters.sum_stride = sum_stride as u32;
            parameters.sums = session.poisoned::<f32>(case.unique * sum_stride)?.address();
            let Some(threads) = RowUpdate::threads(case.width as u32) else {
                return session.fail(format!("{name}: no kernel"));
            };
            let (kernel, geometry) = parameters.long(threads, classes.long_rows);
            session.launch(kernel, geometry, &parameters)?;
            let (kernel, geometry) = parameters.short(threads, classes.unique);
            session.launch(kernel, geometry, &parameters)?;
            let nonfinite = update(&case, &rules, scale, &mut slab, &slots, &sums);
            // The sums alone, in another order.
            let places: Vec<u32> = (0..case.unique as u32).rev().collect();
            let alone = RowUpdate {
                sums: session.poisoned::<f32>(case.unique * sum_stride)?.address(),
                places: session.upload(&places)?,
                rules: 0,
                ..parameters
            };
            let (kernel, geometry) = alone.long(threads, classes.long_rows);
            session.launch(kernel, geometry, &alone)?;
            let (kernel, geometry) = alone.short(threads, classes.unique);
            session.launch(kernel, geometry, &alone)?;
            let got: Vec<f32> = session.download(alone.sums, case.unique * sum_stride)?;
            let got: Vec<f32> =
                got.chunks(sum_stride).rev().flat_map(|row| row[..case.width].to_vec()).collect();
            session.compare(&format!("sums alone, {name}"), &got, &sums)?;
            let got: Vec<f32> = session.download(parameters.sums, case.unique * sum_stride)?;
            let got: Vec<f32> =
                got.chunks(sum_stride).flat_map(|row| row[..case.width].to_vec()).collect();
            session.compare(&format!("sums, {name}"), &got, &sums)?;
            let got = session.download(parameters.slab, slab.len())?;
            session.compare(&name, &got, &slab)?;
            let got: Vec<u32> = session.download(parameters.nonfinite, 1)?;
            session.compare_words(&name, &got, &[nonfinite])?;
            session.end_case(&name)?;
        }
    }
    session.finish()
}

/// Compares all rules with and without guards, in two launches.
pub(super) fn general_updates(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("row_rules", gpu)?;
    let mut random = Random(32);
    let shapes: &[(&[usize], usize, usize)] = match size {
        Size::Small => &[(&[10, 1], 60, 3), (&[3], 40, 2), (&[150], 12, 2)],
        Size::Full => {
            &[(&[10, 1], 8192, 13), (&[3], 4096, 5), (&[300], 2048, 4), (&[16], 8192, 26)]
        }
    };
    for (index, &(dims, rows, gathers)) in shapes.iter().enumerate() {
        let values = if index == 1 { Values::Special } else { Values::Plain };
        let case = Case::new(&mut random, dims, rows, gathers, values);
        let sums = case.sums();
        for kind in 0..=RowRule::GROUP_FTRL {
            for guarded in [0, 1] {
                let name = format!("rule {kind}, guarded {guarded}, parts {dims:?}, {rows} rows");
                let (mut slab, slots) = make_slab(&mut random, &case);
                let of = |part: &RowPart| RowRule {
                    guarded,
                    clip_norm: if rows % 8 == 0 { f32::INFINITY } else { 0.5 },
                    ..rule(kind, part.begin as usize, part.end as usize, case.width)
                };
                let rules: Vec<RowRule> = case.parts.iter().map(of).collect();
                let (mut parameters, classes) = case.upload(&session, &slots)?;
                parameters.slab = session.upload(&slab)?;
                parameters.nonfinite = session.upload(&[0u32])?;
                parameters.sum_stride = case.width as u32;
                parameters.sums = session.poisoned::<f32>(sums.len())?.address();
                if guarded == 1 {
                    let places: Vec<u32> = (0..case.unique as u32).rev().collect();
                    parameters.places = session.upload(&places)?;
                }
                session.launch(&ROW_SUMS, parameters.sums_geometry(classes.unique), &parameters)?;
                parameters.rules = session.upload(&rules)?;
                parameters.rule_count = rules.len() as u32;
                session.launch(&ROW_RULES, Geometry::warps(classes.unique), &parameters)?;
                let nonfinite = update(&case, &rules, 1.0, &mut slab, &slots, &sums);
                let mut got: Vec<f32> = session.download(parameters.sums, sums.len())?;
                if guarded == 1 {
                    got = got.chunks(case.width).rev().flatten().copied().collect();
                }
                session.compare(&format!("sums, {name}"), &got, &sums)?;
                let got = session.download(parameters.slab, slab.len())?;
                session.compare(&name, &got, &slab)?;
                let got: Vec<u32> = session.download(parameters.nonfinite, 1)?;
                session.compare_words(&name, &got, &[nonfinite])?;
                session.end_case(&name)?;
            }
        }
    }
    session.finish()
}
