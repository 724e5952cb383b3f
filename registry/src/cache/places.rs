//! The place of a version's files in memory: copies instead of mappings.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use zillion_device::{DeviceError, mmap};
use zillion_rows::layer::{Places, Throttle};

/// A folder whose files are copied into memory.
pub(super) struct Copies<'a> {
    folder: &'a Path,
    pace: RefCell<&'a mut dyn Throttle>,
}

impl<'a> Copies<'a> {
    pub(super) fn new(folder: &'a Path, pace: &'a mut dyn Throttle) -> Self {
        Self { folder, pace: RefCell::new(pace) }
    }
}

impl Places for Copies<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn read(&self, name: &str) -> Result<Bytes, DeviceError> {
        mmap::copy(self.path(name), &mut || self.pace.borrow_mut().piece())
    }
}
