//! The entry of a key in the index: one 32-bit word. Only this file defines the meaning of the
//! word.
//!
//! | word | meaning |
//! |---|---|
//! | below 2³¹ | the number of a full row in memory |
//! | from 2³¹ to 2³² - 3 | by the kind of table: a full row, a narrow row or a record on disk |
//! | 2³² - 2 | the search is not finished: the key must be looked up again |
//! | 2³² - 1 | the key has no row |
//!
//! # Invariants
//! * A table never has both narrow rows and records on disk, so one bit is enough to mark either.
//!   Only a table with narrow rows calls [`Entry::narrow_row`], and only a table that spills calls
//!   [`Entry::record`].

/// The entry of a key in one shard's part of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct Entry(u32);

/// The bit that marks a narrow row, or a record on disk.
const TAG: u32 = 1 << 31;
/// The lowest word that stands for neither a row nor a record.
const END: u32 = u32::MAX - 1;

impl Entry {
    /// The entry of a key without a row.
    pub(crate) const NONE: Self = Self(u32::MAX);
    /// The entry of a key whose search is not finished: the key must be looked up again.
    pub(crate) const UNDECIDED: Self = Self(END);
    /// The largest number of records on disk that a shard can have.
    pub(crate) const MOST_RECORDS: u32 = END - TAG;

    /// Returns the entry of a full row in memory.
    #[inline(always)]
    pub(crate) fn full(row: u32) -> Self {
        Self(row)
    }

    /// Returns the entry of a narrow row.
    #[inline(always)]
    pub(crate) fn narrow(row: u32) -> Self {
        Self(TAG | row)
    }

    /// Returns the entry of a record on disk.
    #[inline(always)]
    pub(crate) fn cold(record: u32) -> Self {
        Self(TAG | record)
    }

    /// Returns whether a full row can have this number. `is_tagged` says whether the entries of the
    /// table use the tag bit.
    #[inline(always)]
    pub(crate) fn fits_full(row: u32, is_tagged: bool) -> bool {
        row < END && !(is_tagged && row & TAG != 0)
    }

    /// Returns whether a narrow row can have this number.
    #[inline(always)]
    pub(crate) fn fits_narrow(row: u32) -> bool {
        row < Self::MOST_RECORDS
    }

    /// Returns the word of the index that stands for this entry.
    #[inline(always)]
    pub(crate) fn word(self) -> u32 {
        self.0
    }

    /// Returns the entry that a word of the index stands for.
    #[inline(always)]
    pub(crate) fn from_word(word: u32) -> Self {
        Self(word)
    }

    /// Returns whether the key has no row.
    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Returns the number of a row in the full slabs. The entry must belong to a full row in
    /// memory.
    #[inline(always)]
    pub(crate) fn row(self) -> u32 {
        self.0
    }

    /// Returns whether the entry belongs to a narrow row. The table must have narrow rows.
    #[inline(always)]
    pub(crate) fn is_narrow(self) -> bool {
        self.is_tagged()
    }

    /// Returns the number of a narrow row in its slabs, or `None` if the entry does not belong to a
    /// narrow row. The table must have narrow rows.
    #[inline(always)]
    pub(crate) fn narrow_row(self) -> Option<u32> {
        self.is_tagged().then_some(self.0 & !TAG)
    }

    /// Returns whether the entry belongs to a record on disk. The table must spill.
    #[inline(always)]
    pub(crate) fn is_cold(self) -> bool {
        self.is_tagged()
    }

    /// Returns the number of a record on disk, or `None` if the entry does not belong to a record.
    /// The table must spill.
    #[inline(always)]
    pub(crate) fn record(self) -> Option<u32> {
        self.is_tagged().then_some(self.0 & !TAG)
    }

    #[inline(always)]
    fn is_tagged(self) -> bool {
        self.0 & TAG != 0 && self.0 < END
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_entry_is_told_from_the_others() {
        for number in [0, 1, TAG - 3] {
            assert_eq!(Entry::full(number).row(), number);
            assert!(!Entry::full(number).is_narrow() && !Entry::full(number).is_cold());
            assert_eq!(Entry::narrow(number).narrow_row(), Some(number));
            assert_eq!(Entry::cold(number).record(), Some(number));
            assert!(Entry::fits_narrow(number) && Entry::fits_full(number, true));
        }
        for word in [Entry::NONE, Entry::UNDECIDED] {
            assert_eq!((word.narrow_row(), word.record()), (None, None));
        }
        assert!(Entry::NONE.is_none() && !Entry::UNDECIDED.is_none());
        assert!(!Entry::fits_narrow(TAG - 2) && !Entry::fits_full(TAG, true));
        assert!(Entry::fits_full(TAG, false) && !Entry::fits_full(END, false));
        assert_eq!(Entry::from_word(Entry::narrow(7).word()), Entry::narrow(7));
    }
}
