//! The memory of a table's rows on a device, which grows.

use zillion_device::gpu::{GpuError, Memory};

use crate::error::{Error, Result};
use crate::resident::device::{Owned, ResidentOptions};
use crate::resident::room::{free_bytes, is_about_memory};

/// The largest number of places of a slab: the top bit of a place has another meaning.
const MOST_ROWS: usize = 1 << 31;

/// The parts by which a slab grows, as `1 / part` of its memory. The first one with enough memory
/// is taken.
const GROWTH: [usize; 5] = [1, 2, 4, 8, 16];

/// The slab of a table.
#[derive(Debug)]
pub(super) struct DeviceSlab {
    memory: Owned,
    row_bytes: usize,
    /// The number of rows for which there is memory.
    rows: usize,
}

impl DeviceSlab {
    /// Allocates memory for `rows` rows.
    pub(super) fn new(
        options: &ResidentOptions,
        table: &str,
        row_bytes: usize,
        rows: usize,
    ) -> Result<Self> {
        check_rows(table, rows)?;
        let memory = Owned::new(options, rows * row_bytes)
            .map_err(|error| describe(options, error, table, (rows, row_bytes)))?;
        Ok(Self { memory, row_bytes, rows })
    }

    /// Returns whether there is memory for `rows` rows.
    pub(super) fn holds(&self, rows: usize) -> bool {
        rows <= self.rows
    }

    /// Makes room for `rows` rows, which are more than there is memory for, and copies the present
    /// rows. Takes up to twice the memory, and at least a sixteenth more, because a slab that grew
    /// by less would be copied in almost every step. At least `kept` bytes stay free when the old
    /// memory is gone.
    ///
    /// # Errors
    /// Returns an error if there is no memory for that.
    pub(super) fn grow(
        &mut self,
        options: &ResidentOptions,
        table: &str,
        rows: usize,
        kept: u64,
    ) -> Result<()> {
        let size = |part: usize| rows.max((self.rows + self.rows / part).min(MOST_ROWS));
        let mut grown = Err(no_room(options, table, (rows, self.row_bytes), kept));
        for part in GROWTH {
            let bytes = (size(part) * self.row_bytes) as u64;
            let free = free_bytes(options)?;
            if bytes > free || free - bytes + (self.bytes() as u64) < kept {
                continue;
            }
            grown = Self::new(options, table, self.row_bytes, size(part));
            if !grown.as_ref().is_err_and(is_about_memory) {
                break;
            }
        }
        let grown = grown?;
        options.gpu.copy(options.stream, grown.memory.memory(), self.memory.memory())?;
        // The old memory waits for the copy before it is freed.
        *self = grown;
        Ok(())
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.address()
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Returns the number of rows for which there is memory, and the bytes of each.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.rows, self.row_bytes)
    }

    /// Returns the memory of some rows.
    pub(super) fn part(&self, first: usize, rows: usize) -> Result<Memory, GpuError> {
        self.memory.memory().part(first * self.row_bytes, rows * self.row_bytes)
    }
}

/// Returns the error of an allocation for rows.
fn describe(
    options: &ResidentOptions,
    error: GpuError,
    table: &str,
    rows: (usize, usize),
) -> Error {
    let GpuError::OutOfMemory { .. } = error else { return error.into() };
    no_room(options, table, rows, 0)
}

fn check_rows(table: &str, rows: usize) -> Result<()> {
    if rows <= MOST_ROWS {
        return Ok(());
    }
    let reason = format!(
        "{rows} rows are too many for a GPU, which holds {MOST_ROWS} rows of a table; train with \
         `run.device = \"cpu\"`"
    );
    Err(Error::mismatch(table, reason))
}

/// Returns the error of rows that do not fit into the memory of the device, of which `kept` bytes
/// must stay free.
pub(super) fn no_room(
    options: &ResidentOptions,
    table: &str,
    (rows, row_bytes): (usize, usize),
    kept: u64,
) -> Error {
    let free = free_bytes(options).unwrap_or(0);
    let reason = format!(
        "its rows need {} bytes of the memory of the GPU ({rows} rows of {row_bytes} bytes), and \
         {free} bytes are free, of which {kept} must stay free for the batches; use a GPU with \
         more memory, or train with `run.device = \"cpu\"`",
        rows * row_bytes
    );
    Error::mismatch(table, reason)
}
