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

/// Compares the copies of several weights in both orders and types, with columns of zeros.
pub(super) fn weight_copies(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("copy_weights", gpu)?;
    let mut random = Random(132);
    let shapes: &[[usize; 4]] = match size {
        Size::Small => &[[33, 65, 3, 7], [1, 40, 0, 0], [32, 32, 8, 1], [70, 5, 2, 3]],
        Size::Full => &[[429, 400, 3, 0], [1, 400, 0, 0], [400, 400, 0, 0], [3341, 397, 3, 3]],
    };
    let (mut copies, mut expected) = (Vec::new(), Vec::new());
    for (index, &[rows, cols, more_rows, more_cols]) in shapes.iter().enumerate() {
        let (row_end, col_end) = (rows + more_rows, cols + more_cols);
        let (ldi, lds, ldo) = (cols + 3, col_end + 1, row_end + 2);
        let weight = random.floats(rows * ldi, Values::Special);
        let none = f32::from_bits(u32::MAX);
        let mut wide = [vec![none; rows * lds], vec![none; cols * ldo]];
        let mut halves = [vec![u16::MAX; rows * lds], vec![u16::MAX; cols * ldo]];
        for row in 0..row_end {
            for col in 0..col_end {
                let w = if row < rows && col < cols { weight[row * ldi + col] } else { 0.0 };
                if row < rows {
                    (wide[0][row * lds + col], halves[0][row * lds + col]) = (w, narrowed(w));
                }
                if col < cols {
                    (wide[1][col * ldo + row], halves[1][col * ldo + row]) = (w, narrowed(w));
                }
            }
        }
        // Each weight has all copies but one.
        let mut at = [0; 4];
        for (number, at) in at.iter_mut().enumerate().filter(|&(number, _)| number != index % 4) {
            *at = match number {
                0 | 1 => session.poisoned::<f32>(wide[number].len())?.address(),
                _ => session.poisoned::<u16>(halves[number - 2].len())?.address(),
            };
        }
        copies.push(WeightCopy {
            weight: session.upload(&weight)?,
            straight: at[0],
            transposed: at[1],
            narrow: at[2],
            narrow_transposed: at[3],
            rows: rows as u32,
            cols: cols as u32,
            ldi: ldi as u32,
            lds: lds as u32,
            ldo: ldo as u32,
            col_end: col_end as u32,
            row_end: row_end as u32,
            first_tile: 0,
        });
        expected.push((at, wide, halves));
    }
    let mut launch = CopyWeights::new(&mut copies);
    launch.copies = session.upload(&copies)?;
    session.launch(&COPY_WEIGHTS, launch.geometry(), &launch)?;
    for (index, (at, wide, halves)) in expected.iter().enumerate() {
        let name = format!("weight {index}");
        for (number, &at) in at.iter().enumerate().filter(|&(_, &at)| at != 0) {
            if number < 2 {
                let got = session.download(at, wide[number].len())?;
                session.compare(&format!("copy {number}, {name}"), &got, &wide[number])?;
            } else {
                let expected = &halves[number - 2];
                let got: Vec<u16> = session.download(at, expected.len())?;
                session.compare_words(&format!("copy {number}, {name}"), &got, expected)?;
            }
        }
    }
    session.finish()
}
