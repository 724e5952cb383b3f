//! The passing on of complete files, for files whose home is elsewhere, such as an object store.

use std::fmt::Debug;
use std::io;
use std::path::Path;

/// A receiver of complete files.
pub trait Delivery: Debug + Send + Sync {
    /// Takes a complete file over. The receiver may remove the file afterwards. The call may wait
    /// until the receiver has room for another file.
    ///
    /// # Errors
    /// Returns an error if the receiver has failed. The write of the file then fails too.
    fn deliver(&self, file: &Path) -> io::Result<()>;
}
