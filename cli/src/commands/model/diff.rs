//! `zillion model diff`: compares two versions of a model.

use std::sync::Arc;

use anyhow::Result;
use serde_json::json;
use zillion_console::{print_json, print_line};
use zillion_registry::{VersionId, VersionManifest};

use crate::args::DiffArgs;
use crate::registry::open_model;

pub(super) fn run(args: &DiffArgs) -> Result<()> {
    let model = open_model(&args.model)?;
    let (from, to) = (model.chain(args.from)?, model.chain(args.to)?);
    let shared = from.iter().zip(&to).take_while(|(a, b)| a.chain == b.chain).count();
    let last = |chain: &[Arc<VersionManifest>]| chain.last().cloned();
    let (Some(old), Some(new)) = (last(&from), last(&to)) else { return Ok(()) };
    let keys = |chain: &[Arc<VersionManifest>]| -> (u64, u64) {
        let layers = chain.iter().map(|version| (version.layer.rows(), version.layer.tombstones()));
        layers.fold((0, 0), |(rows, gone), (keys, removed)| {
            (rows + keys.saturating_sub(removed), gone + removed)
        })
    };
    let undone: Vec<VersionId> = from[shared..].iter().map(|v| v.version).collect();
    let added: Vec<VersionId> = to[shared..].iter().map(|v| v.version).collect();
    let (written, gone) = keys(&to[shared..]);
    let metrics: Vec<_> = new
        .origin
        .metrics
        .iter()
        .map(|(name, value)| (name, old.origin.metrics.get(name).copied(), *value))
        .collect();
    if args.json {
        return print_json(&json!({
            "from": args.from,
            "to": args.to,
            "common": shared.checked_sub(1).map(|at| from[at].version),
            "only_in_from": undone,
            "only_in_to": added,
            "rows_written": written,
            "tombstones": gone,
            "dense_differs": old.dense != new.dense,
            "graph_differs": old.frame.graph != new.frame.graph,
            "schema_differs": old.frame.schema_hash != new.frame.schema_hash,
            "metrics": metrics,
        }));
    }
    match shared.checked_sub(1) {
        Some(at) => print_line(&format!("both build on version {}", from[at].version)),
        None => print_line("the versions have no version in common"),
    }
    let numbers = |versions: &[VersionId]| {
        versions.iter().map(VersionId::to_string).collect::<Vec<_>>().join(", ")
    };
    if !undone.is_empty() {
        print_line(&format!("only in {}: versions {}", args.from, numbers(&undone)));
    }
    if !added.is_empty() {
        let versions = numbers(&added);
        print_line(&format!(
            "only in {}: versions {versions}: {written} rows, {gone} tombstones",
            args.to
        ));
    }
    for (what, differs) in [
        ("dense parameters", old.dense != new.dense),
        ("graph", old.frame.graph != new.frame.graph),
        ("schema", old.frame.schema_hash != new.frame.schema_hash),
    ] {
        print_line(&format!("{what}: {}", if differs { "different" } else { "the same" }));
    }
    for (name, before, after) in metrics {
        let before = before.map_or("-".to_owned(), |value| format!("{value:.5}"));
        print_line(&format!("{name}: {before} -> {after:.5}"));
    }
    Ok(())
}
