//! The layers of new versions: which rows they have, and where their files are written.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::Files;
use zillion_ps::{LayerTarget, Publishing, Since};
use zillion_registry::{Cache, Error as RegistryError, VersionManifest};
use zillion_rows::layer::{Layer, LayerManifest, Unthrottled, difference};
use zillion_rows::{TableLayout, TableSpec};
use zillion_store::Location;

use super::Publisher;
use crate::error::{Error, Result};

/// The layer of a new version.
pub(super) struct Rows {
    pub(super) layer: LayerManifest,
    /// The folder of the layer's files, or `None` if the registry has them already.
    pub(super) folder: Option<PathBuf>,
    /// Whether the layer has all rows.
    pub(super) is_base: bool,
}

impl Publisher {
    /// Writes the layer of a version that continues `chain`, in one of the ways that the
    /// documentation of [`publish`](super::super) describes.
    pub(super) fn rows(
        &self,
        chain: Option<&[Arc<VersionManifest>]>,
        rows: &mut dyn Publishing,
    ) -> Result<Rows> {
        let folder = self.layer_folder();
        let here = |layer, is_base| Rows { layer, folder: Some(self.layer_folder()), is_base };
        let parent = chain.and_then(|chain| Some((chain, chain.last()?)));
        if let Some((_, parent)) = parent {
            let known = self.known.iter().rev().find(|(version, _)| *version == parent.version);
            if let Some(&(_, epoch)) = known
                && let Some(layer) = rows.write_layer(Since::Epoch(epoch), &folder, &self.files)?
            {
                return Ok(here(layer, false));
            }
        }
        // Servers do not compare their rows with the parent, because a comparison here would need
        // the rows of all servers on this machine.
        if let Some(layer) = rows.write_base(&self.target()?)? {
            return Ok(Rows { layer, folder: None, is_base: true });
        }
        let Some((chain, _)) = parent else {
            return Ok(here(write_base(rows, &folder, &self.files)?, true));
        };
        let whole = self.folder.join("whole");
        self.files.create_dir(&whole)?;
        let layouts: Vec<TableLayout> = self.tables.iter().map(TableSpec::layout).collect();
        let all = write_base(rows, &whole, &self.files)?;
        let new = Layer::open(whole.as_path(), &all, &layouts)?;
        let mut cache =
            Cache::open(&self.folder.join("cache"), self.model.name(), self.files.clone())?;
        let old = cache.rows(&self.model, chain, &self.workers, &mut Unthrottled)?;
        let old: Vec<&Layer> = old.layers().iter().collect();
        let changes = difference(&self.files, &folder, &layouts, &old, &new, &mut Unthrottled)?;
        Ok(here(changes, false))
    }

    /// Returns the place of the files of a layer in the registry.
    fn target(&self) -> Result<LayerTarget> {
        let url = self.model.url();
        let registry = match Location::parse(url).map_err(RegistryError::from)? {
            Location::Bucket { .. } => url.to_owned(),
            Location::Folder(path) => {
                let absolute = std::path::absolute(&path);
                let absolute = absolute.map_err(Error::io("cannot resolve the path", &path))?;
                absolute.to_string_lossy().into_owned()
            }
        };
        Ok(LayerTarget { registry, folder: self.model.files_folder() })
    }
}

/// Writes all rows into the layer of a base, below `folder`.
fn write_base(rows: &mut dyn Publishing, folder: &Path, files: &Files) -> Result<LayerManifest> {
    let layer = rows.write_layer(Since::Base, folder, files)?;
    layer.ok_or_else(|| {
        Error::Unsupported(
            "the parameter service did not write a base; publish from a checkpoint instead"
                .to_owned(),
        )
    })
}
