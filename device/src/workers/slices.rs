//! Phases over slices, in which each index has mutable access to its own element or block of
//! elements.

use super::pool::Workers;

/// The address of a slice. The threads get its elements one by one.
struct Base<T>(*mut T);

// SAFETY: `Base` only carries an address to other threads; they make `&mut T` of distinct elements
// from it, which needs `T: Send`.
unsafe impl<T: Send> Sync for Base<T> {}

impl<T> Base<T> {
    /// Returns the address of the element `index`. If a closure calls this method, it captures the
    /// whole `Base`, which is `Sync`. Otherwise, it would capture only the pointer, which is not
    /// `Sync`.
    fn at(&self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}

impl Workers {
    /// Runs `body(i, &mut items[i])` for every item, for example for shards, tiles or lanes, like
    /// [`Workers::for_each`].
    ///
    /// # Panics
    ///
    /// Panics for the same reasons as [`Workers::for_each`].
    pub fn for_each_mut<T: Send>(&self, items: &mut [T], body: impl Fn(usize, &mut T) + Sync) {
        let count = items.len();
        let base = Base(items.as_mut_ptr());
        self.for_each(count, |index| {
            // SAFETY: `index < count`, so the address is inside `items`, which this call borrows
            // mutably until the phase has ended. `for_each` runs every index at most once, so no
            // two of these references are to one element, and `items` itself is not used in
            // between.
            body(index, unsafe { &mut *base.at(index) });
        });
    }

    /// Divides `items` into blocks of `length` items (the last may be shorter), and runs
    /// `body(i, block)` for each block.
    ///
    /// # Panics
    ///
    /// Panics for the same reasons as [`Workers::for_each`], and if `length` is zero.
    pub fn for_each_block<T: Send>(
        &self,
        items: &mut [T],
        length: usize,
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(length > 0, "blocks of length zero");
        let total = items.len();
        let base = Base(items.as_mut_ptr());
        self.for_each(total.div_ceil(length), |index| {
            let start = index * length;
            let length = length.min(total - start);
            // SAFETY: `start < total` since `index` is below the rounded-up quotient, and `length`
            // ends at or before `total`; blocks of distinct indices do not overlap, and each index
            // runs at most once. The borrow of `items` lasts until the phase has ended.
            body(index, unsafe { std::slice::from_raw_parts_mut(base.at(start), length) });
        });
    }

    /// Divides `items` at `offsets`, which must ascend from 0 to `items.len()`. Runs `body(i,
    /// part)` for the part between `offsets[i]` and `offsets[i + 1]`. For example, shards fill
    /// disjoint ranges of one buffer.
    ///
    /// # Panics
    ///
    /// Panics for the same reasons as [`Workers::for_each`], and if `offsets` does not ascend or
    /// does not cover all of `items`.
    pub fn for_each_part<T: Send>(
        &self,
        items: &mut [T],
        offsets: &[usize],
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(offsets.is_sorted(), "offsets must ascend");
        assert_eq!(offsets.first(), Some(&0), "offsets must begin at 0");
        assert_eq!(offsets.last(), Some(&items.len()), "offsets must end at the length");
        let base = Base(items.as_mut_ptr());
        self.for_each(offsets.len() - 1, |index| {
            let (start, end) = (offsets[index], offsets[index + 1]);
            // SAFETY: offsets ascend from 0 to the length, so the part is inside `items`, and parts
            // of distinct indices do not overlap; each index runs at most once. `offsets` is
            // borrowed shared for the whole call and cannot change after the check. The borrow of
            // `items` lasts until the phase has ended.
            body(index, unsafe { std::slice::from_raw_parts_mut(base.at(start), end - start) });
        });
    }

    /// Runs `body(i)` for every `i` below `count`. Returns the results in the order of the indices.
    ///
    /// # Panics
    ///
    /// Panics for the same reasons as [`Workers::for_each`].
    pub fn map<R: Send>(&self, count: usize, body: impl Fn(usize) -> R + Sync) -> Vec<R> {
        let mut results: Vec<Option<R>> = Vec::new();
        results.resize_with(count, || None);
        self.for_each_mut(&mut results, |index, slot| *slot = Some(body(index)));
        results.into_iter().map(|slot| slot.expect("a phase runs every index")).collect()
    }
}
