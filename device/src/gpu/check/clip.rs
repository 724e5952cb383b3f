//! The norm of a step and its clipping against their definitions (`embedding/src/set/partials.rs`,
//! `nn/src/optim/clip.rs`), by bits.

use super::super::kernels::{
    CLIP, Clip, Count, Geometry, ORDERED_SUMS, OrderedSums, ROW_SQUARES, RowSquares, SquareSegment,
};
use super::super::{Gpu, GpuError};
use super::session::{Random, Session, Values};
use super::{Outcome, Size};

/// Returns the squared norm of a row's gradient.
fn square(raw: &[f32], weights: &[f32], segments: &[SquareSegment]) -> f64 {
    if !raw.iter().all(|x| x.is_finite()) {
        return 0.0;
    }
    let of = |segment: &SquareSegment| {
        let mut lanes = [0.0f64; 8];
        for (index, i) in (segment.begin as usize..segment.end as usize).enumerate() {
            let x = f64::from(raw[i] + segment.l2 * weights[i]);
            lanes[index % 8] += x * x;
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    };
    segments.iter().map(of).sum()
}

/// Launches `ordered_sums` and returns the address of the sums.
fn add_in_order(session: &Session<'_>, input: u64, starts: &[u32]) -> Result<u64, GpuError> {
    let n = starts.len() - 1;
    let out = session.poisoned::<f64>(n)?.address();
    let starts = session.upload(starts)?;
    let parameters = OrderedSums { input, out, starts, n: n as u32, unused: 0 };
    session.launch(&ORDERED_SUMS, Geometry::columns(n as u32), &parameters)?;
    Ok(out)
}

/// Returns the sums of ranges of numbers.
fn sums_of(values: &[f64], starts: &[u32]) -> Vec<f64> {
    let sum = |ends: &[u32]| {
        values[ends[0] as usize..ends[1] as usize].iter().fold(0.0, |sum, value| sum + value)
    };
    starts.windows(2).map(sum).collect()
}

/// Compares norms of rows, and what they make of a step.
pub(super) fn clips(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("clip", gpu)?;
    let mut random = Random(91);
    let shapes: &[(usize, &[u32])] = match size {
        Size::Small => &[(150, &[16]), (40, &[5, 1]), (9, &[100, 3])],
        Size::Full => &[(100_000, &[16, 1]), (20_000, &[128])],
    };
    for &(rows, dims) in shapes {
        let name = format!("{rows} rows of {dims:?}");
        let mut segments = Vec::new();
        let mut width = 0;
        for (index, &dim) in dims.iter().enumerate() {
            let l2 = if index == 0 { 1e-3 } else { 0.0 };
            let (begin, end) = (width, width + dim);
            segments.push(SquareSegment { begin, end, l2, ..SquareSegment::default() });
            width += dim;
        }
        let width = width as usize;
        let (gradient_stride, stride) = (width + 1, width + 4);
        let gradients = random.floats(rows * gradient_stride, Values::Special);
        let slab = random.floats(2 * rows * stride, Values::Plain);
        let slots: Vec<u32> = (0..rows).map(|_| random.below(2 * rows) as u32).collect();
        let mut order: Vec<u32> = (0..rows as u32).collect();
        for i in (1..rows).rev() {
            order.swap(i, random.below(i + 1));
        }
        let mut squares = vec![0.0f64; rows];
        for u in 0..rows {
            let raw = &gradients[u * gradient_stride..][..width];
            let weights = &slab[slots[u] as usize * stride..][..width];
            squares[order[u] as usize] = square(raw, weights, &segments);
        }
        // The rows of a slot, the slots of a group, and all groups.
        let mut levels = Vec::new();
        let mut n = rows as u32;
        for step in [5, 7, u32::MAX] {
            let starts: Vec<u32> = (0..n).step_by(step as usize).chain([n]).collect();
            n = starts.len() as u32 - 1;
            levels.push(starts);
        }
        let out = session.poisoned::<f64>(rows)?.address();
        let parameters = RowSquares {
            gradients: session.upload(&gradients)?,
            slab: session.upload(&slab)?,
            slots: session.upload(&slots)?,
            order: session.upload(&order)?,
            segments: session.upload(&segments)?,
            out,
            rows: Count::at(session.upload(&[rows as u32])?, rows as u32 + 30),
            gradient_stride: gradient_stride as u32,
            stride: stride as u32,
            width: width as u32,
            segment_count: segments.len() as u32,
            ..RowSquares::default()
        };
        session.launch(&ROW_SQUARES, parameters.geometry(), &parameters)?;
        let got: Vec<f64> = session.download(out, rows)?;
        session.compare_words(&name, &got, &squares)?;
        let (mut at, mut expected) = (out, squares);
        for starts in &levels {
            at = add_in_order(&session, at, starts)?;
            expected = sums_of(&expected, starts);
            let got: Vec<f64> = session.download(at, expected.len())?;
            session.compare_words(&format!("sums, {name}"), &got, &expected)?;
        }
        clip_all(&mut session, &name, (at, expected[0]))?;
        session.end_case(&name)?;
    }
    session.finish()
}

/// Compares the factors of steps with several dense norms. `rows` has the address of the squared
/// norm of the rows, and its value.
fn clip_all(
    session: &mut Session<'_>,
    name: &str,
    (rows, squares): (u64, f64),
) -> Result<(), GpuError> {
    for (dense, most, clips) in
        [(3.5, 1.0, 1), (3.5, 1e9, 1), (f64::NAN, 1.0, 1), (f64::INFINITY, 1.0, 0), (2.0, 1.0, 0)]
    {
        let norm = (squares + dense).sqrt();
        let is_skipped = !f64::is_finite(dense) || (clips == 1 && !norm.is_finite());
        let clipped = (most / (norm + 1e-6)).min(1.0) as f32;
        let scale = match (is_skipped, clips) {
            (true, _) => 0.0,
            (false, 1) => clipped,
            _ => 1.0,
        };
        let [to_scale, to_skip] = [session.poisoned::<f32>(1)?, session.poisoned::<u32>(1)?];
        let (to_scale, to_skip) = (to_scale.address(), to_skip.address());
        let dense = session.upload(&[dense])?;
        let skips = session.upload(&[6u32])?;
        let parameters =
            Clip { dense, rows, scale: to_scale, skip: to_skip, skips, most, clips, unused: 0 };
        session.launch(&CLIP, Geometry::line(1, 32), &parameters)?;
        let got = session.download(to_scale, 1)?;
        session.compare(&format!("factor, {name}"), &got, &[scale])?;
        let got: Vec<u32> = session.download(to_skip, 1)?;
        session.compare_words(&format!("skip, {name}"), &got, &[u32::from(is_skipped)])?;
        let got: Vec<u32> = session.download(skips, 1)?;
        session.compare_words(&format!("skips, {name}"), &got, &[6 + u32::from(is_skipped)])?;
    }
    Ok(())
}
