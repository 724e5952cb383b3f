//! The copies and the zeros that products of the library need around the rows of a batch.

use super::super::kernels::{CLEAR_PADDING, ClearPadding, Count, PADDED_ROWS, PaddedRows, Rows};
use super::super::{Gpu, GpuError};
use super::chain::round_bf16;
use super::session::{Random, Session, Values};
use super::{Outcome, Size};

/// Compares copies of rows with zeros behind the columns and behind the rows.
pub(super) fn copies(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("padded_rows", gpu)?;
    let mut random = Random(51);
    // The rows of the batch and of the copy, the columns, the stride of both.
    let shapes: &[[usize; 5]] = match size {
        Size::Small => &[[5, 9, 13, 16, 16], [7, 7, 8, 9, 8], [0, 3, 5, 8, 8], [3, 4, 1, 1, 8]],
        Size::Full => {
            &[[8000, 8192, 429, 432, 432], [8192, 8192, 400, 400, 400], [65, 99, 7, 9, 8]]
        }
    };
    for &[rows, total, cols, stride, to] in shapes {
        for narrow in [false, true] {
            let name = format!("{rows} of {total} rows, {cols} columns, bf16: {narrow}");
            let x = random.floats((total * stride).max(1), Values::Special);
            let mut expected = vec![0.0; total * to];
            for row in 0..rows {
                let line = &x[row * stride..][..cols];
                expected[row * to..][..cols].copy_from_slice(line);
            }
            let out = match narrow {
                true => session.poisoned::<u16>(total * to)?.address(),
                false => session.poisoned::<f32>(total * to)?.address(),
            };
            let count = session.upload(&[rows as u32])?;
            let parameters = PaddedRows {
                x: Rows { data: session.upload(&x)?, stride: stride as u32, cols: cols as u32 },
                out,
                rows: Count::at(count, total as u32),
                total: total as u32,
                stride: to as u32,
                narrow: narrow.into(),
                unused: 0,
            };
            session.launch(&PADDED_ROWS, parameters.geometry(), &parameters)?;
            if narrow {
                let expected: Vec<u16> = expected.iter().map(|&x| round_bf16(x)).collect();
                let got: Vec<u16> = session.download(out, expected.len())?;
                session.compare_words(&name, &got, &expected)?;
            } else {
                let got = session.download(out, expected.len())?;
                session.compare(&name, &got, &expected)?;
            }
            session.end_case(&name)?;
        }
    }
    session.finish()
}

/// Compares zeros that are written around rows in place.
pub(super) fn clearings(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("clear_padding", gpu)?;
    let mut random = Random(52);
    // The rows of the batch and of the product, the columns of both, and the stride.
    let shapes: &[[usize; 5]] = match size {
        Size::Small => &[[5, 9, 13, 16, 20], [7, 7, 8, 8, 8], [0, 3, 5, 8, 8], [6, 6, 1, 4, 4]],
        Size::Full => &[[8000, 8192, 429, 432, 432], [8192, 8192, 429, 432, 432]],
    };
    for &[rows, total, cols, width, stride] in shapes {
        let name = format!("{rows} of {total} rows, {cols} of {width} columns");
        let x = random.floats(total * stride, Values::Special);
        let mut expected = x.clone();
        for (row, line) in expected.chunks_mut(stride).enumerate() {
            line[if row < rows { cols } else { 0 }..width].fill(0.0);
        }
        let (data, count) = (session.upload(&x)?, session.upload(&[rows as u32])?);
        let parameters = ClearPadding {
            x: Rows { data, stride: stride as u32, cols: cols as u32 },
            rows: Count::at(count, total as u32),
            total: total as u32,
            width: width as u32,
        };
        session.launch(&CLEAR_PADDING, parameters.geometry(), &parameters)?;
        let got = session.download(data, expected.len())?;
        session.compare(&name, &got, &expected)?;
        session.end_case(&name)?;
    }
    session.finish()
}
