//! Numbered objects in a tree of folders: versions, and the moves of a pointer.
//!
//! The name is `<folder>/<number / 10⁶>/<number / 10³ mod 10³>/<number>.json`, with leading zeros.
//! A folder holds at most a thousand names, so three short listings find the last of a hundred
//! thousand objects. Numbers are assigned without gaps, by create-if-absent.

use bytes::Bytes;
use zillion_store::{Error as StoreError, Store};

use crate::error::Result;

const FAN: u64 = 1000;

/// A sequence of numbered objects in nested folders below `folder`.
#[derive(Clone, Debug)]
pub(crate) struct Numbered {
    store: Store,
    folder: String,
}

impl Numbered {
    pub(crate) fn new(store: Store, folder: String) -> Self {
        Self { store, folder }
    }

    /// Returns the name of the object with this number.
    pub(crate) fn name(&self, number: u64) -> String {
        let (high, middle) = (number / (FAN * FAN), number / FAN % FAN);
        format!("{}/{high:014}/{middle:03}/{number:020}.json", self.folder)
    }

    /// Returns the largest number in use, or `None` if the sequence is empty.
    pub(crate) fn last(&self) -> Result<Option<u64>> {
        let Some(high) = self.store.list(&self.folder)?.folders.pop() else { return Ok(None) };
        let high = format!("{}/{high}", self.folder);
        // A killed writer may leave the folder of an object that it never wrote.
        for middle in self.store.list(&high)?.folders.iter().rev() {
            if let Some(last) = self.numbers(&format!("{high}/{middle}"))?.pop() {
                return Ok(Some(last));
            }
        }
        let before = high.rsplit('/').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        self.last_before(before * FAN * FAN)
    }

    /// Returns up to `limit` numbers that are smaller than `end`, in descending order.
    pub(crate) fn page(&self, end: u64, limit: usize) -> Result<Vec<u64>> {
        let mut page = Vec::new();
        let mut end = end;
        while page.len() < limit && end > 0 {
            let first = (end - 1) / FAN * FAN;
            let name = self.name(first);
            let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
            let numbers = self.numbers(folder)?;
            let below = numbers.into_iter().rev().filter(|&n| n < end);
            page.extend(below.take(limit - page.len()));
            end = first;
        }
        Ok(page)
    }

    pub(crate) fn get(&self, number: u64) -> Result<Option<Bytes>> {
        Ok(self.store.get(&self.name(number))?)
    }

    /// Writes the object with this number. Returns `false` if the object exists already.
    pub(crate) fn create(&self, number: u64, bytes: Vec<u8>) -> Result<bool> {
        Ok(self.store.create(&self.name(number), bytes.into())?)
    }

    /// Removes leftovers of killed processes from the folder of the next object. Returns their
    /// number.
    pub(crate) fn sweep(&self, age: std::time::Duration) -> Result<u64> {
        let next = self.last()?.map_or(1, |last| last + 1);
        let name = self.name(next);
        let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
        Ok(self.store.sweep(folder, age)?)
    }

    fn last_before(&self, end: u64) -> Result<Option<u64>> {
        Ok(if end == 0 { None } else { self.page(end, 1)?.pop() })
    }

    /// Returns the numbers of the objects in one folder, in ascending order.
    fn numbers(&self, folder: &str) -> Result<Vec<u64>> {
        let listing = self.store.list(folder)?;
        let number = |name: &str| name.strip_suffix(".json")?.parse::<u64>().ok();
        listing
            .objects
            .iter()
            .map(|object| {
                number(&object.name).ok_or_else(|| {
                    let path = format!("{folder}/{}", object.name);
                    let reason =
                        "this folder holds only numbered objects; move the object elsewhere"
                            .to_owned();
                    StoreError::Store { action: "understand", path, reason }.into()
                })
            })
            .collect()
    }
}
