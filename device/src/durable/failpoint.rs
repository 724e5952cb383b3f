//! Failing on purpose, at a chosen operation: how a test reaches every moment of a checkpoint.

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::DeviceError;

/// A durable operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A file or a folder is made.
    Create,
    /// Bytes go to a file.
    Write,
    /// Bytes come from a scratch file.
    Read,
    /// A file is synced.
    Fsync,
    /// A file or a folder gets its name.
    Rename,
    /// The names in a folder are synced.
    SyncDir,
    /// A file or a folder is removed.
    Remove,
}

/// What is to happen instead of an operation.
#[derive(Debug)]
pub enum Action {
    /// Nothing else: the operation takes place.
    Proceed,
    /// It fails with this error.
    Fail(io::Error),
    /// The process dies as from `kill -9`.
    Kill,
    /// A write puts half of its bytes on the disk, then the process dies; other operations: `Kill`.
    Tear,
}

/// The hook that every durable operation asks before it happens.
pub trait Failpoints: Debug + Send + Sync {
    /// Decides about one operation on `path` (of a rename: the new name).
    fn before(&self, op: Op, path: &Path) -> Action;
}

/// What a [`Failpoint`] does when its turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Die as from `kill -9`.
    Kill,
    /// Write half, then die.
    Torn,
    /// Fail as a full disk does.
    Enospc,
    /// Fail as a broken disk does.
    Eio,
}

/// Counts operations and disturbs one of them.
#[derive(Debug)]
pub struct Failpoint {
    /// The number of the operation, from 1, and what happens to it; `None` only counts.
    plan: Option<(u64, Fault)>,
    operations: AtomicU64,
}

impl Failpoint {
    /// Disturbs the operation with the number `at`, counted from 1.
    pub fn new(at: u64, fault: Fault) -> Self {
        Self { plan: Some((at, fault)), operations: AtomicU64::new(0) }
    }

    /// Disturbs nothing: for learning how many operations a run makes.
    pub fn counting() -> Self {
        Self { plan: None, operations: AtomicU64::new(0) }
    }

    /// Reads `"N:kill"`, `"N:torn"`, `"N:enospc"` or `"N:eio"`.
    ///
    /// # Errors
    ///
    /// Where the text is none of these, or N is zero.
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

    /// How many operations have asked so far.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }
}

impl FromStr for Failpoint {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        Self::parse(text)
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

/// Ends the process the way `kill -9` does: no unwinding, no handlers, no buffers written.
pub(super) fn die() -> ! {
    // SAFETY: a signal to this very process; SIGKILL is delivered before `kill` returns to a process that
    // signals itself, or shortly after, for which the abort waits in case it should ever come back.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    std::process::abort()
}
