//! The changed keys of a table, by epoch, from which a delta is made without looking at every row.
//!
//! The lists hold keys and not row numbers, because rows move when memory is given back. The dirty
//! epoch of a row tells whether its key is listed already; a push reads the dirty epoch in any
//! case, so listing a key needs no lookup. Tables count snapshot generations (see
//! `snapshot::generations`): every epoch in this file is a generation.
//!
//! # Invariants
//! * A row whose dirty epoch is the current one is in the open list, unless the list of this epoch
//!   was given up.
//! * A key whose row was evicted and made again in one epoch may be in its list twice, because the
//!   new row does not know of the old one. Readers of lists sort them and take each key once.

mod set;
mod table;
pub(crate) mod tracking;

use std::collections::VecDeque;

use zillion_feature::FeatureKey;

/// The changes of one shard's part of a table.
#[derive(Debug)]
pub(crate) struct Changes {
    /// The current epoch, to which new changes belong.
    pub(crate) epoch: u32,
    /// Whether a rule changes every row in each step, so that a list would contain all keys.
    pub(crate) is_whole: bool,
    /// Whether the list of the current epoch was given up.
    pub(crate) is_given_up: bool,
    pub(crate) open: Changed,
    /// The lists of the past epochs, oldest first.
    pub(crate) sealed: VecDeque<(u32, Changed)>,
}

/// The changes of one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// The keys whose rows were written, created or evicted.
    Keys(Vec<u64>),
    /// A change of every row, without any eviction.
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
    /// Adds a key to the open list. Its row must have had an earlier dirty epoch until now.
    #[inline(always)]
    pub(crate) fn note(&mut self, key: FeatureKey) {
        match &mut self.open {
            _ if self.is_whole => self.open = Changed::Everything,
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

    /// Returns the epoch of the oldest sealed list.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.sealed.front().map(|(epoch, _)| *epoch)
    }

    /// Seals the list of the current epoch and begins epoch `next`.
    pub(crate) fn seal(&mut self, next: u32) {
        let mut ended = std::mem::replace(&mut self.open, Changed::nothing());
        if let Changed::Keys(keys) = &mut ended {
            keys.shrink_to_fit();
        }
        self.sealed.push_back((self.epoch, ended));
        self.is_given_up = false;
        self.epoch = next;
    }

    /// Drops the oldest list and returns the epoch after whose end the other lists are complete:
    /// the epoch of the dropped list, or the current epoch if there was no sealed list and the open
    /// one is given up.
    pub(crate) fn drop_oldest(&mut self) -> u32 {
        if let Some((epoch, _)) = self.sealed.pop_front() {
            return epoch;
        }
        self.open = Changed::nothing();
        self.is_given_up = true;
        self.epoch
    }

    /// Returns the changes after the end of an epoch: the keys in ascending order, each once.
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
