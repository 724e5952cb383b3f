//! The export of the rows of tables as Parquet.

use std::sync::Arc;

use anyhow::Result;
use serde_json::{Value, json};
use zillion_datatools::{KeyedIds, KeyedRows};
use zillion_device::Workers;
use zillion_feature::random::text_seed;
use zillion_feature::{FeatureKey, FeatureSpec, Schema};
use zillion_rows::layer::Unthrottled;
use zillion_rows::{InitializerSpec, SegmentSpec, TableSpec, Unknown};

use super::Export;
use crate::bar::Bar;
use crate::ids::IdKind;

impl Export<'_> {
    /// Writes every table. Each key that the chain of versions still has is written with its newest
    /// values.
    pub(super) fn write_rows(&mut self, workers: &Arc<Workers>) -> Result<()> {
        let source = self.cache.rows(&self.model, &self.chain, workers, &mut Unthrottled)?;
        self.files.create_dir(self.output.join("rows"))?;
        let version = self.version.clone();
        let mut tables = Vec::with_capacity(version.frame.tables.len());
        for (index, table) in version.frame.tables.iter().enumerate() {
            let ids = Ids::of(&self.schema, &table.name);
            let spec = self.spec(table, &ids);
            let path = format!("rows/{}.parquet", table.name);
            let target = self.output.join(&path);
            // The sum is an upper bound, because a key that several layers hold is counted in each
            // of them.
            let most = source.layers().iter().map(|layer| layer.rows(index)).sum();
            let mut bar = Bar::new(&table.name, most, "rows");
            let rows = source.whole_rows_of(index).map(|(key, row)| (key, row.weights, row.count));
            let written = spec.write(&target, &self.files, rows, |seen| bar.update(seen))?;
            drop(bar);
            let bytes = std::fs::metadata(&target)?.len();
            self.record(&path, "rows", bytes, json!({ "table": table.name, "rows": written }));
            tables.push(json!({
                "name": table.name,
                "path": path,
                "rows": written,
                "segments": table.segments.iter().map(|s| json!({
                    "name": s.name, "dim": s.dim, "column": s.name,
                })).collect::<Vec<_>>(),
                "ids": ids.what,
                "no_ids_because": ids.reason,
                "unknown": unknown(table),
            }));
        }
        self.tables = Some(Value::Array(tables));
        Ok(())
    }

    fn spec(&self, table: &TableSpec, ids: &Ids) -> KeyedRows {
        let mut metadata = self.metadata();
        let dims: Vec<String> =
            table.segments.iter().map(|s| format!("{}:{}", s.name, s.dim)).collect();
        let entries = [
            ("table", Some(table.name.clone())),
            ("dim", Some(dims.join(","))),
            ("ids", Some(ids.what.to_owned())),
            ("no_ids_because", ids.reason.clone()),
            ("unknown", Some(unknown(table).to_string())),
        ];
        let entries = entries.into_iter().filter_map(|(key, value)| Some((key, value?)));
        metadata.extend(entries.map(|(key, value)| (format!("zillion.{key}"), value)));
        KeyedRows {
            segments: table.segments.iter().map(|s| (s.name.clone(), s.dim)).collect(),
            ids: ids.column,
            missing: of_table(&self.schema, &table.name)
                .map(|f| (FeatureKey::missing(&f.name), f.name.clone()))
                .collect(),
            metadata,
        }
    }
}

/// Describes the row that an unknown key reads, so that a program can compute it. If all unknown
/// keys read the same row, the description contains this row.
fn unknown(table: &TableSpec) -> Value {
    let same = |s: &SegmentSpec| match (table.unknown, s.initializer) {
        (Unknown::Zero, _) => Some(vec![0.0; s.dim]),
        (Unknown::Seeded, InitializerSpec::Constant { value }) => Some(vec![value; s.dim]),
        (Unknown::Seeded, _) => None,
    };
    let segments = table.segments.iter().map(|s| {
        let row = same(s);
        // A program computes the row from the seed of the segment, the key and the distribution.
        match row {
            Some(row) => json!({ "name": s.name, "row": row, "initializer": null }),
            None => json!({
                "name": s.name,
                "row": null,
                "initializer": s.initializer,
                "seed": format!("{:#x}", text_seed(table.seed, &s.name)),
                "bounds": s.bounds,
            }),
        }
    });
    json!({
        "kind": table.unknown,
        "seed": table.seed,
        "segments": segments.collect::<Vec<_>>(),
    })
}

/// Returns the features that read a table.
fn of_table<'a>(schema: &'a Schema, table: &'a str) -> impl Iterator<Item = &'a FeatureSpec> {
    schema.sparse().filter(move |f| {
        f.table().and_then(|t| schema.tables.get(t.index())).is_some_and(|name| name == table)
    })
}

/// The ids from which the keys of a table were made.
struct Ids {
    /// The kind of the ids: `i64`, `u64`, `bucket` or `none`.
    what: &'static str,
    column: Option<KeyedIds>,
    reason: Option<String>,
}

impl Ids {
    fn of(schema: &Schema, table: &str) -> Self {
        let mut kinds: Vec<(IdKind, &str)> = Vec::new();
        for feature in of_table(schema, table) {
            let Some(kind) = IdKind::of(&feature.kind) else { continue };
            if kinds.iter().all(|(known, _)| *known != kind) {
                kinds.push((kind, &feature.name));
            }
        }
        let ids =
            |kind: IdKind, column| Self { what: kind.name(), column: Some(column), reason: None };
        let none = |reason: String| Self { what: "none", column: None, reason: Some(reason) };
        match kinds[..] {
            [(IdKind::Signed, _)] => ids(IdKind::Signed, KeyedIds::Signed),
            [(kind @ (IdKind::Unsigned | IdKind::Bucket), _)] => ids(kind, KeyedIds::Unsigned),
            [(IdKind::Text, _)] => {
                none("keys are hashes of texts, which cannot be recovered from them".to_owned())
            }
            [(IdKind::Cross, _)] => none(
                "keys are hashes of combinations, which cannot be recovered from them".to_owned(),
            ),
            [] => none("no feature reads the table".to_owned()),
            _ => {
                let list: Vec<String> =
                    kinds.iter().map(|(kind, name)| format!("`{name}` {}", kind.name())).collect();
                none(format!(
                    "features of several kinds share the table, and a key does not tell its feature: {}",
                    list.join(", ")
                ))
            }
        }
    }
}
