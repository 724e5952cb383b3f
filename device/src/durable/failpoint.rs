//! Deliberate failures at a chosen operation, so that a test can interrupt a checkpoint at every
//! moment.

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::DeviceError;

/// A kind of durable operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The creation of a file or a folder.
    Create,
    /// A write of bytes to a file.
    Write,
    /// A read of bytes from a scratch file.
    Read,
    /// The sync of a file.
    Fsync,
    /// The rename of a file or a folder.
    Rename,
    /// The sync of the names in a folder.
    SyncDir,
    /// The removal of a file or a folder.
    Remove,
}

/// The action that a failpoint requests for an operation.
#[derive(Debug)]
pub enum Action {
    /// The operation takes place.
    Proceed,
    /// The operation fails with this error.
    Fail(io::Error),
    /// The process dies as with `kill -9`.
    Kill,
    /// A write stores half of its bytes on the disk, and then the process dies. For any other
    /// operation, the action is the same as `Kill`.
    Tear,
}

/// The hook that runs before every durable operation.
pub trait Failpoints: Debug + Send + Sync {
    /// Returns the action for one operation on `path`. For a rename, `path` is the new name.
    fn before(&self, op: Op, path: &Path) -> Action;
}

/// The failure that a [`Failpoint`] causes at its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process dies as with `kill -9`.
    Kill,
    /// Half of the bytes are written, and then the process dies.
    Torn,
    /// The operation fails as on a full disk.
    Enospc,
    /// The operation fails as on a broken disk.
    Eio,
}

/// A hook that counts operations and makes one of them fail.
#[derive(Debug)]
pub struct Failpoint {
    /// The number of the operation that fails, counted from 1, and its fault. With `None`,
    /// operations are only counted.
    plan: Option<(u64, Fault)>,
    operations: AtomicU64,
}

impl Failpoint {
    /// Creates a failpoint with a fault at operation number `at`, counted from 1.
    pub fn new(at: u64, fault: Fault) -> Self {
        Self { plan: Some((at, fault)), operations: AtomicU64::new(0) }
    }

    /// Creates a failpoint that only counts, to find the number of operations of a run.
    pub fn counting() -> Self {
        Self { plan: None, operations: AtomicU64::new(0) }
    }

    /// Parses a failpoint: `"N:kill"`, `"N:torn"`, `"N:enospc"` or `"N:eio"`.
    ///
    /// # Errors
    ///
    /// Returns an error for any other text, or if N is zero.
    pub fn parse(text: &str) -> Result<Self, DeviceError> {
        let refused = || DeviceError::Failpoint(text.to_owned());
        let (at, fault) = text.split_once(':').ok_or_else(refused)?;
        let at: u64 = at.trim().parse().map_err(|_| refused())?;
        let fault = match fault.trim() {
            "kill" => Fault::Kill,
            "torn" => Fault::Torn,
            "enospc" => Fault::Enospc,
            "eio" => Fault::Eio,
            _ => return Err(refused()),
        };
        if at == 0 {
            return Err(refused());
        }
        Ok(Self::new(at, fault))
    }

    /// Returns the number of operations so far.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }
}

impl Failpoints for Failpoint {
    fn before(&self, _: Op, _: &Path) -> Action {
        let number = self.operations.fetch_add(1, Ordering::Relaxed) + 1;
        match self.plan {
            Some((at, fault)) if at == number => match fault {
                Fault::Kill => Action::Kill,
                Fault::Torn => Action::Tear,
                Fault::Enospc => Action::Fail(io::Error::from_raw_os_error(libc::ENOSPC)),
                Fault::Eio => Action::Fail(io::Error::from_raw_os_error(libc::EIO)),
            },
            _ => Action::Proceed,
        }
    }
}

/// Ends the process as `kill -9` does: without unwinding, handlers, or flushes of buffers.
pub(super) fn die() -> ! {
    // SAFETY: the signal goes to this very process. SIGKILL is delivered before `kill` returns to a
    // process that signals itself, or shortly after; the abort below covers that moment.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    std::process::abort()
}
