//! The work of the frames of versions.

use super::{Tables, bad, message, put};
use crate::client::{Publishing, Since};
use crate::error::Result;
use crate::wire::{Header, Op, Reader, WriteLayer, Writer, WrittenLayer};

impl Tables {
    /// Does the work of a frame of a version.
    pub(super) fn version(
        &mut self,
        header: &Header,
        body: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        match header.op {
            Op::TrackChanges => {
                let mut body = Reader::new(body);
                let epochs = body.u32().and_then(|epochs| body.end().map(|()| epochs));
                let epochs = epochs.map_err(bad(header.op.name()))?;
                self.client.track_changes(epochs as usize)?;
            }
            Op::WriteLayer => {
                let write: WriteLayer = message(header, body)?;
                let folder = self.folder.path(header.op.name(), &write.folder)?;
                self.files.create_dir(&folder).map_err(zillion_rows::Error::Device)?;
                let since = write.since.map_or(Since::Base, Since::Epoch);
                let files = self.files.clone();
                let layer = self.client.write_layer(since, &folder, &files)?;
                put(answer, &WrittenLayer { layer });
            }
            _ => {
                let epoch = self.client.end_dirty_epoch()?;
                Writer(answer).u32(epoch);
            }
        }
        Ok(())
    }
}
