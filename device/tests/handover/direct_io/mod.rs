//! A replacement for `src/direct_io.rs`: a file whose bytes are computed. Other threads run during
//! its reads.

#[path = "../../../src/direct_io/readers.rs"]
mod readers;

use std::io;
use std::path::Path;

use bytemuck::{Pod, Zeroable};
use shuttle::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::error::DeviceError;
pub use readers::{Pieces, Readers};

pub(crate) const PAGE: usize = 4096;

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(4096))]
pub(crate) struct Page([u8; PAGE]);

pub(crate) fn pages(count: usize) -> Vec<Page> {
    vec![Page::zeroed(); count]
}

pub(crate) fn bytes(pages: &[Page]) -> &[u8] {
    bytemuck::cast_slice(pages)
}

/// A file whose byte at the position `i` is [`byte`] of `i`. Reading fails from the position
/// `broken_from` on.
#[derive(Debug)]
pub(crate) struct DirectFile {
    /// The position of the first byte that cannot be read.
    pub(crate) broken_from: u64,
    /// The number of reads so far.
    pub(crate) reads: AtomicUsize,
}

impl DirectFile {
    pub(crate) fn new(broken_from: u64) -> Self {
        Self { broken_from, reads: AtomicUsize::new(0) }
    }

    pub(crate) fn read(&self, offset: u64, pages: &mut [Page]) -> Result<(), DeviceError> {
        self.reads.fetch_add(1, SeqCst);
        shuttle::thread::yield_now();
        if offset >= self.broken_from {
            let error = io::Error::other(format!("broken at {offset}"));
            return Err(DeviceError::file("read", Path::new("log"), error));
        }
        for (page, first) in pages.iter_mut().zip((offset..).step_by(PAGE)) {
            // The test examines only the beginning of a page.
            page.0[..16].iter_mut().zip(first..).for_each(|(to, i)| *to = byte(i));
        }
        Ok(())
    }
}

pub(crate) fn byte(i: u64) -> u8 {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}
