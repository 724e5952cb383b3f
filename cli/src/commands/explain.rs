//! `zillion explain`: shows which version wrote a key's row last, and the values of the row.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde_json::json;
use zillion_console::{durable_files, print_result};
use zillion_device::Workers;
use zillion_feature::{FeatureKey, FeatureSpec, Schema};
use zillion_registry::{Cache, STABLE, VersionManifest};

use zillion_rows::layer::{Found, LayerSource, Unthrottled};

use crate::args::{ExplainArgs, KeyType};
use crate::ids::{IdKind, hex};
use crate::registry::{cache_folder, open_model, pointed_version};

pub(crate) fn run(args: &ExplainArgs) -> Result<()> {
    let model = open_model(&args.model)?;
    let version = pointed_version(&model, args.number.or(args.version), STABLE)?;
    let folder = cache_folder(args.cache.as_ref(), &args.model.registry)?;
    let mut cache = Cache::open(&folder, model.name(), durable_files()?)?;
    let chain = cache.chain(&model, version)?;
    let Some(newest) = chain.last() else {
        bail!(
            "version {version} has no chain of versions, which is a defect; publish the version \
             again"
        )
    };
    let Some(table) = newest.frame.tables.iter().position(|t| t.name == args.table) else {
        let names: Vec<&str> = newest.frame.tables.iter().map(|t| t.name.as_str()).collect();
        bail!(
            "unknown table `{}` (the model has: {}); name one of its tables",
            args.table,
            names.join(", ")
        );
    };
    let key = make_key(args, newest)?;
    // The entries of the key in all layers, the newest first. The first entry is the one that
    // a lookup returns.
    let mut entries = Vec::new();
    // A source without layers answers every key with its default row.
    let workers = Arc::new(Workers::new(NonZeroUsize::MIN)?);
    let defaults = LayerSource::new(&newest.frame.tables, Vec::new(), workers)?;
    for link in chain.iter().rev() {
        let layer = cache.layer(&model, link, &mut Unthrottled)?;
        match layer.find(table, key) {
            Some(Found::Row(row)) => {
                // The values that a narrow row lacks are taken from its initial row.
                entries.push(json!({
                    "version": link.version, "count": row.count, "values": defaults.whole(table, key, row),
                }));
            }
            Some(Found::Tombstone) => {
                entries.push(json!({ "version": link.version, "tombstone": true }))
            }
            None => {}
        }
    }
    let is_default = entries.first().is_none_or(|newest| newest.get("tombstone").is_some());
    let values = match is_default {
        true => json!(defaults.default_row(table, key)),
        false => entries[0]["values"].clone(),
    };
    let answer = json!({
        "version": version,
        "table": args.table,
        "key": hex(key),
        "slot": key.slot(),
        "is_default": is_default,
        "written_by": if is_default { None } else { Some(&entries[0]["version"]) },
        "count": if is_default { None } else { Some(&entries[0]["count"]) },
        "values": values,
        "layers": entries.iter().map(|layer| json!({
            "version": layer["version"],
            "tombstone": layer.get("tombstone").is_some(),
        })).collect::<Vec<_>>(),
    });
    print_result(args.json, &answer, show)
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(answer: &serde_json::Value) {
    println!("key      {}, slot {}", answer["key"].as_str().unwrap_or_default(), answer["slot"]);
    if answer["is_default"] == true {
        println!(
            "answer   the default row: no layer has the key, or the newest entry is a tombstone"
        );
    } else {
        println!("written  by version {}, pushed {} times", answer["written_by"], answer["count"]);
    }
    println!("values   {}", answer["values"]);
    println!("layers   {}", answer["layers"]);
}

/// Returns the key of an id. The kind of the features that read the table determines the
/// conversion.
fn make_key(args: &ExplainArgs, version: &VersionManifest) -> Result<FeatureKey> {
    let text = args.key.as_str();
    let kind = match args.key_type {
        Some(KeyType::I64) => Some(IdKind::Signed),
        Some(KeyType::U64) => Some(IdKind::Unsigned),
        Some(KeyType::String) => Some(IdKind::Text),
        Some(KeyType::Hash) => None,
        None => {
            let schema = Schema::from_job(&version.frame.schema)?;
            let reads_table = |f: &&FeatureSpec| {
                f.table().is_some_and(|t| schema.tables[t.index()] == args.table)
            };
            schema.features.iter().find(reads_table).and_then(|f| IdKind::of(&f.kind))
        }
    };
    let hash = || u64::from_str_radix(text.trim_start_matches("0x"), 16).ok().map(FeatureKey);
    let (key, form) = match kind {
        Some(IdKind::Signed) => (IdKind::Signed.make_key(text), "a whole number"),
        None | Some(IdKind::Cross) => (hash(), "a key in hexadecimal"),
        Some(kind) => (kind.make_key(text), "a whole number from 0 on"),
    };
    key.with_context(|| {
        format!(
            "--key {text} is not {form}; give its type with --key-type (i64, u64, string or hash)"
        )
    })
}
