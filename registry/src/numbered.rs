//! Numbered objects in a tree of folders: versions, and the moves of a pointer.
//!
//! The name is `<folder>/<number / 10⁶>/<number / 10³ mod 10³>/<number>.json`, with leading zeros.
//! A folder holds at most a thousand names, so three short listings find the last of a hundred
//! thousand objects. Numbers are assigned without gaps, by create-if-absent. Old objects can be
//! removed, but never the one with the largest number, so that no number is used twice.

use std::collections::BTreeSet;
use std::time::SystemTime;

use bytes::Bytes;
use zillion_store::{Listed, Store};

use crate::error::{Error, Result};

const FAN: u64 = 1000;
/// The number of digits in the name of a folder of the first level.
const HIGH_DIGITS: usize = 14;
/// The number of digits in the name of a folder of the second level.
const MIDDLE_DIGITS: usize = 3;

/// The largest number of an object: one object in each millisecond of 30 years. Folders of higher
/// numbers, such as one that is named by a date and a time, do not belong to a sequence.
const MAX_NUMBER: u64 = 1_000_000_000_000;

/// The largest number of objects that are requested one by one before the folders are listed.
const STEPS: u64 = 8;

/// The largest number of folders without an object of the sequence that are listed in one search. A
/// killed writer leaves one or two such folders.
const MAX_EMPTY: usize = 32;

/// A sequence of numbered objects in nested folders below `folder`.
#[derive(Clone, Debug)]
pub(crate) struct Numbered {
    store: Store,
    folder: String,
    /// The largest number of bytes of an object.
    most_bytes: u64,
}

impl Numbered {
    pub(crate) fn new(store: Store, folder: String, most_bytes: u64) -> Self {
        Self { store, folder, most_bytes }
    }

    /// Returns the name of the object with this number.
    pub(crate) fn name(&self, number: u64) -> String {
        format!("{}/{number:020}.json", self.shelf(number))
    }

    /// Returns the folder of the object with this number.
    fn shelf(&self, number: u64) -> String {
        let (high, middle) = (number / (FAN * FAN), number / FAN % FAN);
        format!("{}/{high:014}/{middle:03}", self.folder)
    }

    /// Returns the largest number in use, or `None` if the sequence is empty.
    pub(crate) fn last(&self) -> Result<Option<u64>> {
        Ok(self.search(MAX_NUMBER + 1, 1)?.pop())
    }

    /// Returns the number after `last`.
    ///
    /// # Errors
    /// Returns an error if there is no higher number.
    pub(crate) fn next(&self, last: Option<u64>) -> Result<u64> {
        let next = last.unwrap_or(0).checked_add(1).filter(|&next| next <= MAX_NUMBER);
        next.ok_or_else(|| {
            Error::Refused(format!(
                "folder `{}` of the registry has an object with number {MAX_NUMBER} or higher, so that no number \
                 is left; remove that object, which no publisher wrote",
                self.folder
            ))
        })
    }

    /// Returns the largest number in use, given that `known` was in use. Numbers have no gap, so
    /// that one request for the next object replaces three listings if nothing has changed.
    pub(crate) fn last_since(&self, known: u64) -> Result<Option<u64>> {
        for number in known..known.saturating_add(STEPS) {
            let next = self.next(Some(number))?;
            if self.store.head(&self.name(next))?.is_none() {
                return Ok(Some(number));
            }
        }
        self.last()
    }

    /// Returns up to `limit` numbers that are smaller than `end`, in descending order.
    pub(crate) fn page(&self, end: u64, limit: usize) -> Result<Vec<u64>> {
        let Some(newest) = end.min(MAX_NUMBER + 1).checked_sub(1) else { return Ok(Vec::new()) };
        // Numbers have no gap, so that the folder of the newest number has most of the page.
        let mut page = self.numbers(&self.shelf(newest))?;
        page.retain(|&number| number <= newest);
        page.reverse();
        page.truncate(limit);
        if page.len() < limit {
            page.extend(self.search(newest / FAN * FAN, limit - page.len())?);
        }
        Ok(page)
    }

    /// Finds up to `limit` numbers that are smaller than `end`, in descending order, by listing
    /// folders. The cost depends on the folders that exist, and not on the numbers between them.
    fn search(&self, end: u64, limit: usize) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        let Some(newest) = end.checked_sub(1) else { return Ok(found) };
        let (last_high, last_shelf) = (newest / (FAN * FAN), newest / FAN);
        let mut empty = 0;
        for (high, name) in self.folders(&self.folder, HIGH_DIGITS)?.into_iter().rev() {
            if high > last_high {
                continue;
            }
            let high_folder = format!("{}/{name}", self.folder);
            let before = found.len();
            for (middle, name) in self.folders(&high_folder, MIDDLE_DIGITS)?.into_iter().rev() {
                if high * FAN + middle > last_shelf {
                    continue;
                }
                let folder = format!("{high_folder}/{name}");
                let numbers = self.numbers(&folder)?;
                // A killed writer may leave the folder of an object that it never wrote.
                if numbers.is_empty() {
                    self.count_empty(&mut empty, &folder)?;
                }
                let below = numbers.into_iter().rev().filter(|&number| number < end);
                found.extend(below.take(limit - found.len()));
                if found.len() >= limit {
                    return Ok(found);
                }
            }
            if found.len() == before {
                self.count_empty(&mut empty, &high_folder)?;
            }
        }
        Ok(found)
    }

    /// Counts a folder without an object, and ends a search that has seen too many.
    fn count_empty(&self, empty: &mut usize, folder: &str) -> Result<()> {
        *empty += 1;
        if *empty <= MAX_EMPTY {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "more than {MAX_EMPTY} folders in `{}` of the registry hold no object, and `{folder}` is one of them; \
             remove those folders, which no publisher made",
            self.folder
        )))
    }

    /// Returns the numbers in use and the times of their last writes, in ascending order. The cost
    /// depends on the number of objects.
    pub(crate) fn all(&self) -> Result<Vec<(u64, SystemTime)>> {
        let mut all = Vec::new();
        for (_, high) in self.folders(&self.folder, HIGH_DIGITS)? {
            let high = format!("{}/{high}", self.folder);
            for (_, middle) in self.folders(&high, MIDDLE_DIGITS)? {
                all.extend(self.shelved(&format!("{high}/{middle}"))?);
            }
        }
        Ok(all)
    }

    /// Removes objects, whose numbers must be below the largest number in use, and the folders that
    /// are empty then.
    pub(crate) fn remove(&self, numbers: &[u64]) -> Result<()> {
        for &number in numbers {
            self.store.delete(&self.name(number))?;
        }
        let shelves: BTreeSet<u64> = numbers.iter().map(|number| number / FAN).collect();
        for shelf in shelves {
            // A folder that holds the largest number, or gets the next one, has contents.
            self.store.remove_empty(&self.shelf(shelf * FAN))?;
            let high = shelf / FAN;
            self.store.remove_empty(&format!("{}/{high:014}", self.folder))?;
        }
        Ok(())
    }

    pub(crate) fn get(&self, number: u64) -> Result<Option<Bytes>> {
        Ok(self.store.get_at_most(&self.name(number), self.most_bytes)?)
    }

    /// Writes the object with this number. Returns `false` if the object exists already.
    ///
    /// # Errors
    /// Returns an error if readers would refuse the object for its size, or if the store fails.
    pub(crate) fn create(&self, number: u64, bytes: Vec<u8>) -> Result<bool> {
        if bytes.len() as u64 > self.most_bytes {
            return Err(Error::Refused(format!(
                "the object `{}` would have {} bytes, but readers take at most {}; shorten its texts, or use fewer \
                 tables",
                self.name(number),
                bytes.len(),
                self.most_bytes
            )));
        }
        Ok(self.store.create(&self.name(number), bytes.into())?)
    }

    /// Removes leftovers of killed processes from the folder of the next object. Returns their
    /// number.
    pub(crate) fn sweep(&self, age: std::time::Duration) -> Result<u64> {
        let next = self.next(self.last()?)?;
        Ok(self.store.sweep(&self.shelf(next), age)?)
    }

    /// Returns the numbers and the names of the folders in `folder` that belong to the sequence, in
    /// ascending order.
    fn folders(&self, folder: &str, digits: usize) -> Result<Vec<(u64, String)>> {
        let most = MAX_NUMBER / (FAN * FAN);
        let number = |name: String| {
            let is_plain = name.len() == digits && name.bytes().all(|b| b.is_ascii_digit());
            let number = name.parse::<u64>().ok().filter(|&n| is_plain && n <= most)?;
            Some((number, name))
        };
        Ok(self.store.list(folder)?.folders.into_iter().filter_map(number).collect())
    }

    /// Returns the numbers in a folder, in ascending order. An object of another name does not
    /// belong to the sequence, and must not keep readers from it.
    fn numbers(&self, folder: &str) -> Result<Vec<u64>> {
        Ok(self.shelved(folder)?.into_iter().map(|(number, _)| number).collect())
    }

    /// Returns the numbers in a folder and the times of their last writes, in ascending order.
    fn shelved(&self, folder: &str) -> Result<Vec<(u64, SystemTime)>> {
        let number = |name: &str| {
            let number = name.strip_suffix(".json")?.parse::<u64>().ok()?;
            (number <= MAX_NUMBER && self.name(number) == format!("{folder}/{name}"))
                .then_some(number)
        };
        let objects = self.store.list(folder)?.objects;
        let entry = |object: &Listed| Some((number(&object.name)?, object.modified));
        Ok(objects.iter().filter_map(entry).collect())
    }
}
