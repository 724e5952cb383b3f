//! The parameters of the index of a served layer, and of the copies of the rows that it finds.

use bytemuck::{Pod, Zeroable};

use super::{Count, Geometry};

parameters! {
    /// The index of a table of a layer, in device memory. It is filled once, and read from then on.
    LayerIndex (40) {
        /// The address of the buckets, of [`LayerIndex::BUCKET`] bytes each. They are zero before
        /// the first insert.
        buckets: u64,
        /// The address of the keys, [`LayerIndex::PLACES`] for each bucket.
        keys: u64,
        /// The address of the values, as many as there are places for keys: the row of the slab, or
        /// [`LayerIndex::ON_HOST`].
        values: u64,
        /// The address of the slab of rows.
        slab: u64,
        /// The number of buckets.
        bucket_count: u32,
        /// The distance of two rows of the slab in floats.
        stride: u32,
    }

    /// The parameters of `index_insert`: new keys, of which none occurs twice.
    IndexInsert (80) {
        /// The index that takes the keys.
        index: LayerIndex,
        /// The address of the keys.
        keys: u64,
        /// The address of the value of each key.
        values: u64,
        /// The address of the counter of the keys that found no place.
        lost: u64,
        /// The number of keys.
        count: Count,
    }

    /// The parameters of `index_find`: the rows of keys in the newest layer that has them.
    IndexFind (64) {
        /// The address of the [`LayerIndex`] of each layer, the newest first.
        layers: u64,
        /// The address of the keys.
        keys: u64,
        /// The address of the results: the address of each key's row, or 0 if the host has what the
        /// key reads.
        rows: u64,
        /// The address of the list of the keys whose result is 0, in any order.
        misses: u64,
        /// The address of the length of this list, which is 0 before the launch.
        miss_count: u64,
        /// The number of keys.
        count: Count,
        /// The number of layers.
        layer_count: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `copy_found`: the rows that `index_find` has found.
    CopyFound (40) {
        /// The address of the results of [`IndexFind`].
        rows: u64,
        /// The address of the rows of the result. A row that was not found is left as it is.
        out: u64,
        /// The number of rows.
        count: Count,
        /// The distance of two rows in floats, here and in the slabs.
        stride: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }

    /// The parameters of `put_rows`: rows that go to places of the result.
    PutRows (48) {
        /// The address of the rows, one behind the other.
        rows: u64,
        /// The address of the place of each row in the result.
        places: u64,
        /// The address of the rows of the result.
        out: u64,
        /// The number of rows that are put.
        count: Count,
        /// The distance of two rows in floats.
        stride: u32,
        /// Padding, which no kernel reads.
        unused: u32,
    }
}

impl LayerIndex {
    /// The number of bytes of a bucket, without its keys and values.
    pub const BUCKET: usize = 32;
    /// The number of places for keys of a bucket.
    pub const PLACES: usize = 24;
    /// The value of a key whose row the host has to look up.
    pub const ON_HOST: u32 = u32::MAX;

    /// Returns the number of buckets for `keys` keys, of which up to four fifths of the places are
    /// taken then.
    pub const fn buckets_for(keys: usize) -> usize {
        (keys * 5).div_ceil(4 * Self::PLACES) + 1
    }
}

impl IndexInsert {
    /// Returns the geometry of `index_insert`: a thread for each key.
    pub fn geometry(&self) -> Geometry {
        Geometry::elements(u64::from(self.count.most))
    }
}

impl IndexFind {
    /// Returns the geometry of `index_find`: a thread for each key.
    pub fn geometry(&self) -> Geometry {
        Geometry::elements(u64::from(self.count.most))
    }
}

/// Returns the number of threads that a row of the copies takes.
fn units(stride: u32) -> u64 {
    u64::from(if stride.is_multiple_of(4) { stride / 4 } else { stride })
}

impl CopyFound {
    /// Returns the geometry of `copy_found`.
    pub fn geometry(&self) -> Geometry {
        Geometry::elements(u64::from(self.count.most) * units(self.stride))
    }
}

impl PutRows {
    /// Returns the geometry of `put_rows`.
    pub fn geometry(&self) -> Geometry {
        Geometry::elements(u64::from(self.count.most) * units(self.stride))
    }
}
