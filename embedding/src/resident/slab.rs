//! The memory of a table's rows on a device, which grows.

use zillion_device::gpu::{GpuError, Memory};

use crate::error::{Error, Result};
use crate::resident::device::{Owned, ResidentOptions};

/// The largest number of places of a slab: the top bit of a place has another meaning.
const MOST_ROWS: usize = 1 << 31;

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
            .map_err(|e| describe(options, e, table, row_bytes, rows))?;
        Ok(Self { memory, row_bytes, rows })
    }

    /// Makes room for `rows` rows. If there is no room, allocates twice the memory, or what is
    /// needed if that is too much, and copies the rows. Returns whether the rows have moved.
    pub(super) fn reserve(
        &mut self,
        options: &ResidentOptions,
        table: &str,
        rows: usize,
    ) -> Result<bool> {
        if rows <= self.rows {
            return Ok(false);
        }
        let doubled = rows.max((2 * self.rows).min(MOST_ROWS));
        let grown = match Self::new(options, table, self.row_bytes, doubled) {
            Ok(grown) => grown,
            Err(_) => Self::new(options, table, self.row_bytes, rows)?,
        };
        options.gpu.copy(options.stream, grown.memory.memory(), self.memory.memory())?;
        // The old memory waits for the copy before it is freed.
        *self = grown;
        Ok(true)
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.address()
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Returns the memory of some rows.
    pub(super) fn part(&self, first: usize, rows: usize) -> Result<Memory, GpuError> {
        self.memory.memory().part(first * self.row_bytes, rows * self.row_bytes)
    }
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

/// Returns the error of rows that do not fit into the memory of the device.
fn describe(
    options: &ResidentOptions,
    error: GpuError,
    table: &str,
    row_bytes: usize,
    rows: usize,
) -> Error {
    let GpuError::OutOfMemory { .. } = error else { return error.into() };
    let free = options.gpu.free_bytes().unwrap_or(0);
    let reason = format!(
        "its rows need {} bytes of the memory of the GPU ({rows} rows of {row_bytes} bytes), and \
         {free} bytes are free; use a GPU with more memory, or train with `run.device = \"cpu\"`",
        rows * row_bytes
    );
    Error::mismatch(table, reason)
}
