//! The implementation of [`Publishing`] for tables on servers. Each server writes a layer of its
//! own rows, and the client merges the layers in key order.

use std::path::{Path, PathBuf};

use zillion_device::Files;
use zillion_rows::RowSource;
use zillion_rows::layer::{Layer, LayerManifest, Places, Unthrottled, merge_layers};

use super::{RemoteClient, bad_answer, part_folder};
use crate::client::{Publishing, Since};
use crate::error::{Error, Result};
use crate::pulled::PulledRows;
use crate::wire::{Op, Reader, WriteLayer, Writer, WrittenLayer, read_json, write_json};

impl Publishing for RemoteClient {
    fn track_changes(&mut self, epochs: usize) -> Result<()> {
        self.order.check_settled("track_changes")?;
        let epochs = u32::try_from(epochs).unwrap_or(u32::MAX);
        self.ask_all(Op::TrackChanges, |body| Writer(body).u32(epochs)).map(drop)
    }

    fn write_layer(
        &mut self,
        since: Since,
        folder: &Path,
        files: &Files,
    ) -> Result<Option<LayerManifest>> {
        self.order.check_settled("write_layer")?;
        self.settle_if_paced()?;
        let parts: Vec<PathBuf> =
            (0..self.links.len()).map(|server| part_folder(folder, server)).collect();
        let name = |part: &PathBuf| self.name_of("write_layer", part);
        let names = parts.iter().map(name).collect::<Result<Vec<String>>>()?;
        let since = match since {
            Since::Base => None,
            Since::Epoch(epoch) => Some(epoch),
        };
        let written = self.ask_each(Op::WriteLayer, |server, body| {
            write_json(body, &WriteLayer { folder: names[server].clone(), since });
        });
        let merged = written.and_then(|bodies| self.merge(&bodies, &parts, folder, files));
        // The parts of the servers are not needed after the merge, or after an error.
        for part in parts.iter().filter(|part| part.exists()) {
            files.remove_dir(part).map_err(zillion_rows::Error::Device)?;
        }
        merged
    }

    fn end_dirty_epoch(&mut self) -> Result<u32> {
        self.order.check_settled("end_dirty_epoch")?;
        self.settle_if_paced()?;
        let bodies = self.ask_all(Op::EndDirtyEpoch, |_| {})?;
        let read = |body: &Vec<u8>| Reader::new(body).u32().map_err(bad_answer("end_dirty_epoch"));
        let epochs = bodies.iter().map(read).collect::<Result<Vec<u32>>>()?;
        if epochs.windows(2).any(|pair| pair[0] != pair[1]) {
            let reason = format!(
                "the servers have ended different epochs ({epochs:?}); restore a checkpoint"
            );
            return Err(Error::Argument { call: "end_dirty_epoch", reason });
        }
        Ok(epochs[0])
    }

    fn row_source(&mut self) -> Result<Box<dyn RowSource + '_>> {
        Ok(Box::new(PulledRows::new(self)))
    }
}

impl RemoteClient {
    /// Merges the layers of all servers. Returns `None` if a server does not know the changes.
    fn merge(
        &self,
        bodies: &[Vec<u8>],
        parts: &[PathBuf],
        folder: &Path,
        files: &Files,
    ) -> Result<Option<LayerManifest>> {
        let mut layers = Vec::new();
        for (body, part) in bodies.iter().zip(parts) {
            let written: WrittenLayer = read_json(body).map_err(bad_answer("write_layer"))?;
            let Some(manifest) = written.layer else { return Ok(None) };
            layers.push(Layer::open(&PartOf(part), &manifest, &self.layouts)?);
        }
        let layers: Vec<&Layer> = layers.iter().collect();
        let pace = &mut Unthrottled;
        // No server has a row of another one, so no tombstone can remove a row of the layer.
        Ok(Some(merge_layers(files, folder, &self.layouts, &layers, false, pace)?))
    }
}

/// The folder with the layer of one server.
struct PartOf<'a>(&'a Path);

impl Places for PartOf<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}
