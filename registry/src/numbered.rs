//! Numbered objects in a tree of folders: versions, and the moves of a pointer.
//!
//! The name is `<folder>/<number / 10⁶>/<number / 10³ mod 10³>/<number>.json`, with leading zeros.
//! A folder holds at most a thousand names, so three short listings find the last of a hundred
//! thousand objects. Numbers are assigned without gaps, by create-if-absent.

use bytes::Bytes;
use zillion_store::Store;

use crate::error::Result;

const FAN: u64 = 1000;
/// The number of digits in the name of a folder of the first level.
const HIGH_DIGITS: usize = 14;
/// The number of digits in the name of a folder of the second level.
const MIDDLE_DIGITS: usize = 3;

/// The largest number of objects that are requested one by one before the folders are listed.
const STEPS: u64 = 8;

/// The largest number of bytes of an object: a manifest lists up to some hundred thousand files.
const MAX_BYTES: u64 = 64 << 20;

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
        let Some(high) = self.folders(&self.folder, HIGH_DIGITS)?.pop() else { return Ok(None) };
        let before = high.parse::<u64>().unwrap_or(0);
        let high = format!("{}/{high}", self.folder);
        // A killed writer may leave the folder of an object that it never wrote.
        for middle in self.folders(&high, MIDDLE_DIGITS)?.iter().rev() {
            if let Some(last) = self.numbers(&format!("{high}/{middle}"))?.pop() {
                return Ok(Some(last));
            }
        }
        self.last_before(before.saturating_mul(FAN * FAN))
    }

    /// Returns the largest number in use, given that `known` was in use. Numbers have no gap, so
    /// that one request for the next object replaces three listings if nothing has changed.
    pub(crate) fn last_since(&self, known: u64) -> Result<Option<u64>> {
        for number in known..known.saturating_add(STEPS) {
            let next = number.saturating_add(1);
            if self.store.head(&self.name(next))?.is_none() {
                return Ok(Some(number));
            }
        }
        self.last()
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
        Ok(self.store.get_at_most(&self.name(number), MAX_BYTES)?)
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

    /// Returns the names of the folders in `folder` that belong to the sequence, in ascending
    /// order.
    fn folders(&self, folder: &str, digits: usize) -> Result<Vec<String>> {
        let mut folders = self.store.list(folder)?.folders;
        folders.retain(|name| name.len() == digits && name.bytes().all(|b| b.is_ascii_digit()));
        Ok(folders)
    }

    /// Returns the numbers in a folder, in ascending order. An object of another name does not
    /// belong to the sequence, and must not keep readers from it.
    fn numbers(&self, folder: &str) -> Result<Vec<u64>> {
        let number = |name: &str| {
            let number = name.strip_suffix(".json")?.parse::<u64>().ok()?;
            (self.name(number) == format!("{folder}/{name}")).then_some(number)
        };
        let listing = self.store.list(folder)?;
        Ok(listing.objects.iter().filter_map(|object| number(&object.name)).collect())
    }
}
