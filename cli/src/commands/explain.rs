//! `zillion explain`: the version that wrote a key's row last, and the values of the row.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Result, bail};
use serde_json::json;
use zillion_console::{durable_files, print_json};
use zillion_device::Workers;
use zillion_feature::{FeatureKey, FeatureKind, RawType, Schema};
use zillion_registry::{Cache, STABLE, VersionManifest};
use zillion_rows::TableSpec;
use zillion_rows::layer::{Found, LayerSource, Unthrottled};

use crate::args::{ExplainArgs, KeyType};
use crate::registry::{cache_folder, open_model};

pub(crate) fn run(args: &ExplainArgs) -> Result<()> {
    let model = open_model(&args.model)?;
    let version = match args.number.or(args.version) {
        Some(version) => version,
        None => model.pointer(STABLE)?.to.version,
    };
    let folder = cache_folder(args.cache.as_ref(), &args.model.registry)?;
    let mut cache = Cache::open(&folder, model.name(), durable_files()?)?;
    let chain = cache.chain(&model, version)?;
    let Some(newest) = chain.last() else { bail!("version {version} has no chain") };
    let Some(table) = newest.tables.iter().position(|t| t.name == args.table) else {
        let names: Vec<&str> = newest.tables.iter().map(|t| t.name.as_str()).collect();
        bail!("unknown table `{}` (the model has: {})", args.table, names.join(", "));
    };
    let key = key(args, newest)?;
    // The entries of the key in all layers, the newest first. The first entry is the one that
    // a lookup returns.
    let mut entries = Vec::new();
    let defaults = default_rows(&newest.tables)?;
    for link in chain.iter().rev() {
        let layer = cache.layer(&model, link, &mut Unthrottled)?;
        match layer.find(table, key) {
            Some(Found::Row(row)) => {
                // The values that a narrow row lacks are those of its initial row.
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
        "key": format!("{:#018x}", key.0),
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
    if args.json {
        return print_json(&answer);
    }
    show(&answer);
    Ok(())
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

/// Returns a source without layers, which answers every key with its default row.
fn default_rows(tables: &[TableSpec]) -> Result<LayerSource> {
    let workers = Arc::new(Workers::new(NonZeroUsize::MIN)?);
    Ok(LayerSource::new(tables, Vec::new(), workers)?)
}

/// Returns the key of an id, converted by the type of the features that read the table.
fn key(args: &ExplainArgs, version: &VersionManifest) -> Result<FeatureKey> {
    let text = args.key.as_str();
    let number = |what: &str| format!("--key {text} is not {what}; give its type with --key-type");
    let kind = match args.key_type {
        Some(kind) => kind,
        None => {
            let schema = Schema::from_job(&version.schema)?;
            let of_table = |f: &&zillion_feature::FeatureSpec| {
                f.table().is_some_and(|t| schema.tables[t.index()] == args.table)
            };
            match schema.features.iter().find(of_table).map(|f| &f.kind) {
                Some(
                    FeatureKind::Id { raw, .. }
                    | FeatureKind::Ids { raw, .. }
                    | FeatureKind::Sequence { raw, .. },
                ) => match raw {
                    RawType::I64 => KeyType::I64,
                    RawType::U64 => KeyType::U64,
                    RawType::String => KeyType::String,
                },
                // The ids of buckets are their numbers.
                Some(FeatureKind::Bucketized { .. }) => KeyType::U64,
                _ => KeyType::Hash,
            }
        }
    };
    Ok(match kind {
        KeyType::I64 => match text.parse() {
            Ok(id) => FeatureKey::from_i64(id),
            Err(_) => bail!(number("a whole number")),
        },
        KeyType::U64 => match text.parse() {
            Ok(id) => FeatureKey::from_u64(id),
            Err(_) => bail!(number("a whole number from 0 on")),
        },
        KeyType::String => FeatureKey::from_text(text),
        KeyType::Hash => match u64::from_str_radix(text.trim_start_matches("0x"), 16) {
            Ok(key) => FeatureKey(key),
            Err(_) => bail!(number("a key in hexadecimal")),
        },
    })
}
