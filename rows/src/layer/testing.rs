//! Helpers of the tests of layers whose files somebody has changed.

use std::path::Path;

use super::{LayerManifest, Unthrottled, verify_layer};
use crate::layout::TableLayout;

/// Changes the first part of a layer, and returns the manifest that names the changed file.
pub(super) fn change_part(
    folder: &Path,
    manifest: &LayerManifest,
    change: impl Fn(&mut Vec<u8>),
) -> LayerManifest {
    let mut changed = manifest.clone();
    let file = &mut changed.tables[0].parts[0].file;
    let mut bytes = std::fs::read(folder.join(file.name())).unwrap();
    change(&mut bytes);
    file.blake3 = blake3::hash(&bytes).to_hex().to_string();
    file.bytes = bytes.len() as u64;
    std::fs::write(folder.join(file.name()), &bytes).unwrap();
    changed
}

/// Verifies a layer, and returns the problem, or an empty text if there is none.
pub(super) fn verify(folder: &Path, manifest: &LayerManifest, layout: TableLayout) -> String {
    let verified = verify_layer(folder, manifest, &[layout], &mut Unthrottled);
    verified.err().map_or_else(String::new, |error| error.to_string())
}
