//! The description of a version's features for programs that look up rows themselves.

use serde_json::{Map, Value, json};
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
    let mut described = Map::new();
    let mut say = |key: &str, value: Value| {
        described.insert(key.to_owned(), value);
    };
    say("name", json!(feature.name));
    if !feature.is_cross() {
        say("column", json!(feature.column));
    }
    if let Some(side) = &feature.side {
        let name = schema.sides.get(side.side).map(|s| &s.name);
        say("side", json!({ "table": name, "by": side.by }));
    }
    if let Some(table) = feature.table() {
        say("table", json!(schema.tables.get(table.index())));
        say("missing_key", json!(hex(FeatureKey::missing(&feature.name))));
    }
    match &feature.kind {
        FeatureKind::Id { raw, .. } => {
            say("kind", json!("id"));
            say("type", json!(raw));
        }
        FeatureKind::Ids { raw, pooling, .. } => {
            say("kind", json!("ids"));
            say("type", json!(raw));
            say("pooling", json!(pooling));
        }
        FeatureKind::Sequence { raw, max_len, pooling, .. } => {
            say("kind", json!("sequence"));
            say("type", json!(raw));
            say("pooling", json!(pooling));
            say("max_len", json!(max_len));
        }
        FeatureKind::Numeric { transform, missing } => {
            say("kind", json!("numeric"));
            say("transform", json!(transform));
            say("missing", json!(missing));
            if *transform == NumericTransform::Standardise {
                let known = statistics.columns.get(&feature.name);
                say("mean", json!(known.map(|c| c.mean)));
                say("std", json!(known.map(|c| c.std)));
            }
        }
        FeatureKind::Bucketized { buckets, .. } => {
            say("kind", json!("bucketized"));
            let boundaries = match buckets {
                Buckets::Boundaries(boundaries) => Some(boundaries.clone()),
                Buckets::Quantiles(_) => {
                    statistics.columns.get(&feature.name).and_then(|c| c.boundaries.clone())
                }
            };
            // The boundaries are written as 64-bit numbers, because values are compared with them
            // in 64 bits.
            let exact = boundaries.map(|b| b.into_iter().map(f64::from).collect::<Vec<_>>());
            say("boundaries", json!(exact));
        }
        FeatureKind::Cross { of, .. } => {
            say("kind", json!("cross"));
            let names = of.iter().filter_map(|&at| schema.features.get(at)).map(|f| &f.name);
            say("of", json!(names.collect::<Vec<_>>()));
        }
    }
    Value::Object(described)
}

/// Describes the side tables. The column of the data that holds their keys is part of the
/// description of the features that they fill.
pub(super) fn sides(schema: &Schema) -> Value {
    let side = |s: &zillion_feature::SideSpec| json!({ "name": s.name, "key_type": s.raw });
    schema.sides.iter().map(side).collect()
}
