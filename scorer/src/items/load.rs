//! The items of a version, from the files of its chain.
//!
//! The items of a version are a whole file, or a difference to the file of an earlier version of
//! its chain. A difference names that file by its hash, so that a chain of differences can have no
//! circle and cannot be applied to other items.

use std::sync::Arc;

use bytes::Bytes;
use zillion_registry::{ITEM_DELTA, VersionFile, VersionManifest};
use zillion_rows::layer::Throttle;

use super::{ItemDelta, ItemVectors, refuse};
use crate::error::Result;

/// Items that are in memory, with the file that a version has of them.
pub type LoadedItems<'a> = (&'a VersionFile, &'a ItemVectors);

/// Loads the items of the last version of `chain` from its file `file`. `loaded` are items that are
/// in memory, from which differences may begin, and `read` reads a file of the registry.
///
/// # Errors
/// Returns an error if a file is missing or damaged, if a difference names a file that no version
/// of the chain has, or if the items are not those that were published.
pub fn load_items(
    file: &VersionFile,
    chain: &[Arc<VersionManifest>],
    loaded: &[LoadedItems<'_>],
    read: &mut dyn FnMut(&VersionFile, &mut dyn Throttle) -> Result<Bytes>,
    pace: &mut dyn Throttle,
) -> Result<ItemVectors> {
    let mut deltas: Vec<ItemDelta> = Vec::new();
    let (mut earlier, mut file) = (chain, file);
    let (mut items, mut begin) = (None, None);
    loop {
        let known = loaded.iter().find(|(known, _)| *known == file);
        if let (Some((_, loaded)), false) = (known, deltas.is_empty()) {
            begin = Some(*loaded);
            break;
        }
        let bytes = read(file, pace)?;
        if file.kind != ITEM_DELTA {
            items = Some(ItemVectors::from_bytes(&bytes, pace)?);
            break;
        }
        let delta = ItemDelta::from_bytes(&bytes, pace)?;
        (earlier, file) = find_parent(&delta, earlier)?;
        deltas.push(delta);
    }
    for delta in deltas.iter().rev() {
        if let Some(from) = items.as_ref().or(begin) {
            items = Some(delta.apply(from, pace)?);
        }
    }
    items.map_or_else(|| refuse("there are none".to_owned()), Ok)
}

/// Returns the file to which a difference of the last version of `chain` is applied, and the chain
/// up to a version that has the file. Each call returns a shorter chain, so that a loop ends.
fn find_parent<'a>(
    delta: &ItemDelta,
    chain: &'a [Arc<VersionManifest>],
) -> Result<(&'a [Arc<VersionManifest>], &'a VersionFile)> {
    let before = chain.len().saturating_sub(1);
    for at in (0..before).rev() {
        if let Some(items) = &chain[at].items
            && items.blake3 == delta.parent()
        {
            return Ok((&chain[..=at], items));
        }
    }
    refuse(
        "their difference is to a file that no earlier version of the chain has; publish a base"
            .to_owned(),
    )
}
