//! Blocks of a product by the tiles of AMX.
//!
//! The tiles are configured when a product begins and released at its end. So no thread keeps the
//! state of tiles between products, which would make its context switches slower.

use std::arch::asm;
use std::marker::PhantomData;

use super::pack::Line;
use super::sums::Sums;

/// The configuration of the tiles, in the layout of the instruction `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Eight configured tiles of sixteen rows of 64 bytes on this thread. They are released at the end.
pub(super) struct Tiles(PhantomData<*const ()>);

impl Tiles {
    /// Configures the tiles of this thread.
    ///
    /// # Safety
    ///
    /// The machine must have AMX, and the process must be allowed to use it.
    pub(super) unsafe fn new() -> Self {
        let mut configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        configuration.row_bytes[..8].fill(64);
        configuration.rows[..8].fill(16);
        // SAFETY: the instruction is there by the caller's promise. It reads the 64 bytes of the
        // configuration, which has the layout of the first palette, and sets the tiles to zero. No
        // compiled code of this program keeps values in tiles.
        unsafe {
            asm!(
                "ldtilecfg [{}]",
                in(reg) &raw const configuration,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags, readonly),
            );
        }
        Self(PhantomData)
    }

    /// Computes the sums of 32 rows and 32 columns over `blocks` blocks of the inner dimension.
    ///
    /// # Safety
    ///
    /// `left` and `right` must point to two tiles of sixteen lines for each block.
    pub(super) unsafe fn two(
        &self,
        blocks: usize,
        left: *const Line,
        right: *const Line,
        sums: &mut Sums,
    ) {
        // SAFETY: `self` shows that the tiles are configured. In each of the `blocks` rounds, the
        // loads read two tiles of 1,024 bytes each from `left` and from `right`, which the caller
        // promises, and the pointers then move by these bytes. The stores write the four tiles of
        // 1,024 bytes that `Sums` has. Without a block, the loop is passed over.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "test {blocks}, {blocks}",
                "jz 3f",
                "2:",
                "tileloadd tmm6, [{right} + {stride}*1]",
                "tileloadd tmm4, [{left} + {stride}*1]",
                "tileloadd tmm7, [{right} + {stride}*1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{left} + {stride}*1 + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {left}, 2048",
                "add {right}, 2048",
                "dec {blocks}",
                "jnz 2b",
                "3:",
                "tilestored [{sums} + {stride}*1], tmm0",
                "tilestored [{sums} + {stride}*1 + 1024], tmm1",
                "tilestored [{sums} + {stride}*1 + 2048], tmm2",
                "tilestored [{sums} + {stride}*1 + 3072], tmm3",
                blocks = inout(reg) blocks => _,
                left = inout(reg) left => _,
                right = inout(reg) right => _,
                sums = in(reg) sums.as_mut_ptr(),
                stride = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// Computes the sums of 32 rows and 16 columns over `blocks` blocks of the inner dimension.
    /// The other columns of `sums` keep their contents.
    ///
    /// # Safety
    ///
    /// For each block, `left` must point to two tiles of sixteen lines and `right` to one.
    pub(super) unsafe fn one(
        &self,
        blocks: usize,
        left: *const Line,
        right: *const Line,
        sums: &mut Sums,
    ) {
        // SAFETY: as in `two`, with one tile of 1,024 bytes from `right` in each round, and stores
        // to the first and the third tile of `Sums`.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm2",
                "test {blocks}, {blocks}",
                "jz 3f",
                "2:",
                "tileloadd tmm6, [{right} + {stride}*1]",
                "tileloadd tmm4, [{left} + {stride}*1]",
                "tileloadd tmm5, [{left} + {stride}*1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "add {left}, 2048",
                "add {right}, 1024",
                "dec {blocks}",
                "jnz 2b",
                "3:",
                "tilestored [{sums} + {stride}*1], tmm0",
                "tilestored [{sums} + {stride}*1 + 2048], tmm2",
                blocks = inout(reg) blocks => _,
                left = inout(reg) left => _,
                right = inout(reg) right => _,
                sums = in(reg) sums.as_mut_ptr(),
                stride = in(reg) 64usize,
                out("tmm0") _, out("tmm2") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: `self` shows that the machine has tiles. They contain nothing that is needed.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem, preserves_flags),
            );
        }
    }
}
