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
                let bias = epilogue.bias.map(|bias| &bias[tile * LINES..]);
                match <&mut [f32; LINES]>::try_from(&mut *out) {
                    Ok(out) => write_line(line, bias, epilogue, out),
                    Err(_) => write_line(&line[..out.len()], bias, epilogue, out),
                }
            }
        }
    }
}

/// Writes a part of a row.
#[inline(always)]
fn write_line(sums: &[f32], bias: Option<&[f32]>, epilogue: Epilogue<'_>, out: &mut [f32]) {
    if epilogue.accumulate {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out += sum;
        }
    } else {
        out.copy_from_slice(&sums[..out.len()]);
    }
    if let Some(bias) = bias {
        for (out, bias) in out.iter_mut().zip(bias) {
            *out += bias;
        }
    }
    if epilogue.relu {
        for out in out {
            *out = if *out < 0.0 { 0.0 } else { *out };
        }
    }
}
