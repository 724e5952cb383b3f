//! The description of a version's features, for programs that look up rows themselves.

use serde_json::{Value, json};
use zillion_feature::{
    Buckets, FeatureKey, FeatureKind, FeatureSpec, NumericTransform, Schema, Statistics,
};

use crate::ids::hex;

/// Returns a description of every feature: the source of its value, the transformation of the
/// value, and the table that holds its rows.
pub(super) fn features(schema: &Schema, statistics: &Statistics) -> Value {
    schema.features.iter().map(|f| feature(f, schema, statistics)).collect()
}

fn feature(feature: &FeatureSpec, schema: &Schema, statistics: &Statistics) -> Value {
    let mut parts = vec![json!({ "name": feature.name })];
    if !feature.is_cross() {
        parts.push(json!({ "column": feature.column }));
    }
    if let Some(time) = &feature.time {
        parts.push(json!({
            "derive": time.derive,
            "zone": time.zone,
            "time_unit": time.unit,
            "date_order": time.order,
        }));
    }
    if let Some(side) = &feature.side {
        let name = schema.sides.get(side.side).map(|s| &s.name);
        parts.push(json!({ "side": { "table": name, "by": side.by } }));
    }
    if let Some(table) = feature.table() {
        let table = schema.tables.get(table.index());
        let missing_key = hex(FeatureKey::missing(&feature.name));
        parts.push(json!({ "table": table, "missing_key": missing_key }));
    }
    let known = statistics.columns.get(&feature.name);
    let kind = match &feature.kind {
        FeatureKind::Id { raw, .. } => json!({ "kind": "id", "type": raw }),
        FeatureKind::Ids { raw, pooling, .. } => {
            json!({ "kind": "ids", "type": raw, "pooling": pooling })
        }
        FeatureKind::Sequence { raw, max_len, pooling, .. } => {
            json!({ "kind": "sequence", "type": raw, "pooling": pooling, "max_len": max_len })
        }
        FeatureKind::Numeric { transform, missing } => {
            if *transform == NumericTransform::Standardise {
                let (mean, std) = (known.map(|c| c.mean), known.map(|c| c.std));
                parts.push(json!({ "mean": mean, "std": std }));
            }
            json!({ "kind": "numeric", "transform": transform, "missing": missing })
        }
        FeatureKind::Vector { size, missing } => {
            json!({ "kind": "vector", "size": size, "missing": missing })
        }
        FeatureKind::Bucketized { buckets, .. } => {
            let boundaries = match buckets {
                Buckets::Boundaries(boundaries) => Some(boundaries.clone()),
                Buckets::Quantiles(_) => known.and_then(|c| c.boundaries.clone()),
            };
            // The boundaries are written as 64-bit numbers, because values are compared with them
            // in 64 bits.
            let exact = boundaries.map(|b| b.into_iter().map(f64::from).collect::<Vec<_>>());
            json!({ "kind": "bucketized", "boundaries": exact })
        }
        FeatureKind::Cross { of, .. } => {
            let names = of.iter().filter_map(|&at| schema.features.get(at)).map(|f| &f.name);
            json!({ "kind": "cross", "of": names.collect::<Vec<_>>() })
        }
    };
    parts.push(kind);
    parts
        .iter()
        .filter_map(Value::as_object)
        .flatten()
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

/// Describes the side tables. The description of the features that read a side table names the
/// column with its keys.
pub(super) fn sides(schema: &Schema) -> Value {
    let side = |s: &zillion_feature::SideSpec| json!({ "name": s.name, "key_type": s.raw });
    schema.sides.iter().map(side).collect()
}
