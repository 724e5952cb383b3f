//! The bound of what a message in Arrow IPC may cost.
//!
//! A few bytes of Arrow can stand for many values: nulls without a buffer, compressed zeros, views
//! and dictionary entries that are used again and again. So the costs are spent from a budget
//! before they arise.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, downcast_dictionary_array};
use arrow_buffer::ArrowNativeType;
use arrow_ipc::RecordBatch;
use arrow_schema::DataType;

use crate::arrays::visit_texts;

/// The number of bytes of memory that each byte of a message may cost. A byte of a column of
/// booleans costs 64 bytes: it has 8 values.
const EXPANSION: u64 = 128;
/// The number of bytes as which a shorter message counts.
const SMALL: u64 = 512;
/// The number of bytes that a decoded value costs at least.
const VALUE: u64 = 8;

/// The number of bytes that the decoding of a message may still cost.
pub(super) struct Budget {
    all: u64,
    left: u64,
    /// The cost of all dictionaries so far.
    dictionaries: u64,
}

impl Budget {
    /// Returns the budget of a message of `bytes` bytes.
    pub(super) fn of(bytes: usize) -> Self {
        let all = EXPANSION.saturating_mul(SMALL.max(bytes as u64));
        Self { all, left: all, dictionaries: 0 }
    }

    /// Spends a cost.
    ///
    /// # Errors
    /// Returns the problem if less is left.
    pub(super) fn spend(&mut self, bytes: u64) -> Result<(), String> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            format!(
                "its contents need more than {} bytes of memory, which is too much for its size: write it without compression",
                self.all
            )
        })?;
        Ok(())
    }

    /// Spends the cost of a record batch with the given body: its values, and its buffers after
    /// their decompression.
    ///
    /// # Errors
    /// Returns the problem if the batch claims too much.
    pub(super) fn spend_batch(
        &mut self,
        batch: RecordBatch<'_>,
        body: &[u8],
    ) -> Result<(), String> {
        let lengths = batch.nodes().into_iter().flatten().map(|node| node.length());
        for length in lengths.chain([batch.length()]) {
            let length = u64::try_from(length).map_err(|_| "it has a negative length")?;
            self.spend(length.saturating_mul(VALUE))?;
        }
        for buffer in batch.buffers().into_iter().flatten() {
            let start = usize::try_from(buffer.offset()).unwrap_or(usize::MAX);
            let claimed = body.get(start..).and_then(<[u8]>::first_chunk::<8>);
            let size = match claimed {
                Some(size) if batch.compression().is_some() && buffer.length() > 0 => {
                    // A negative size says that the buffer is not compressed.
                    i64::from_le_bytes(*size).max(buffer.length())
                }
                _ => buffer.length(),
            };
            self.spend(u64::try_from(size).unwrap_or(u64::MAX))?;
        }
        Ok(())
    }

    /// Spends the cost of a dictionary. One that extends an earlier one copies it.
    ///
    /// # Errors
    /// Returns the problem if the dictionary claims too much.
    pub(super) fn spend_dictionary(
        &mut self,
        batch: RecordBatch<'_>,
        body: &[u8],
        extends: bool,
    ) -> Result<(), String> {
        let before = self.left;
        self.spend_batch(batch, body)?;
        self.dictionaries += before - self.left;
        if extends { self.spend(self.dictionaries) } else { Ok(()) }
    }

    /// Spends what the values of a decoded array cost beyond their number: texts to which several
    /// values refer. If `keeps_dictionary` is true, each entry of a dictionary of texts is read
    /// once, and otherwise once for each value.
    ///
    /// # Errors
    /// Returns the problem if the texts are too long together, or if a dictionary has entries other
    /// than texts and numbers.
    pub(super) fn spend_array(
        &mut self,
        array: &ArrayRef,
        keeps_dictionary: bool,
    ) -> Result<(), String> {
        match array.data_type() {
            DataType::Utf8View => self.spend(sum(array.as_string_view().lengths())),
            DataType::BinaryView => self.spend(sum(array.as_binary_view().lengths())),
            DataType::List(_) => self.spend_array(array.as_list::<i32>().values(), false),
            DataType::LargeList(_) => self.spend_array(array.as_list::<i64>().values(), false),
            DataType::FixedSizeList(..) => {
                self.spend_array(array.as_fixed_size_list().values(), false)
            }
            DataType::Dictionary(_, entries)
                if entries.is_nested() || matches!(**entries, DataType::Dictionary(..)) =>
            {
                Err(format!("a dictionary of {entries} is not supported"))
            }
            DataType::Dictionary(..) => self.spend_dictionary_array(array, keeps_dictionary),
            _ => Ok(()),
        }
    }

    fn spend_dictionary_array(
        &mut self,
        array: &ArrayRef,
        keeps_dictionary: bool,
    ) -> Result<(), String> {
        let entries = array.as_any_dictionary().values();
        self.spend((entries.len() as u64).saturating_mul(VALUE))?;
        let mut lengths: Vec<u64> = Vec::with_capacity(entries.len());
        visit_texts(entries, |text| lengths.push(text.map_or(0, |text| text.len() as u64)));
        self.spend(sum(lengths.iter().copied()))?;
        if keeps_dictionary || lengths.is_empty() {
            return Ok(());
        }
        let length = |entry: usize| lengths.get(entry).copied().unwrap_or_default();
        downcast_dictionary_array!(
            array => {
                let entries = array.keys().iter().flatten();
                self.spend(sum(entries.map(|entry| length(entry.as_usize()))))
            },
            other => Err(format!("a column of type {other} is not a dictionary"))
        )
    }
}

/// Returns the sum of numbers, or the largest number if the sum is larger.
fn sum<N: Into<u64>>(numbers: impl Iterator<Item = N>) -> u64 {
    numbers.fold(0, |sum, number| sum.saturating_add(number.into()))
}
