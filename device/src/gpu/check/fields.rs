//! The lookup of fields in one launch against the definitions of its parts
//! (`nn/src/ops/gather.rs`, `interaction.rs`, `reduce.rs`), by bits.

use super::super::kernels::{Count, FIELD_LOOKUP, FieldLookup};
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
