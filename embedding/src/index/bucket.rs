//! One cache line of keys.

/// Keys in a bucket: five of eight bytes with rows of four fill a line of 64 with four bytes to spare.
pub(super) const KEYS: usize = 5;

/// Five keys and their rows in one cache line.
///
/// The top `TAG` bits of a stored key are no part of it: where all keys of a slot are alike in them, they
/// can say something else about the key.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Bucket<const TAG: u32> {
    keys: [u64; KEYS],
    rows: [u32; KEYS],
    /// Bit `i` is set where entry `i` is in use. Every `u64` is a legal key, so none can say "empty".
    used: u8,
    /// Keys that belong here or before and were put into a later bucket because this one was full.
    /// Zero ends a probe. Stays at 255 once there: the bucket is then probed past until it is rebuilt.
    passed: u8,
}

const FULL: u8 = (1 << KEYS) - 1;

impl<const TAG: u32> Bucket<TAG> {
    pub(super) const EMPTY: Self = Self { keys: [0; KEYS], rows: [0; KEYS], used: 0, passed: 0 };

    /// The entry that holds `key`.
    #[inline(always)]
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        let mut hits = 0u8;
        for (i, &k) in self.keys.iter().enumerate() {
            hits |= u8::from((k ^ key) << TAG == 0) << i;
        }
        hits &= self.used;
        (hits != 0).then(|| hits.trailing_zeros() as usize)
    }

    #[inline(always)]
    pub(super) fn row(&self, entry: usize) -> u32 {
        self.rows[entry]
    }

    /// The stored key, tag included.
    pub(super) fn key(&self, entry: usize) -> u64 {
        self.keys[entry]
    }

    /// The stored key, tag included, and the row of an entry.
    pub(super) fn entry_mut(&mut self, entry: usize) -> (&mut u64, &mut u32) {
        (&mut self.keys[entry], &mut self.rows[entry])
    }

    /// Puts a key into a free entry; false where there is none.
    #[inline(always)]
    pub(super) fn put(&mut self, key: u64, row: u32) -> bool {
        if self.used == FULL {
            return false;
        }
        let entry = (!self.used).trailing_zeros() as usize;
        self.keys[entry] = key;
        self.rows[entry] = row;
        self.used |= 1 << entry;
        true
    }

    /// Frees an entry; returns its row.
    pub(super) fn take(&mut self, entry: usize) -> u32 {
        self.used &= !(1 << entry);
        self.rows[entry]
    }

    /// Whether a probe must go on to the next bucket.
    #[inline(always)]
    pub(super) fn is_passed(&self) -> bool {
        self.passed != 0
    }

    #[inline(always)]
    pub(super) fn pass(&mut self) {
        self.passed = self.passed.saturating_add(1);
    }

    /// Undoes one [`Bucket::pass`].
    pub(super) fn unpass(&mut self) {
        if self.passed != u8::MAX {
            self.passed -= 1;
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, u32)> {
        (0..KEYS)
            .filter(|entry| self.used & (1 << entry) != 0)
            .map(|entry| (self.keys[entry], self.rows[entry]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_one_cache_line() {
        assert_eq!(size_of::<Bucket<0>>(), 64);
        assert_eq!(align_of::<Bucket<12>>(), 64);
    }

    #[test]
    fn every_key_is_legal_and_an_empty_bucket_holds_none() {
        let mut bucket = Bucket::<0>::EMPTY;
        assert_eq!(bucket.find(0), None);
        assert!(bucket.put(0, 9));
        assert!(bucket.put(u64::MAX, 8));
        assert_eq!(bucket.find(0).map(|e| bucket.row(e)), Some(9));
        assert_eq!(bucket.take(0), 9);
        assert_eq!(bucket.find(0), None);
        assert_eq!(bucket.entries().collect::<Vec<_>>(), [(u64::MAX, 8)]);
    }
}
