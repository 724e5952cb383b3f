//! The work of the frames of versions.
//!
//! The server sends the parts of a base straight to the registry. It keeps a delta in its scratch
//! folder, from which the publisher reads it in pieces.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use zillion_rows::layer::LayerManifest;

use super::{Tables, bad, message, put};
use crate::client::{Publishing, Since};
use crate::error::{Error, Result};
use crate::server::home::{BASE, LAYER};
use crate::wire::{
    Header, LAYER_PIECE, Op, ReadLayer, Reader, WriteBase, WriteLayer, Writer, WrittenLayer,
};

impl Tables {
    /// Does the work of a frame of a version.
    pub(super) fn version(
        &mut self,
        header: &Header,
        body: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        let call = header.op.name();
        match header.op {
            Op::TrackChanges => {
                let mut body = Reader::new(body);
                let epochs = body.u32().and_then(|epochs| body.end().map(|()| epochs));
                let epochs = epochs.map_err(bad(header.op.name()))?;
                self.client.track_changes(epochs as usize)?;
            }
            Op::WriteLayer => {
                let write: WriteLayer = message(header, body)?;
                let folder = self.home.scratch.begin(LAYER)?;
                let since = write.since.map_or(Since::Base, Since::Epoch);
                let files = self.home.files.scratch();
                let layer = self.client.write_layer(since, &folder, &files)?;
                put(answer, &WrittenLayer { layer });
            }
            Op::ReadLayer => {
                let read: ReadLayer = message(header, body)?;
                self.read_layer(call, &read, answer)?;
            }
            Op::WriteBase => {
                let write: WriteBase = message(header, body)?;
                let layer = self.write_base(call, &write);
                self.home.scratch.end(BASE);
                put(answer, &WrittenLayer { layer: Some(layer?) });
            }
            _ => {
                let epoch = self.client.end_dirty_epoch()?;
                // The publisher has read the layer.
                self.home.scratch.end(LAYER);
                Writer(answer).u32(epoch);
            }
        }
        Ok(())
    }

    /// Writes the parts of a base, and returns after the registry has them.
    fn write_base(&mut self, call: &'static str, write: &WriteBase) -> Result<LayerManifest> {
        let (folder, files, uploads) = self.home.begin_base(call, &write.target)?;
        let layer = self.client.write_owned_base(&write.cuts, &folder, &files)?;
        uploads.finish()?;
        Ok(layer)
    }

    /// Appends a piece of a file of the last layer to an answer.
    fn read_layer(&self, call: &'static str, read: &ReadLayer, answer: &mut Vec<u8>) -> Result<()> {
        // The name is a hash, so it cannot lead out of the folder.
        let path = self.home.scratch.path(LAYER).join(read.file.name());
        let mut piece = || {
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(read.offset))?;
            file.take(LAYER_PIECE).read_to_end(answer)
        };
        piece().map(drop).map_err(|e| Error::Argument {
            call,
            reason: format!("cannot read {}: {e}; publish the version again", path.display()),
        })
    }
}
