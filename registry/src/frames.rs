//! The reading of frames, and the frames that were read last.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::error::{Error, Result, describe_other_bytes};
use crate::frame::Frame;
use crate::reference::{MAX_MANIFEST_BYTES, VersionFile};

/// The number of frames that a model remembers. A training has one frame.
const REMEMBERED: usize = 4;

/// The frames that were read last, which all handles of a model share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frames(Arc<Mutex<Known>>);

/// Frames by their files, the newest first.
type Known = VecDeque<(VersionFile, Arc<Frame>)>;

impl Frames {
    /// Returns the frame in a file that `read` reads from `path`, unless it was read before.
    ///
    /// # Errors
    /// Returns [`Error::File`] if the bytes are not those that were published, and the errors of
    /// `read`.
    pub(crate) fn get_or_read(
        &self,
        file: &VersionFile,
        path: PathBuf,
        read: impl FnOnce() -> Result<Bytes>,
    ) -> Result<Arc<Frame>> {
        if let Some(frame) = self.get(file) {
            return Ok(frame);
        }
        let refuse = |reason: String| Error::File { path: path.clone(), reason };
        if file.bytes > MAX_MANIFEST_BYTES {
            return Err(refuse(format!(
                "the frame of the version has {} bytes, but a frame has at most {MAX_MANIFEST_BYTES}",
                file.bytes
            )));
        }
        let bytes = read()?;
        let hash = blake3::hash(&bytes).to_hex();
        if hash.as_str() != file.blake3 || bytes.len() as u64 != file.bytes {
            return Err(refuse(describe_other_bytes(bytes.len() as u64, &hash, file.bytes)));
        }
        let frame = Arc::new(Frame::parse(&bytes).map_err(refuse)?);
        self.insert(file.clone(), frame.clone());
        Ok(frame)
    }

    /// Remembers a frame that this process has written.
    pub(crate) fn insert(&self, file: VersionFile, frame: Arc<Frame>) {
        let mut frames = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if frames.iter().all(|(known, _)| *known != file) {
            frames.push_front((file, frame));
            frames.truncate(REMEMBERED);
        }
    }

    fn get(&self, file: &VersionFile) -> Option<Arc<Frame>> {
        let frames = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        frames.iter().find(|(known, _)| known == file).map(|(_, frame)| frame.clone())
    }
}
