//! The fields of a pass: the columns of the data that are read, and the values that they become.

use zillion_feature::{
    Bucketizer, FeatureKey, FeatureKind, FeatureSpec, NumericMap, RawType, Schema, Statistics,
    TimeUnit,
};

use crate::error::Result;
use crate::side_lookup::SideLookup;
use crate::side_tables::SideTables;
use crate::value::Transform;

/// One use of one column of the data. Two features that read the same column are two fields.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// The name of the use in messages: "feature `user`", "label `click`", "`columns.weight`".
    pub(crate) used_by: String,
    /// The column of the data.
    pub(crate) column: String,
    pub(crate) role: Role,
    /// The place of the decoded column in a batch.
    pub(crate) slot: Slot,
}

/// The way in which a value is decoded.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// One id for each row.
    Id { raw: RawType, missing: FeatureKey },
    /// Any number of ids for each row.
    Ids { raw: RawType },
    /// One id for each row as the file has it, for a request.
    RawId { raw: RawType },
    /// Any number of ids for each row as the file has them. If they are not `weighted`, an id with
    /// a weight other than 1 is refused.
    RawIds { raw: RawType, weighted: bool },
    /// A text as the file has it, for a conversion: one buffer holds all texts, whereas a request
    /// has a separate text for each row.
    Text,
    /// A number, which is transformed.
    Numeric { map: Transform, missing: Option<f32> },
    /// A number that becomes the key of its bucket.
    Bucket { buckets: Bucketizer, missing: FeatureKey },
    /// A number as the file has it, NaN where it is missing (an error if `needed`): the number of a
    /// side table, or a number from which statistics are made.
    Number { needed: bool },
    /// A key of a side table, which becomes the number of the row that has the key.
    SideRow(SideLookup),
    /// A label: 0 or 1, or a number that is compared with a threshold. If the label is `optional`,
    /// a row without one is masked instead of refused.
    Label { optional: bool, at_least: Option<f64> },
    /// A sample weight, which is finite and not negative.
    Weight,
    /// A group id: any value that can be compared for equality.
    Group,
    /// An event time: an integer, or a date or timestamp in its own unit. If the job names the
    /// unit, a number that is not plausible in it is refused.
    EventTime { unit: Option<TimeUnit> },
}

/// The place of a decoded column in a [`Batch`](zillion_feature::Batch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Sparse(usize),
    Numeric(usize),
    /// The rows of a side table, for the features of the numbered [`Join`].
    Join(usize),
    Label(usize),
    Weight,
    Group,
    EventTime,
    /// A column that is not part of a batch.
    Pass,
}

impl Slot {
    /// Returns whether a source for prediction may lack the column.
    pub(crate) fn only_training_needs_it(self) -> bool {
        matches!(self, Self::Label(_) | Self::Weight | Self::Group | Self::EventTime)
    }
}

/// The features that read one side table by one column of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    /// The position in the schema's side tables.
    pub(crate) side: usize,
    /// The column of the data that holds the key.
    pub(crate) by: String,
    /// The positions in the schema's features.
    pub(crate) features: Vec<usize>,
    /// Whether some feature has no value for a key that the side table does not have.
    pub(crate) needed: bool,
}

/// Returns the joins of a schema, in order of first mention.
pub(crate) fn joins(schema: &Schema) -> Vec<Join> {
    let mut joins: Vec<Join> = Vec::new();
    for (index, feature) in schema.features.iter().enumerate() {
        let Some(reference) = &feature.side else { continue };
        let known = joins.iter_mut().find(|j| j.side == reference.side && j.by == reference.by);
        match known {
            Some(join) => {
                join.features.push(index);
                join.needed |= feature.needs_value();
            }
            None => joins.push(Join {
                side: reference.side,
                by: reference.by.clone(),
                features: vec![index],
                needed: feature.needs_value(),
            }),
        }
    }
    joins
}

/// Returns the fields of a schema before its statistics are known; files are checked against them.
/// A feature that needs statistics has [`Role::Number`] here, which accepts the same columns and
/// refuses the same rows. The only other refusal, a standardised number that does not fit an `f32`,
/// does not occur in the data that the statistics are computed from.
pub(crate) fn unresolved(schema: &Schema, sides: &SideTables) -> Result<Vec<Field>> {
    let role = |feature: &FeatureSpec| match feature.needs_statistics() {
        true => Ok(Role::Number { needed: feature.needs_value() }),
        false => role(feature, &Statistics::default()),
    };
    let mut fields = of_features(schema, sides, |_| true, role)?;
    fields.extend(of_rows(schema));
    Ok(fields)
}

/// Returns the fields of a schema with every transform resolved.
pub(crate) fn resolved(
    schema: &Schema,
    sides: &SideTables,
    statistics: &Statistics,
) -> Result<Vec<Field>> {
    let mut fields = resolved_where(schema, sides, statistics, |_| true)?;
    fields.extend(of_rows(schema));
    Ok(fields)
}

/// Returns the fields of the features for which `wanted` is true, by their positions in the schema.
pub(crate) fn resolved_where(
    schema: &Schema,
    sides: &SideTables,
    statistics: &Statistics,
    wanted: impl Fn(usize) -> bool,
) -> Result<Vec<Field>> {
    of_features(schema, sides, wanted, |feature| role(feature, statistics))
}

fn of_features(
    schema: &Schema,
    sides: &SideTables,
    wanted: impl Fn(usize) -> bool,
    role_of: impl Fn(&FeatureSpec) -> Result<Role>,
) -> Result<Vec<Field>> {
    let mut fields = Vec::new();
    for (index, (feature, at)) in schema.features.iter().zip(schema.column_positions()).enumerate()
    {
        if !wanted(index) || feature.side.is_some() || feature.is_cross() {
            continue;
        }
        fields.push(Field {
            used_by: format!("feature `{}`", feature.name),
            column: feature.column.clone(),
            role: role_of(feature)?,
            slot: feature.table().map_or(Slot::Numeric(at), |_| Slot::Sparse(at)),
        });
    }
    for (number, join) in joins(schema).iter().enumerate() {
        if join.features.iter().any(|&feature| wanted(feature)) {
            fields.push(side_row(schema, sides, number, join));
        }
    }
    Ok(fields)
}

/// Returns the field that looks up the rows of a join.
pub(crate) fn side_row(schema: &Schema, sides: &SideTables, number: usize, join: &Join) -> Field {
    let side = &schema.sides[join.side];
    Field {
        used_by: format!("the join with side table `{}`", side.name),
        role: Role::SideRow(SideLookup::new(side.raw, sides.index(join.side), join.needed)),
        column: join.by.clone(),
        slot: Slot::Join(number),
    }
}

/// Returns the fields of the labels; `optional` has the meaning of [`Role::Label`].
pub(crate) fn labels(schema: &Schema, optional: bool) -> impl Iterator<Item = Field> {
    schema.labels.iter().enumerate().map(move |(index, label)| Field {
        used_by: format!("label `{}`", label.name),
        column: label.column.clone(),
        role: Role::Label { optional, at_least: label.at_least },
        slot: Slot::Label(index),
    })
}

/// Returns the fields of the other values of a row: labels, weight, group and event time.
fn of_rows(schema: &Schema) -> Vec<Field> {
    let labels = labels(schema, schema.labels.len() > 1);
    let columns = [
        ("weight", &schema.weight, Role::Weight, Slot::Weight),
        ("group", &schema.group, Role::Group, Slot::Group),
        (
            "event_time",
            &schema.event_time,
            Role::EventTime { unit: schema.event_time_unit },
            Slot::EventTime,
        ),
    ];
    let columns = columns.into_iter().filter_map(|(key, column, role, slot)| {
        let used_by = format!("`columns.{key}`");
        Some(Field { used_by, column: column.clone()?, role, slot })
    });
    labels.chain(columns).collect()
}

fn role(feature: &FeatureSpec, statistics: &Statistics) -> Result<Role> {
    Ok(match feature.kind {
        FeatureKind::Numeric { transform, missing } => {
            let map = NumericMap::resolve(&feature.name, transform, statistics)?;
            Role::Numeric { map: Transform::new(map), missing: missing.map(|x| map.apply(x)) }
        }
        FeatureKind::Bucketized { .. } => Role::Bucket {
            buckets: Bucketizer::resolve(feature, statistics)?,
            missing: FeatureKey::missing(&feature.name),
        },
        _ => role_in_side_table(feature),
    })
}

/// Returns the role that decodes a feature's column in the file of its side table. The values are
/// not transformed here, because a transform needs statistics of the joined values.
pub(crate) fn role_in_side_table(feature: &FeatureSpec) -> Role {
    match feature.kind {
        FeatureKind::Id { raw, .. } => {
            Role::Id { raw, missing: FeatureKey::missing(&feature.name) }
        }
        FeatureKind::Ids { raw, .. } | FeatureKind::Sequence { raw, .. } => Role::Ids { raw },
        // A cross reads no column and has no role.
        _ => Role::Number { needed: feature.needs_value() },
    }
}
