//! Losses and the assembly of a batch against their definitions (`nn/src/ops/loss.rs`), by bits.

use super::super::kernels::{
    ASSEMBLE, Assemble, Count, Geometry, LOSS_GRAD, LOSS_SUM, LOSS_TILES, Loss, Rows,
};
use super::super::{Gpu, GpuError};
use super::session::{Lanes, Matrix, Random, Session, Values};
use super::{Outcome, Size};
use crate::simd::math;

fn class(p: &Loss, z: f32, y: f32) -> (f32, f32, f32) {
    let sign = 2.0 * y - 1.0;
    (y * p.positive + (1.0 - y) * p.negative, sign, sign * z)
}

fn loss(p: &Loss, z: f32, y: f32) -> f32 {
    let apart = z - y;
    match p.kind {
        Loss::CROSS_ENTROPY => return z.max(0.0) - z * y + math::ln_1p(math::exp(-z.abs())),
        Loss::SQUARED => return apart * apart,
        Loss::HUBER if apart.abs() <= p.gamma => return 0.5 * apart * apart,
        Loss::HUBER => return p.gamma * (apart.abs() - 0.5 * p.gamma),
        Loss::POISSON => return math::exp(z) - y * z,
        _ => {}
    }
    let (class, _, s) = class(p, z, y);
    class * math::exp(-p.gamma * math::log1p_exp(s)) * math::log1p_exp(-s)
}

fn slope(p: &Loss, z: f32, y: f32) -> f32 {
    match p.kind {
        Loss::CROSS_ENTROPY => return math::sigmoid(z) - y,
        Loss::SQUARED => return 2.0 * (z - y),
        Loss::HUBER => return (z - y).clamp(-p.gamma, p.gamma),
        Loss::POISSON => return math::exp(z) - y,
        _ => {}
    }
    let (class, sign, s) = class(p, z, y);
    let focus = math::exp(-p.gamma * math::log1p_exp(s));
    let (probability, rest) = (math::sigmoid(s), math::sigmoid(-s));
    -class * sign * focus * (p.gamma * probability * math::log1p_exp(-s) + rest)
}

/// Compares every kind of loss with its gradient.
pub(super) fn losses(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("loss", gpu)?;
    let mut random = Random(71);
    let shapes: &[(usize, usize, usize)] = match size {
        Size::Small => &[(500, 3, 300), (70, 2, 16), (1, 1, 256)],
        Size::Full => &[(8192, 8, 256), (65_536, 64, 256), (5000, 7, 1000)],
    };
    for &(rows, lane_count, tile_rows) in shapes {
        for kind in Loss::CROSS_ENTROPY..=Loss::POISSON {
            let name = format!("kind {kind}, {rows} rows in {lane_count} lanes");
            let lanes = Lanes::random(&mut random, rows, lane_count, tile_rows);
            let split = lanes.upload(&session)?;
            let mut z = Matrix::random(&mut random, rows, 1, 1, Values::Plain);
            z.values.iter_mut().for_each(|z| *z *= 20.0);
            let column = |random: &mut Random, f: fn(f32) -> f32| {
                let mut column = Matrix::random(random, rows, 1, 0, Values::Plain);
                column.values.iter_mut().for_each(|x| *x = f(*x));
                column
            };
            let y = column(&mut random, |x| f32::from(u8::from(x > 0.3)));
            // Some rows count nothing, and their labels are missing.
            let w = column(&mut random, |x| if x < -0.6 { 0.0 } else { x.abs() });
            let g = 0.125f32;
            let tiles = lanes.tiles.len() - 1;
            let parameters = Loss {
                z: z.upload(&session)?,
                y: y.upload(&session)?,
                w: w.upload(&session)?,
                out: Rows { data: session.poisoned::<f32>(rows)?.address(), stride: 1, cols: 1 },
                g: session.upload(&[g])?,
                tile_sums: session.poisoned::<f32>(tiles)?.address(),
                tiles: split.tiles,
                lanes: split.lanes,
                sum: session.poisoned::<f32>(1)?.address(),
                rows: Count::fixed(rows as u32),
                lane_count: lane_count as u32,
                kind,
                gamma: 2.0,
                positive: 0.75,
                negative: 0.25,
                unused: 0,
            };
            let at = |row: usize| (z.at(row, 0), y.at(row, 0), w.at(row, 0));
            let mut total: Option<f32> = None;
            for of_lane in lanes.ranges() {
                let mut lane: Option<f32> = None;
                for tile in of_lane {
                    let sum: f64 =
                        tile.map(at)
                            .map(|(z, y, w)| {
                                if w == 0.0 { 0.0 } else { f64::from(w * loss(&parameters, z, y)) }
                            })
                            .sum();
                    lane = Some(lane.map_or(sum as f32, |lane| lane + sum as f32));
                }
                if let Some(lane) = lane {
                    total = Some(total.map_or(lane, |total| total + lane));
                }
            }
            let slopes: Vec<f32> = (0..rows)
                .map(at)
                .map(|(z, y, w)| if w == 0.0 { 0.0 } else { g * w * slope(&parameters, z, y) })
                .collect();
            session.launch(&LOSS_TILES, Geometry::line(tiles as u32 + 1, 256), &parameters)?;
            session.launch(&LOSS_SUM, Geometry::line(1, 32), &parameters)?;
            session.launch(&LOSS_GRAD, Geometry::elements(rows as u64), &parameters)?;
            let got = session.download(parameters.sum, 1)?;
            session.compare(&format!("sum, {name}"), &got, &[total.unwrap_or(0.0)])?;
            let got = session.download(parameters.out.data, rows)?;
            session.compare(&format!("slopes, {name}"), &got, &slopes)?;
            session.end_case(&name)?;
        }
    }
    session.finish()
}

/// Compares the columns of a batch.
pub(super) fn assemblies(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("assemble", gpu)?;
    let mut random = Random(72);
    let (rows, most) = if size == Size::Small { (19, 24) } else { (8000, 8192) };
    let stride = most + 3;
    let values = random.floats(5 * stride, Values::Special);
    let mask: Vec<u8> = (0..most).map(|_| random.below(2) as u8).collect();
    let columns = [4u32, 0, 2];
    for (has_values, masked) in [(true, false), (true, true), (false, true), (false, false)] {
        let name = format!("values {has_values}, mask {masked}");
        let width = 5;
        let mut expected = vec![f32::from_bits(u32::MAX); most * width];
        for row in 0..most {
            for (col, &from) in columns.iter().enumerate() {
                let present = row < rows && (!masked || mask[row] == 1);
                let value = if has_values { values[from as usize * stride + row] } else { 1.5 };
                expected[row * width + col] = if present { value } else { 0.0 };
            }
        }
        let out = session.poisoned::<f32>(expected.len())?.address();
        let parameters = Assemble {
            values: if has_values { session.upload(&values)? } else { 0 },
            mask: if masked { session.upload(&mask)? } else { 0 },
            out: Rows { data: out, stride: width as u32, cols: columns.len() as u32 },
            rows: Count::at(session.upload(&[rows as u32])?, most as u32),
            columns: session.upload(&columns)?,
            value_stride: stride as u32,
            fill: 1.5,
        };
        session.launch(&ASSEMBLE, Geometry::elements((most * 3) as u64), &parameters)?;
        let got = session.download(out, expected.len())?;
        session.compare(&name, &got, &expected)?;
        session.end_case(&name)?;
    }
    session.finish()
}
