//! The chain of a checkpoint. Each checkpoint in it holds the changes since its parent, and the
//! last checkpoint is whole.
//!
//! # Invariants
//! * A manifest names its parent by folder and by the BLAKE3 in the first line of the parent's
//!   manifest. A manifest has the hash of every file. So a chain is refused if a checkpoint is
//!   missing, if another checkpoint is in the parent's place, or if a file has changed in any of
//!   its folders.
//! * A parent was written before its child, has fewer steps, and lies beside it.

use std::path::{Component, Path, PathBuf};

use zillion_ps::CheckpointMark;

use super::{MANIFEST, Manifest, Parent};
use crate::error::{Error, Result};

/// A reference to a checkpoint of this run that can be the parent of the next one.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// The folder and the hash of the checkpoint. The manifest of the next checkpoint stores them.
    pub(crate) parent: Parent,
    /// The mark of the checkpoint in the tables.
    pub(crate) mark: CheckpointMark,
    /// The number of checkpoints below this one in its chain.
    pub(crate) behind: usize,
}

impl Link {
    /// Makes the link to the checkpoint in a folder, whose manifest has the hash `blake3`.
    pub(crate) fn new(folder: &Path, blake3: String, mark: CheckpointMark, behind: usize) -> Self {
        let folder = folder.file_name().map(|name| name.to_string_lossy().into_owned());
        Self { parent: Parent { folder: folder.unwrap_or_default(), blake3 }, mark, behind }
    }
}

/// Reads the manifest in a folder, and returns the parent that it names. Returns `None` if the
/// checkpoint is whole.
pub(super) fn read_parent(folder: &Path) -> Result<Option<Parent>> {
    Manifest::read(&folder.join(MANIFEST)).map(|(manifest, _)| manifest.parent)
}

/// Follows the chain below a checkpoint. Adds the folders with the unchanged rows to the entries of
/// its tables. Returns the number of checkpoints below it.
pub(super) fn resolve(path: &Path, manifest: &mut Manifest) -> Result<usize> {
    let mut chain: Vec<(PathBuf, Manifest)> = Vec::new();
    let (mut child, mut step, mut next) = (path.to_owned(), manifest.step, manifest.parent.clone());
    while let Some(parent) = next {
        let (folder, found) = open_parent(&child, step, &parent)?;
        (child, step, next) = (folder.clone(), found.step, found.parent.clone());
        chain.push((folder, found));
    }
    let behind = chain.len();
    // The chain is resolved from the whole checkpoint to the newest one.
    while let Some((folder, below)) = chain.pop() {
        let above = chain.last_mut().map_or(&mut *manifest, |(_, above)| above);
        for table in &mut above.tables {
            if let Some(below) = below.tables.iter().find(|below| below.table == table.table) {
                table.stand_on(&folder, below);
            }
        }
    }
    Ok(behind)
}

/// Opens the manifest of a checkpoint's parent. Returns it with the parent's folder.
fn open_parent(child: &Path, step: u64, parent: &Parent) -> Result<(PathBuf, Manifest)> {
    let refused = |problem: String| Err(Error::Checkpoint { path: child.join(MANIFEST), problem });
    let name = &parent.folder;
    let mut parts = Path::new(name).components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
        return refused(format!("its parent `{name}` is not the name of a folder beside it"));
    }
    // The real path is used, so that a link to a checkpoint, or to its folder, leads to the
    // checkpoints beside it.
    let real = std::fs::canonicalize(child)
        .map_err(Error::io("cannot find the folder of the checkpoint", child))?;
    let folder = real.with_file_name(name);
    if !folder.join(MANIFEST).exists() {
        return refused(format!(
            "it holds the changes since the checkpoint `{name}`, which is not beside it; put that folder back (a \
             copy needs both folders)"
        ));
    }
    let (manifest, blake3) = Manifest::read(&folder.join(MANIFEST))?;
    if blake3 != parent.blake3 {
        return refused(format!(
            "it holds the changes since a checkpoint `{name}` whose manifest has the BLAKE3 {}, and the one beside it \
             has {blake3}: another checkpoint is in its place",
            parent.blake3
        ));
    }
    if manifest.step >= step {
        return refused(format!(
            "it has the step {step}, but its parent `{name}` has the step {}, which must be lower",
            manifest.step
        ));
    }
    Ok((folder, manifest))
}
