//! The lists of the changed keys of a table, one list for each epoch. A delta is made from these
//! lists without a pass over every row.
//!
//! The lists hold keys and not row numbers, because rows move when memory is given back. The dirty
//! epoch of a row tells whether its key is already in a list. A push reads the dirty epoch in any
//! case, so no further lookup is needed to list a key. Tables count snapshot generations (see
//! `snapshot::generations`), so every epoch in this file is a generation.
//!
//! # Invariants
//! * A row whose dirty epoch is the current epoch is in the open list, unless the open list was
//!   given up.
//! * If the row of a key is evicted and created again in one epoch, the list may have the key
//!   twice, because the new row does not show that the key is listed. Readers sort the lists and
//!   remove duplicates.

mod set;
mod table;
pub(crate) mod tracking;

use std::collections::VecDeque;

use zillion_feature::FeatureKey;

/// The lists of changed keys of one shard's part of a table.
#[derive(Debug)]
pub(crate) struct Changes {
    /// The current epoch, to which new changes belong.
    pub(crate) epoch: u32,
    /// Whether the list of the current epoch was given up because it became too long.
    pub(crate) is_given_up: bool,
    pub(crate) open: Changed,
    /// The lists of ended epochs, oldest first.
    pub(crate) sealed: VecDeque<(u32, Changed)>,
}

/// The changes of one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// The keys whose rows were written, created or evicted.
    Keys(Vec<u64>),
    /// All rows were changed and none was evicted.
    Everything,
}

impl Changed {
    pub(crate) fn nothing() -> Self {
        Self::Keys(Vec::new())
    }

    pub(crate) fn keys(&self) -> &[u64] {
        match self {
            Self::Keys(keys) => keys,
            Self::Everything => &[],
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.capacity() * size_of::<u64>(),
            Self::Everything => 0,
        }
    }
}

impl Changes {
    /// Adds a key to the open list, also in a table with a whole-table rule: which keys a delta has
    /// must not depend on the shards or servers that hold the other keys. The caller must not have
    /// marked its row with the current epoch before.
    #[inline(always)]
    pub(crate) fn note(&mut self, key: FeatureKey) {
        match &mut self.open {
            Changed::Keys(keys) if !self.is_given_up => keys.push(key.0),
            _ => {}
        }
    }

    /// Records that every row has changed.
    pub(crate) fn note_everything(&mut self) {
        self.open = Changed::Everything;
    }

    /// Returns the number of keys in all lists.
    pub(crate) fn listed(&self) -> u64 {
        let sealed = self.sealed.iter().map(|(_, changed)| changed.keys().len());
        (sealed.sum::<usize>() + self.open.keys().len()) as u64
    }

    /// Returns the bytes of all lists.
    pub(crate) fn bytes(&self) -> usize {
        let sealed = self.sealed.iter().map(|(_, changed)| changed.bytes());
        sealed.sum::<usize>()
            + self.open.bytes()
            + self.sealed.capacity() * size_of::<(u32, Changed)>()
    }

    /// Returns the epoch of the oldest sealed list, or `None` if no list is sealed.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.sealed.front().map(|(epoch, _)| *epoch)
    }

    /// Ends the current epoch: seals its list, and begins epoch `next`.
    pub(crate) fn seal(&mut self, next: u32) {
        let mut ended = std::mem::replace(&mut self.open, Changed::nothing());
        if let Changed::Keys(keys) = &mut ended {
            keys.shrink_to_fit();
        }
        self.sealed.push_back((self.epoch, ended));
        self.is_given_up = false;
        self.epoch = next;
    }

    /// Drops the oldest list, and returns its epoch. The other lists are complete after the end of
    /// this epoch. If no list was sealed, gives up the open list and returns the current epoch.
    pub(crate) fn drop_oldest(&mut self) -> u32 {
        if let Some((epoch, _)) = self.sealed.pop_front() {
            return epoch;
        }
        self.open = Changed::nothing();
        self.is_given_up = true;
        self.epoch
    }

    /// Returns the changes after the end of an epoch, with the keys in ascending order and without
    /// duplicates.
    pub(crate) fn since(&self, epoch: u32) -> Changed {
        let sealed = self.sealed.iter().filter(|(e, _)| *e > epoch).map(|(_, changed)| changed);
        let lists = || sealed.clone().chain([&self.open]);
        if lists().any(|changed| *changed == Changed::Everything) {
            return Changed::Everything;
        }
        let mut keys = Vec::with_capacity(lists().map(|changed| changed.keys().len()).sum());
        lists().for_each(|changed| keys.extend_from_slice(changed.keys()));
        keys.sort_unstable();
        keys.dedup();
        Changed::Keys(keys)
    }
}
