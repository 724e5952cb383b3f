//! The lists of a tensor: numbers and texts, counted before they are read, and read from the bytes
//! of the message without a copy of it.
//!
//! A generated decoder takes up to 32 bytes of memory for one byte of a list, and does so before
//! anything can be counted. A list of numbers is packed into one field or has a field for each
//! number, and a message may mix both.

use super::scan::{self, Field, malformed};
use crate::error::Result;

/// The form of the values of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// Numbers of variable length.
    Varint,
    /// Numbers of four bytes.
    Four,
    /// Numbers of eight bytes.
    Eight,
    /// Texts of any length.
    Text,
}

/// A list: the fields of one number in the pieces of a message. Most messages come in one piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<'p, 'a> {
    /// The type of the message.
    pub(super) what: &'static str,
    pub(super) pieces: &'p [&'a [u8]],
    /// The number of the field.
    pub(super) number: u64,
    pub(super) coding: Coding,
}

/// Counts the values that a field adds to a list.
///
/// # Errors
/// Returns an error if the field does not have the form of the list.
pub(super) fn count(what: &'static str, coding: Coding, field: Field<'_>) -> Result<usize> {
    match (coding, field) {
        (Coding::Varint, Field::Number(_)) => Ok(1),
        (Coding::Varint, Field::Bytes(packed)) => {
            Ok(packed.iter().filter(|&&byte| byte < 0x80).count())
        }
        (Coding::Four, Field::Bytes(packed)) => Ok(packed.len() / 4),
        (Coding::Eight, Field::Bytes(packed)) => Ok(packed.len() / 8),
        (Coding::Four | Coding::Eight, Field::Fixed(_)) | (Coding::Text, Field::Bytes(_)) => Ok(1),
        _ => Err(malformed(what)),
    }
}

impl<'a> List<'_, 'a> {
    fn each(&self, mut each: impl FnMut(Field<'a>) -> Result<()>) -> Result<()> {
        for piece in self.pieces {
            for field in scan::fields(self.what, piece, usize::MAX) {
                let (number, field) = field?;
                if number == self.number {
                    each(field)?;
                }
            }
        }
        Ok(())
    }

    /// Counts the values.
    ///
    /// # Errors
    /// Returns an error if a field does not have the form of the list.
    pub(super) fn count(&self) -> Result<usize> {
        let mut all = 0;
        self.each(|field| {
            all += count(self.what, self.coding, field)?;
            Ok(())
        })?;
        Ok(all)
    }

    /// Reads the numbers. `read` makes a value of the bits of a number, and `count` is the number
    /// of values.
    ///
    /// # Errors
    /// Returns an error if a field does not have the form of the list.
    pub(super) fn numbers<T>(&self, count: usize, read: impl Fn(u64) -> T) -> Result<Vec<T>> {
        let mut values = Vec::with_capacity(count);
        self.each(|field| {
            match (self.coding, field) {
                (Coding::Varint, Field::Number(number)) => values.push(read(number)),
                (Coding::Varint, Field::Bytes(mut rest)) => {
                    while !rest.is_empty() {
                        let (number, after) =
                            scan::varint(rest).ok_or_else(|| malformed(self.what))?;
                        values.push(read(number));
                        rest = after;
                    }
                }
                (Coding::Four, Field::Bytes(bytes) | Field::Fixed(bytes)) => {
                    let (numbers, []) = bytes.as_chunks() else { return Err(malformed(self.what)) };
                    values.extend(numbers.iter().map(|&n| read(u32::from_le_bytes(n).into())));
                }
                (Coding::Eight, Field::Bytes(bytes) | Field::Fixed(bytes)) => {
                    let (numbers, []) = bytes.as_chunks() else { return Err(malformed(self.what)) };
                    values.extend(numbers.iter().map(|&n| read(u64::from_le_bytes(n))));
                }
                _ => return Err(malformed(self.what)),
            }
            Ok(())
        })?;
        Ok(values)
    }

    /// Calls `take` with the bytes of each text.
    ///
    /// # Errors
    /// Returns an error if a field does not have the form of the list, or if `take` returns one.
    pub(super) fn each_text(&self, mut take: impl FnMut(&'a [u8]) -> Result<()>) -> Result<()> {
        self.each(|field| match field {
            Field::Bytes(text) => take(text),
            _ => Err(malformed(self.what)),
        })
    }
}
