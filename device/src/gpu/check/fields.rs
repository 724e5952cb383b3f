//! The lookup of fields in one launch against the definitions of its parts
//! (`nn/src/ops/gather.rs`, `interaction.rs`, `reduce.rs`), and the copies of weights, by bits.

use super::super::kernels::{
    COPY_WEIGHTS, CopyWeights, Count, FIELD_LOOKUP, FieldLookup, WeightCopy,
};
use super::super::{Gpu, GpuError};
use super::session::{Random, Session, Values};
use super::{Outcome, Size};
use crate::simd::{dot, sum};

/// Returns the interaction of the vectors of a row.
fn interaction(vectors: &[f32], dim: usize) -> f32 {
    let mut totals = [0.0f32; 16];
    for k in 0..dim {
        let (mut sum, mut squares) = (0.0f32, 0.0f32);
        for v in vectors.chunks(dim).map(|vector| vector[k]) {
            sum += v;
            squares += v * v;
        }
        totals[k % 16] += sum * sum - squares;
    }
    0.5 * sum(&totals)
}

/// Returns a float as bf16, with one NaN.
fn narrowed(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() { 0x7fc0 } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}

/// Compares all results, with and without the copies of type bf16.
pub(super) fn lookups(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("field_lookup", gpu)?;
    let mut random = Random(131);
    // Rows, fields, floats of a vector, numbers.
    let shapes: &[[usize; 4]] = match size {
        Size::Small => &[[37, 26, 16, 13], [20, 3, 10, 0], [9, 40, 33, 21], [18, 16, 1, 16]],
        Size::Full => &[[8192, 26, 16, 13], [65_536, 26, 16, 13], [3000, 39, 128, 5]],
    };
    for (index, &[rows, fields, dim, numbers]) in shapes.iter().enumerate() {
        let name = format!("{rows} rows of {fields} fields of {dim} floats, {numbers} numbers");
        let (unique, table_rows, table_stride) = (rows + 3, 2 * rows + 5, dim + 2);
        let (value_stride, out_stride) = (rows + 1, fields * dim + numbers + index % 4);
        let kind = Values::of_case(index);
        let table = random.floats(table_rows * table_stride, kind);
        let of_numbers = random.floats(numbers * value_stride, kind);
        let weights = random.floats(numbers, Values::Plain);
        let slots: Vec<u32> = (0..unique).map(|_| random.below(table_rows) as u32).collect();
        let inverse: Vec<u32> =
            (0..fields * value_stride).map(|_| random.below(unique) as u32).collect();
        let mut expected = vec![0.0; rows * out_stride];
        let mut parts = [(); 3].map(|()| vec![0.0; rows]);
        for (row, out) in expected.chunks_mut(out_stride).enumerate() {
            let mut linear = Vec::new();
            for (field, to) in out[..fields * dim].chunks_mut(dim).enumerate() {
                let slot = slots[inverse[field * value_stride + row] as usize] as usize;
                let from = &table[slot * table_stride..][..table_stride];
                to.copy_from_slice(&from[..dim]);
                linear.push(from[dim]);
            }
            let to = &mut out[fields * dim..][..numbers];
            for (i, to) in to.iter_mut().enumerate() {
                *to = of_numbers[i * value_stride + row];
            }
            parts[2][row] = dot(to, &weights);
            parts[0][row] = interaction(&out[..fields * dim], dim);
            parts[1][row] = sum(&linear);
        }
        for is_narrow in [false, true] {
            let out = session.poisoned::<f32>(expected.len())?.address();
            let halves = session.poisoned::<u16>(expected.len())?.address();
            let at: Vec<u64> = (0..3)
                .map(|_| Ok(session.poisoned::<f32>(rows)?.address()))
                .collect::<Result<_, GpuError>>()?;
            let parameters = FieldLookup {
                table: session.upload(&table)?,
                slots: session.upload(&slots)?,
                inverse: session.upload(&inverse)?,
                numbers: session.upload(&of_numbers)?,
                weights: session.upload(&weights)?,
                out,
                narrow: if is_narrow { halves } else { 0 },
                interaction: at[0],
                linear: at[1],
                of_numbers: at[2],
                rows: Count::at(session.upload(&[rows as u32])?, rows as u32 + 20),
                fields: fields as u32,
                dim: dim as u32,
                number_count: numbers as u32,
                table_stride: table_stride as u32,
                out_stride: out_stride as u32,
                value_stride: value_stride as u32,
            };
            session.launch(&FIELD_LOOKUP, parameters.geometry(), &parameters)?;
            let got = session.download(out, expected.len())?;
            session.compare(&name, &got, &expected)?;
            for (number, (&at, expected)) in at.iter().zip(&parts).enumerate() {
                let got = session.download(at, rows)?;
                session.compare(&format!("part {number}, {name}"), &got, expected)?;
            }
            if is_narrow {
                let got: Vec<u16> = session.download(halves, expected.len())?;
                let expected: Vec<u16> = expected.iter().map(|&x| narrowed(x)).collect();
                session.compare_words(&format!("bf16, {name}"), &got, &expected)?;
            }
            session.end_case(&name)?;
        }
    }
    session.finish()
}

/// Compares the transposes and the copies of type bf16 of several weights.
pub(super) fn weight_copies(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("copy_weights", gpu)?;
    let mut random = Random(132);
    let shapes: &[[usize; 2]] = match size {
        Size::Small => &[[33, 65], [1, 40], [32, 32], [70, 5]],
        Size::Full => &[[432, 400], [1, 400], [400, 400], [3344, 400]],
    };
    let (mut copies, mut expected) = (Vec::new(), Vec::new());
    for (index, &[rows, cols]) in shapes.iter().enumerate() {
        let (ldi, ldo) = (cols + 3, rows + 2);
        let weight = random.floats(rows * ldi, Values::Special);
        let mut transposed = vec![f32::from_bits(u32::MAX); cols * ldo];
        let mut halves = [vec![u16::MAX; rows * ldi], vec![u16::MAX; cols * ldo]];
        for row in 0..rows {
            for col in 0..cols {
                let w = weight[row * ldi + col];
                transposed[col * ldo + row] = w;
                halves[0][row * ldi + col] = narrowed(w);
                halves[1][col * ldo + row] = narrowed(w);
            }
        }
        // The last weight has no transpose of single precision, and the first one none of bf16.
        let at = [
            session.poisoned::<f32>(transposed.len())?.address(),
            session.poisoned::<u16>(halves[0].len())?.address(),
            session.poisoned::<u16>(halves[1].len())?.address(),
        ];
        copies.push(WeightCopy {
            weight: session.upload(&weight)?,
            transposed: if index + 1 == shapes.len() { 0 } else { at[0] },
            narrow: at[1],
            narrow_transposed: if index == 0 { 0 } else { at[2] },
            rows: rows as u32,
            cols: cols as u32,
            ldi: ldi as u32,
            ldo: ldo as u32,
            ..WeightCopy::default()
        });
        expected.push((at, transposed, halves));
    }
    let mut launch = CopyWeights::new(&mut copies);
    launch.copies = session.upload(&copies)?;
    session.launch(&COPY_WEIGHTS, launch.geometry(), &launch)?;
    for (index, (at, transposed, halves)) in expected.iter().enumerate() {
        let name = format!("weight {index}");
        if index + 1 < shapes.len() {
            let got = session.download(at[0], transposed.len())?;
            session.compare(&name, &got, transposed)?;
        }
        for (kind, (&at, halves)) in at[1..].iter().zip(halves).enumerate() {
            if index > 0 || kind == 0 {
                let got: Vec<u16> = session.download(at, halves.len())?;
                session.compare_words(&format!("bf16 {kind}, {name}"), &got, halves)?;
            }
        }
    }
    session.finish()
}
