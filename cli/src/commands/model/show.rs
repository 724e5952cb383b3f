//! `zillion model show`: shows a version, or the moves of a pointer.

use anyhow::Result;
use serde_json::Value;
use zillion_console::{print_json, print_line};
use zillion_registry::VersionManifest;
use zillion_rows::layer::LayerManifest;
use zillion_scorer::published_dense;

use super::describe::{format_move, format_pointers, format_version};
use crate::args::ShowArgs;
use crate::registry::{newest_version, open_model};

/// The maximum number of pointer moves that the command shows.
const SHOWN_MOVES: usize = 20;

pub(super) fn run(args: &ShowArgs) -> Result<()> {
    let model = open_model(&args.model)?;
    if let Some(pointer) = &args.pointer {
        // A pointer that was never set is an error; an empty log would hide a misspelt name.
        model.pointer(pointer)?;
        let moves = model.moves(pointer, None, SHOWN_MOVES)?;
        if args.json {
            return print_json(&moves);
        }
        moves.iter().for_each(|entry| print_line(&format_move(entry)));
        return Ok(());
    }
    let version = newest_version(&model, args.number.or(args.version))?;
    let manifest = model.version(version)?;
    if args.json {
        return print_json(&describe_whole(&manifest, &model.layer(&manifest)?)?);
    }
    print_line(&format_version(&manifest));
    print_line(&format!("chain      {}", manifest.chain));
    let parent = manifest
        .parent
        .as_ref()
        .map_or("none: a base".to_owned(), |link| format!("version {}", link.version));
    print_line(&format!("parent     {parent}"));
    let origin = &manifest.origin;
    print_line(&format!(
        "origin     run {}, step {}, epoch {}",
        origin.run, origin.step, origin.cursor.epoch
    ));
    for (name, value) in &origin.metrics {
        print_line(&format!("metric     {name} {value:.5}"));
    }
    let layer = model.layer(&manifest)?;
    for table in &layer.tables {
        print_line(&format!(
            "table      {}: {} {} rows, {} tombstones, {} parts, {} bytes",
            table.table,
            table.rows - table.tombstones,
            table.row_type.name(),
            table.tombstones,
            table.all_parts().count(),
            table.all_parts().map(|part| part.file.bytes).sum::<u64>()
        ));
    }
    match manifest.frame.settings.onnx {
        true => print_line(&format!("dense      an ONNX model of {} bytes", manifest.dense.bytes)),
        false => print_line(&format!("dense      layers in {}", published_dense(&manifest))),
    }
    let clamped: u64 = layer.tables.iter().map(|table| table.clamped).sum();
    if clamped > 0 {
        print_line(&format!("clamped    {clamped} weights beyond 65504, the largest f16"));
    }
    if let Some(sparsity) = layer.sparsity() {
        print_line(&format!("zeros      {sparsity}"));
    }
    let files = manifest.files();
    let bytes: u64 = files.iter().map(|(_, file)| file.bytes).sum();
    print_line(&format!("files      {}, {bytes} bytes", files.len()));
    print_line(&format_pointers(&model)?);
    Ok(())
}

/// Returns a manifest as JSON with the contents of its frame and the list of its layer, whether the
/// manifest has them or names them.
fn describe_whole(manifest: &VersionManifest, layer: &LayerManifest) -> Result<Value> {
    let mut whole = serde_json::to_value(manifest)?;
    if let (Some(whole), Value::Object(frame)) =
        (whole.as_object_mut(), serde_json::to_value(&*manifest.frame)?)
    {
        whole.extend(frame);
        whole.insert("layer".to_owned(), serde_json::to_value(layer)?);
    }
    Ok(whole)
}
