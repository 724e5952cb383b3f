//! New rows and rows that grow against their definitions (`rows/src/initializer.rs`,
//! `embedding/src/narrow`), by bits.

use super::super::kernels::{
    Count, GROW_ROWS, GrowRows, INITIAL_ROWS, InitialRows, InitialSegment, NarrowPart, PULL_ROWS,
    PullRows, RowRule, StoredRows, TableRules,
};
use super::super::{Gpu, GpuError};
use super::session::{Random, Session};
use super::stored::{combine, initial, nearest, widen};
use super::table::{DIMS, Form, Stored, TYPES, half, set_half};
use super::{Outcome, Size};

/// Returns how the segments of a full row begin.
pub(super) fn segments(seed: u64, state: usize) -> Vec<InitialSegment> {
    let kinds = [
        InitialSegment::UNIFORM,
        InitialSegment::NORMAL,
        InitialSegment::TRUNCATED,
        InitialSegment::CONSTANT,
    ];
    let begins = [0, DIMS[0][0]];
    let of = |i: usize| InitialSegment {
        seed: combine(seed, i as u64),
        kind: kinds[(seed as usize + i) % 4],
        begin: begins[i] as u32,
        end: (begins[i] + DIMS[0][i]) as u32,
        a: 0.01,
        b: 0.3,
        low: if i == 0 { -0.2 } else { f32::NEG_INFINITY },
        high: if i == 0 { 0.25 } else { f32::INFINITY },
        state: (state + 2 * begins[i]) as u32,
        state_end: (state + 2 * begins[i] + DIMS[0][i]) as u32,
        state_value: 0.1 * (i + 1) as f32,
    };
    (0..2).map(of).collect()
}

/// Returns the initial float of a key's full row.
pub(super) fn initial_float(segments: &[InitialSegment], dtype: u32, key: u64, i: usize) -> f32 {
    let segment = &segments[usize::from(i >= DIMS[0][0])];
    let x = initial(segment, key, i - segment.begin as usize);
    if dtype == TableRules::F32 { x } else { widen(dtype, nearest(dtype, x)) }
}

/// Compares new rows, and the widening of all halves.
pub(super) fn new_rows(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("initial_rows", gpu)?;
    let mut random = Random(122);
    let rows = if size == Size::Small { 50 } else { 100_000 };
    for dtype in TYPES {
        for seed in 0..4 {
            let name = format!("type {dtype}, seed {seed}, {rows} rows");
            let kinds = [RowRule::ADAM, RowRule::ADAM];
            let mut stored = Stored::new(&mut random, dtype, rows, DIMS[0], kinds, Form::Full);
            let segments = segments(seed, stored.state);
            let slab = stored.upload(&session)?.slab;
            let slots: Vec<u32> = (0..rows as u32).rev().step_by(2).collect();
            let keys: Vec<u64> = slots.iter().map(|_| random.next()).collect();
            let parameters = InitialRows {
                slab,
                slots: session.upload(&slots)?,
                keys: session.upload(&keys)?,
                segments: session.upload(&segments)?,
                count: Count::fixed(slots.len() as u32),
                stride: stored.stride as u32,
                width: stored.width as u32,
                segment_count: segments.len() as u32,
                dtype,
            };
            session.launch(&INITIAL_ROWS, parameters.geometry(), &parameters)?;
            for (&slot, &key) in slots.iter().zip(&keys) {
                let words = &mut stored.slab[slot as usize * stored.stride..][..stored.stride];
                for i in 0..stored.width {
                    let x = initial_float(&segments, dtype, key, i);
                    match dtype {
                        TableRules::F32 => words[i] = x.to_bits(),
                        _ => set_half(words, i, nearest(dtype, x)),
                    }
                }
                for segment in &segments {
                    let state = segment.state as usize..segment.state_end as usize;
                    words[state].fill(segment.state_value.to_bits());
                }
            }
            stored.compare(&mut session, &name, slab)?;
            session.end_case(&name)?;
        }
    }
    for dtype in [TableRules::F16, TableRules::BF16] {
        let name = format!("all numbers of type {dtype}");
        let words: Vec<u32> = (0..1u32 << 15).map(|i| (2 * i) | ((2 * i + 1) << 16)).collect();
        let out = session.poisoned::<f32>(1 << 16)?.address();
        let slab = session.upload(&words)?;
        let rows = StoredRows { slab, stride: 128, width: 256, ..StoredRows::default() };
        let parameters = PullRows {
            rows: [rows, rows],
            out,
            count: Count::fixed(256),
            out_stride: 256,
            dtype,
            ..PullRows::default()
        };
        session.launch(&PULL_ROWS, parameters.geometry(), &parameters)?;
        let expected: Vec<f32> = (0..=u16::MAX).map(|half| widen(dtype, half)).collect();
        let got = session.download(out, 1 << 16)?;
        session.compare(&name, &got, &expected)?;
        session.end_case(&name)?;
    }
    session.finish()
}

/// Compares narrow rows that become full. The weights go to where a lookup finds them, and the
/// state of each segment follows kind after kind.
pub(super) fn grown_rows(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("grow_rows", gpu)?;
    let mut random = Random(123);
    let rows = if size == Size::Small { 40 } else { 50_000 };
    for dtype in TYPES {
        let name = format!("type {dtype}, {rows} rows");
        let kinds = [RowRule::ADAM, RowRule::ADAM];
        let make =
            |random: &mut Random, dims| Stored::new(random, dtype, rows, dims, kinds, Form::Grown);
        let mut full = make(&mut random, DIMS[0]);
        let narrow = make(&mut random, DIMS[1]);
        let stored = [full.upload(&session)?, narrow.upload(&session)?];
        let part = |from: usize, to: usize, n: usize| NarrowPart {
            from: from as u32,
            to: to as u32,
            n: n as u32,
            unused: 0,
        };
        let [[wide, _], [a, b]] = DIMS;
        let weights = [part(0, 0, a), part(a, wide, b)];
        // Two numbers of state for each weight, of each segment one kind after the other.
        let (at, to) = (narrow.state, full.state);
        let states = [
            part(at, to, a),
            part(at + a, to + wide, a),
            part(at + 2 * a, to + 2 * wide, b),
            part(at + 2 * a + b, to + 2 * wide + DIMS[0][1], b),
        ];
        let from: Vec<u32> = (0..rows as u32).step_by(3).collect();
        let places: Vec<u32> = from.iter().map(|row| rows as u32 - 1 - row).collect();
        let parameters = GrowRows {
            rows: stored,
            from: session.upload(&from)?,
            to: session.upload(&places)?,
            weights: session.upload(&weights)?,
            states: session.upload(&states)?,
            count: Count::fixed(from.len() as u32),
            weight_parts: weights.len() as u32,
            state_parts: states.len() as u32,
            dtype,
            unused: 0,
        };
        session.launch(&GROW_ROWS, parameters.geometry(), &parameters)?;
        for (&from, &to) in from.iter().zip(&places) {
            let source = &narrow.slab[from as usize * narrow.stride..][..narrow.stride];
            let target = &mut full.slab[to as usize * full.stride..][..full.stride];
            for part in weights {
                for i in 0..part.n as usize {
                    let (from, to) = (part.from as usize + i, part.to as usize + i);
                    match dtype {
                        TableRules::F32 => target[to] = source[from],
                        _ => set_half(target, to, half(source, from)),
                    }
                }
            }
            for part in states {
                let range = part.from as usize..(part.from + part.n) as usize;
                target[part.to as usize..][..part.n as usize].copy_from_slice(&source[range]);
            }
        }
        full.compare(&mut session, &name, stored[0].slab)?;
        session.end_case(&name)?;
    }
    session.finish()
}
