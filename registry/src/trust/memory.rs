//! The memory of the pointer moves that a reader took, in files of its cache.
//!
//! The signature of a move stays right for ever, so a writer of the bucket could put an old move
//! back, or remove the newest ones. A reader therefore remembers the last move that it took of each
//! pointer, and takes no move with a lower number, nor another move with the same number. A reader
//! without a memory is protected by the end of a move's validity only.
//!
//! # Concurrency
//! Readers can share a cache. A file is written only with a higher number than it holds, so that a
//! slow reader does not take a faster one back; two readers that write in the same instant may
//! leave the lower number of the two, and each of them still remembers its own.
//!
//! # Crash consistency
//! A file is replaced as a whole, before its move is used.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use zillion_device::Files;

use crate::error::{Error, Result};
use crate::pointer::PointerMove;

/// The memory of the moves of one model's pointers.
#[derive(Debug)]
pub(crate) struct PointerMemory {
    folder: PathBuf,
    files: Files,
    taken: Mutex<BTreeMap<String, Taken>>,
}

/// The last move that was taken of a pointer.
#[derive(Clone, Debug)]
struct Taken {
    entry: PointerMove,
    /// Whether the version that the move names was compared with its hash by this process.
    is_linked: bool,
}

impl PointerMemory {
    pub(crate) fn new(folder: PathBuf, files: Files) -> Self {
        Self { folder, files, taken: Mutex::default() }
    }

    /// Takes a move whose signature was verified. Returns whether the version that it names was
    /// compared with its hash before, see [`PointerMemory::set_linked`].
    ///
    /// # Errors
    /// Returns [`Error::Replayed`] for a move that an earlier one forbids, or an error if the
    /// memory cannot be read or written.
    pub(crate) fn take(&self, model: &str, pointer: &str, entry: &PointerMove) -> Result<bool> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match taken.get(pointer) {
            Some(before) if before.entry == *entry => return Ok(before.is_linked),
            Some(before) => Some(before.entry.clone()),
            None => None,
        };
        let stored = self.read(pointer)?;
        for before in before.iter().chain(&stored) {
            let is_other = entry.number == before.number && entry.to != before.to;
            if entry.number < before.number || is_other {
                return Err(Error::Replayed {
                    model: model.to_owned(),
                    pointer: pointer.to_owned(),
                    number: entry.number,
                    taken: before.number,
                    path: self.path(pointer),
                });
            }
        }
        if stored.is_none_or(|stored| stored.number < entry.number) {
            self.write(pointer, entry)?;
        }
        taken.insert(pointer.to_owned(), Taken { entry: entry.clone(), is_linked: false });
        Ok(false)
    }

    /// Remembers that the version of a taken move has the hash that the move names.
    pub(crate) fn set_linked(&self, pointer: &str, entry: &PointerMove) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = taken.get_mut(pointer).filter(|taken| taken.entry == *entry) {
            taken.is_linked = true;
        }
    }

    fn path(&self, pointer: &str) -> PathBuf {
        self.folder.join(format!("{pointer}.json"))
    }

    /// Reads the last move that was taken of a pointer. Its signature is not verified.
    pub(crate) fn read(&self, pointer: &str) -> Result<Option<PointerMove>> {
        let path = self.path(pointer);
        let refuse = |reason: String| Error::Memory { path: path.clone(), reason };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refuse(error.to_string())),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| refuse(error.to_string()))
    }

    fn write(&self, pointer: &str, entry: &PointerMove) -> Result<()> {
        self.files.create_dir(&self.folder)?;
        Ok(self.files.write_bytes(self.path(pointer), &entry.to_bytes())?)
    }
}
