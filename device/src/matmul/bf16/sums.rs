//! The sums of a block of a product, and the epilogue that writes them.

use super::super::Epilogue;
use super::pack::LINES;

/// The sums of a block: four tiles of sixteen by sixteen, row after row. The second tile has the
/// columns behind those of the first one.
#[repr(C, align(64))]
pub(super) struct Sums(pub(super) [[f32; LINES]; 4 * LINES]);

impl Sums {
    pub(super) const ZERO: Self = Self([[0.0; LINES]; 4 * LINES]);

    #[cfg(target_arch = "x86_64")]
    pub(super) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }

    /// Writes the rows and columns of a block after the epilogue.
    #[inline(always)]
    pub(super) fn write(
        &self,
        (rows, columns): (usize, usize),
        epilogue: Epilogue<'_>,
        out: &mut [f32],
        out_row: usize,
    ) {
        for row in 0..rows {
            let out = &mut out[row * out_row..][..columns];
            for (tile, out) in out.chunks_mut(LINES).enumerate() {
                let line = &self.0[(row / LINES * 2 + tile) * LINES + row % LINES];
                let bias = epilogue.bias.map(|bias| &bias[tile * LINES..][..out.len()]);
                // The loops of a whole line have a known length.
                match (
                    <&mut [f32; LINES]>::try_from(&mut *out),
                    bias.map(<&[f32; LINES]>::try_from),
                ) {
                    (Ok(out), None) => write_line(line, None, epilogue, out),
                    (Ok(out), Some(Ok(bias))) => write_line(line, Some(bias), epilogue, out),
                    _ => write_line(line, bias, epilogue, out),
                }
            }
        }
    }
}

/// Writes a part of a row.
#[inline(always)]
fn write_line(sums: &[f32; LINES], bias: Option<&[f32]>, epilogue: Epilogue<'_>, out: &mut [f32]) {
    let mut values = *sums;
    if epilogue.accumulate {
        for (value, old) in values.iter_mut().zip(&*out) {
            *value += old;
        }
    }
    if let Some(bias) = bias {
        for (value, bias) in values.iter_mut().zip(bias) {
            *value += bias;
        }
    }
    if epilogue.relu {
        for value in &mut values {
            *value = if *value < 0.0 { 0.0 } else { *value };
        }
    }
    out.copy_from_slice(&values[..out.len()]);
}
