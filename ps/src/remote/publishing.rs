//! The implementation of [`Publishing`] for tables on servers.
//!
//! Each server sends its parts of a base straight to the registry, if the registry is a bucket or a
//! folder below the shared store. The client only merges the manifests. A delta is small: each
//! server writes its part, and the client reads the parts and merges them in key order. So a base
//! for another registry goes through the folder of the client.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use zillion_device::Files;
use zillion_rows::RowSource;
use zillion_rows::layer::{Layer, LayerCut, LayerFile, LayerManifest, Unthrottled, merge_layers};
use zillion_store::is_bucket;

use super::{RemoteClient, bad_answer};
use crate::client::{LayerTarget, Publishing, Since, TableAccess};
use crate::error::{Error, Result};
use crate::pulled::PulledRows;
use crate::wire::{
    BaseTarget, Op, ReadLayer, Reader, WriteBase, WriteLayer, Writer, WrittenLayer, read_json,
    write_json,
};

/// The largest number of epochs by which a server may be behind the others.
const MOST_EPOCHS: u32 = 1 << 16;

impl Publishing for RemoteClient {
    fn track_changes(&mut self, epochs: usize) -> Result<()> {
        self.order.check_settled("track_changes")?;
        let epochs = u32::try_from(epochs).unwrap_or(u32::MAX);
        self.ask_all(Op::TrackChanges, |body| Writer(body).u32(epochs))?;
        match self.kept {
            Some(_) => self.align_epochs(),
            None => Ok(()),
        }
    }

    fn write_layer(
        &mut self,
        since: Since,
        folder: &Path,
        files: &Files,
    ) -> Result<Option<LayerManifest>> {
        self.order.check_settled("write_layer")?;
        self.settle_if_paced()?;
        let since = match since {
            Since::Base => None,
            Since::Epoch(epoch) => Some(epoch),
        };
        let written =
            self.ask_all(Op::WriteLayer, |body| write_json(body, &WriteLayer { since }))?;
        let mut manifests = Vec::new();
        for body in &written {
            let written: WrittenLayer = read_json(body).map_err(bad_answer("write_layer"))?;
            let Some(manifest) = written.layer else { return Ok(None) };
            manifests.push(manifest);
        }
        let parts: Vec<PathBuf> =
            (0..manifests.len()).map(|server| folder.join(format!("server-{server:04}"))).collect();
        let merged = self.merge(&manifests, &parts, folder, files);
        // The parts of the servers are not needed after the merge, or after an error.
        for part in parts.iter().filter(|part| part.exists()) {
            files.remove_dir(part).map_err(zillion_rows::Error::Device)?;
        }
        merged.map(Some)
    }

    fn write_base(&mut self, target: &LayerTarget) -> Result<Option<LayerManifest>> {
        self.order.check_settled("write_base")?;
        self.settle_if_paced()?;
        let Some(target) = self.base_target(target) else { return Ok(None) };
        let cuts = self.cuts_of_base()?;
        let write = WriteBase { target, cuts };
        let written = self.ask_all(Op::WriteBase, |body| write_json(body, &write))?;
        let layers = written.iter().map(|body| {
            let written: WrittenLayer = read_json(body).map_err(bad_answer("write_base"))?;
            written.layer.ok_or_else(|| Error::Argument {
                call: "write_base",
                reason: "a server has not written its part of a base; publish again".to_owned(),
            })
        });
        let layers = layers.collect::<Result<Vec<_>>>()?;
        Ok(Some(LayerManifest::merge(&layers)?))
    }

    fn end_dirty_epoch(&mut self) -> Result<u32> {
        self.order.check_settled("end_dirty_epoch")?;
        self.settle_if_paced()?;
        let epochs = self.end_epochs()?;
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
    /// Ends an epoch on every server, and returns the epochs.
    fn end_epochs(&mut self) -> Result<Vec<u32>> {
        let bodies = self.ask_all(Op::EndDirtyEpoch, |_| {})?;
        bodies.iter().map(|body| read_epoch(body)).collect()
    }

    /// Ends epochs until all servers have ended the same one. The tables of a server that was
    /// started again are in the epoch of their checkpoint, and those of the other servers may be in
    /// a later one.
    fn align_epochs(&mut self) -> Result<()> {
        let epochs = self.end_epochs()?;
        let newest = epochs.iter().copied().max().unwrap_or(0);
        if epochs.iter().any(|&epoch| newest - epoch > MOST_EPOCHS) {
            let reason = format!("the servers have ended too different epochs ({epochs:?})");
            return Err(Error::Argument { call: "track_changes", reason });
        }
        let step = self.order.step().0;
        for (link, mut epoch) in self.links.iter_mut().zip(epochs) {
            while epoch < newest {
                let frame = link.send(Op::EndDirtyEpoch, step, |_| {})?;
                // A server that counts wrongly is found at the end of the next epoch.
                epoch = read_epoch(&link.take(frame)?)?.max(epoch + 1);
            }
        }
        Ok(())
    }

    /// Returns the place of a base as the servers know it, or `None` if they cannot reach it.
    fn base_target(&self, target: &LayerTarget) -> Option<BaseTarget> {
        let LayerTarget { registry, folder } = target;
        let is_bucket = is_bucket(registry);
        let registry = match is_bucket {
            true => registry.clone(),
            false if self.names.is_bucket() => return None,
            // A folder that does not lie below the store may be a folder of this machine only.
            false => self.names.name("write_base", Path::new(registry)).ok()?,
        };
        Some(BaseTarget { is_bucket, registry, folder: folder.clone() })
    }

    /// Returns the cut of each table into parts, so that every part has one server.
    fn cuts_of_base(&mut self) -> Result<Vec<LayerCut>> {
        let statistics = self.stats()?;
        let tables = self.layouts.iter().zip(&statistics).enumerate();
        let cut =
            |(table, (layout, statistics)): (usize, (_, &zillion_embedding::TableStatistics))| {
                let narrow = statistics.narrow_rows;
                let rows = (statistics.rows.saturating_sub(narrow), narrow);
                LayerCut::of_rows(layout, rows, self.owners.bounds_of(table))
            };
        Ok(tables.map(cut).collect())
    }

    /// Reads the layers of all servers into folders, and merges them.
    fn merge(
        &mut self,
        manifests: &[LayerManifest],
        parts: &[PathBuf],
        folder: &Path,
        files: &Files,
    ) -> Result<LayerManifest> {
        let mut layers = Vec::new();
        for (server, (manifest, part)) in manifests.iter().zip(parts).enumerate() {
            files.create_dir(part).map_err(zillion_rows::Error::Device)?;
            for file in manifest.files() {
                self.read_file(server, file, part, files)?;
            }
            layers.push(Layer::open(part.as_path(), manifest, &self.layouts)?);
        }
        let layers: Vec<&Layer> = layers.iter().collect();
        let pace = &mut Unthrottled;
        // No server has a row of another one, so no tombstone can remove a row of the layer.
        Ok(merge_layers(files, folder, &self.layouts, &layers, false, pace)?)
    }

    /// Reads a file of a server's layer into a folder, piece by piece, and verifies its hash.
    fn read_file(
        &mut self,
        server: usize,
        file: &LayerFile,
        folder: &Path,
        files: &Files,
    ) -> Result<()> {
        let (mut failure, mut hasher, mut offset) = (None, blake3::Hasher::new(), 0);
        let written = files.create_file(folder.join(file.name()), |out: &mut dyn Write| {
            while offset < file.bytes {
                let piece = match self.read_piece(server, file, offset) {
                    Ok(piece) => piece,
                    Err(error) => {
                        failure = Some(error);
                        return Err(io::Error::other("the server does not send the file"));
                    }
                };
                hasher.update(&piece);
                out.write_all(&piece)?;
                offset += piece.len() as u64;
            }
            Ok(())
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        written.map_err(zillion_rows::Error::Device)?;
        if offset == file.bytes && hasher.finalize().to_hex().as_str() == file.blake3 {
            return Ok(());
        }
        let reason = format!(
            "server {} has sent a layer with other bytes than it has listed; publish again",
            self.links[server].server()
        );
        Err(Error::Argument { call: "write_layer", reason })
    }

    /// Reads a piece of a file, which has at least one byte.
    fn read_piece(&mut self, server: usize, file: &LayerFile, offset: u64) -> Result<Vec<u8>> {
        let step = self.order.step().0;
        let read = ReadLayer { file: file.clone(), offset };
        let link = &mut self.links[server];
        let frame = link.send(Op::ReadLayer, step, |body| write_json(body, &read))?;
        let piece = link.take(frame)?;
        match piece.is_empty() {
            false => Ok(piece),
            true => Err(Error::Argument {
                call: "write_layer",
                reason: format!(
                    "server {} has sent a file that is too short; publish again",
                    link.server()
                ),
            }),
        }
    }
}

/// Reads the epoch that a server has ended.
fn read_epoch(body: &[u8]) -> Result<u32> {
    Reader::new(body).u32().map_err(bad_answer("end_dirty_epoch"))
}
