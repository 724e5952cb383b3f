//! What one column of the data becomes: the bridge from a schema to decoding.

use zillion_feature::{
    Bucketizer, FeatureKey, FeatureKind, FeatureSpec, NumericMap, RawType, Schema, Statistics,
};

use crate::error::Result;
use crate::value::Transform;

/// One use of one column of the data. Two features that read the same column are two fields.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// For messages: "feature `user`", "label `click`", "`columns.weight`".
    pub(crate) used_by: String,
    /// Column of the data.
    pub(crate) column: String,
    pub(crate) role: Role,
    /// Where it goes.
    pub(crate) slot: Slot,
}

/// How a value is decoded.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// One id a row.
    Id { raw: RawType, missing: FeatureKey },
    /// Any number of ids a row.
    Ids { raw: RawType },
    /// A number, transformed.
    Numeric { map: Transform, missing: Option<f32> },
    /// A number, as the key of its bucket.
    Bucket { buckets: Bucketizer, missing: FeatureKey },
    /// A number as it stands, left out where missing: what statistics are made of.
    Present,
    /// 0 or 1. `optional`: a row without it is masked instead of refused.
    Label { optional: bool },
    /// Finite and not negative.
    Weight,
    /// Anything that can be compared for equality.
    Group,
    /// An integer, or a date or timestamp in its own unit.
    EventTime,
}

/// Where a decoded column goes in a [`Batch`](zillion_feature::Batch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Sparse(usize),
    Numeric(usize),
    Label(usize),
    Weight,
    Group,
    EventTime,
    /// Not part of a batch.
    Pass,
}

impl Slot {
    /// Whether a source for prediction may lack it.
    pub(crate) fn only_training_needs_it(self) -> bool {
        matches!(self, Self::Label(_) | Self::Weight | Self::Group | Self::EventTime)
    }
}

/// The fields of a schema before its statistics are known: what files are checked against. Whatever
/// needs statistics stands as [`Role::Present`], which accepts the same columns.
pub(crate) fn unresolved(schema: &Schema) -> Result<Vec<Field>> {
    build(schema, |feature| match feature.needs_statistics() {
        true => Ok(Role::Present),
        false => role(feature, &Statistics::default()),
    })
}

/// The fields of a schema with every transform resolved.
pub(crate) fn resolved(schema: &Schema, statistics: &Statistics) -> Result<Vec<Field>> {
    build(schema, |feature| role(feature, statistics))
}

/// The same for some features only.
pub(crate) fn resolved_where(
    schema: &Schema,
    statistics: &Statistics,
    wanted: impl Fn(&FeatureSpec) -> bool,
) -> Result<Vec<Field>> {
    let all = build(schema, |feature| match wanted(feature) {
        true => role(feature, statistics),
        false => Ok(Role::Present),
    })?;
    // Features come first and in order, so that each field meets its feature.
    let pairs = all.into_iter().zip(&schema.features);
    Ok(pairs.filter(|(_, feature)| wanted(feature)).map(|(field, _)| field).collect())
}

fn build(schema: &Schema, role_of: impl Fn(&FeatureSpec) -> Result<Role>) -> Result<Vec<Field>> {
    let mut fields = Vec::new();
    let (mut sparse, mut numeric) = (0, 0);
    for feature in &schema.features {
        let slot = if feature.table().is_some() {
            sparse += 1;
            Slot::Sparse(sparse - 1)
        } else {
            numeric += 1;
            Slot::Numeric(numeric - 1)
        };
        fields.push(Field {
            used_by: format!("feature `{}`", feature.name),
            column: feature.column.clone(),
            role: role_of(feature)?,
            slot,
        });
    }
    for (index, label) in schema.labels.iter().enumerate() {
        fields.push(Field {
            used_by: format!("label `{}`", label.name),
            column: label.column.clone(),
            role: Role::Label { optional: schema.labels.len() > 1 },
            slot: Slot::Label(index),
        });
    }
    for (key, column, role, slot) in [
        ("weight", &schema.weight, Role::Weight, Slot::Weight),
        ("group", &schema.group, Role::Group, Slot::Group),
        ("event_time", &schema.event_time, Role::EventTime, Slot::EventTime),
    ] {
        if let Some(column) = column {
            let used_by = format!("`columns.{key}`");
            fields.push(Field { used_by, column: column.clone(), role, slot });
        }
    }
    Ok(fields)
}

fn role(feature: &FeatureSpec, statistics: &Statistics) -> Result<Role> {
    Ok(match feature.kind {
        FeatureKind::Id { raw, .. } => {
            Role::Id { raw, missing: FeatureKey::missing(&feature.name) }
        }
        FeatureKind::Ids { raw, .. } => Role::Ids { raw },
        FeatureKind::Numeric { transform, missing } => {
            let map = NumericMap::resolve(&feature.name, transform, statistics)?;
            Role::Numeric { map: Transform::new(map), missing: missing.map(|x| map.apply(x)) }
        }
        FeatureKind::Bucketized { .. } => Role::Bucket {
            buckets: Bucketizer::resolve(feature, statistics)?,
            missing: FeatureKey::missing(&feature.name),
        },
    })
}
