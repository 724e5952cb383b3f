//! The fields of a pass: each field reads one column of the data and decodes it to one kind of
//! value.

use zillion_feature::{
    Bucketizer, DateOrder, FeatureKey, FeatureKind, FeatureSpec, NumericMap, RawType, Schema,
    Statistics, TimeRule, TimeUnit,
};

use crate::error::Result;
use crate::side_lookup::SideLookup;
use crate::side_tables::SideTables;
use crate::value::{LabelRule, Transform};

/// A column of the data together with one use of it. Two features that read the same column are two
/// fields.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// The name of the use of the column in error messages: "feature `user`", "label `click`",
    /// "`columns.weight`".
    pub(crate) used_by: String,
    /// The name of the column.
    pub(crate) column: String,
    pub(crate) role: Role,
    /// The place of the decoded column in a batch.
    pub(crate) slot: Slot,
}

/// The use of a column, which determines how its values are decoded.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// One id in each row.
    Id { raw: RawType, missing: FeatureKey },
    /// Any number of ids in each row.
    Ids { raw: RawType },
    /// One id in each row, for a request. The id keeps the form that it has in the file.
    RawId { raw: RawType },
    /// Any number of ids in each row, for a request. The ids keep the form that they have in the
    /// file. If `weighted` is false, an id with a weight other than 1 is refused. If `whole` is
    /// true, a list with a missing element is refused; otherwise the element is left out.
    RawIds { raw: RawType, weighted: bool, whole: bool },
    /// A text, for a conversion. One buffer holds all texts, whereas a request has a separate text
    /// for each row.
    Text,
    /// A number that is transformed.
    Numeric { map: Transform, missing: Option<f32> },
    /// The same number of floats in each row.
    Vector { size: usize, missing: Option<f32> },
    /// A vector for a request.
    RawVector { size: usize },
    /// A number that becomes the key of its bucket.
    Bucket { buckets: Bucketizer, missing: FeatureKey },
    /// A time from which a number is derived. The other role is that of the number.
    Derived { rule: TimeRule, role: Box<Role> },
    /// A value that a caller copies as it is.
    Kept,
    /// A time from which a number is derived, for a request.
    RawTime { rule: TimeRule },
    /// A number that is not transformed: a number of a side table, or a number from which
    /// statistics are computed. A missing value becomes NaN, or is refused if `needed` is true.
    Number { needed: bool },
    /// A key of a side table, which becomes the index of the row with this key in the side table.
    SideRow(SideLookup),
    /// A label. If the label is `optional`, a row without a label is masked and not refused.
    Label { optional: bool, rule: LabelRule },
    /// A sample weight, which is finite and not negative.
    Weight,
    /// A group id. Any value that can be compared for equality is allowed.
    Group,
    /// An event time: an integer, a date or a timestamp, which keeps its unit. If the job names a
    /// unit, a number that is not plausible in this unit is refused. `order` is that of day and
    /// month in dates that need one.
    EventTime { unit: Option<TimeUnit>, order: Option<DateOrder> },
}

impl Role {
    /// Returns the role of the values that the column holds at the end.
    pub(crate) fn of_values(&self) -> &Self {
        match self {
            Self::Derived { role, .. } => role,
            role => role,
        }
    }
}

/// The place of a decoded column in a [`Batch`](zillion_feature::Batch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Sparse(usize),
    Numeric(usize),
    /// The row indices in a side table for the [`Join`] with this index.
    Join(usize),
    Label(usize),
    Weight,
    Group,
    EventTime,
    /// A column that is not part of a batch.
    Pass,
}

impl Slot {
    /// Returns whether the data for prediction may lack the column, because only training needs it.
    pub(crate) fn only_training_needs_it(self) -> bool {
        matches!(self, Self::Label(_) | Self::Weight | Self::Group | Self::EventTime)
    }
}

/// The join of one side table by one column of the data, with all features that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    /// The position of the side table in the schema.
    pub(crate) side: usize,
    /// The column of the data that holds the key.
    pub(crate) by: String,
    /// The positions of the features in the schema.
    pub(crate) features: Vec<usize>,
    /// Whether some feature needs a value in every row, so that every key of the data must be in
    /// the side table.
    pub(crate) needed: bool,
}

/// Returns the joins of a schema, in the order in which the features mention them first.
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

/// Returns the fields of a schema before its statistics are known; files are checked against these
/// fields. A feature that needs statistics has the role [`Role::Number`] here, which accepts the
/// same columns and refuses the same rows. One refusal is different: a standardised number that is
/// too large for an `f32` is refused only later. This refusal cannot occur in the data from which
/// the statistics are computed.
pub(crate) fn unresolved(schema: &Schema, sides: &SideTables) -> Result<Vec<Field>> {
    let role = |feature: &FeatureSpec| match feature.needs_statistics() {
        true => Ok(derived(feature, Role::Number { needed: feature.needs_value() })),
        false => role(feature, &Statistics::default()),
    };
    let mut fields = of_features(schema, sides, |_| true, role)?;
    fields.extend(of_rows(schema));
    Ok(fields)
}

/// Returns the fields of a schema after its statistics are known, with all transforms.
pub(crate) fn resolved(
    schema: &Schema,
    sides: &SideTables,
    statistics: &Statistics,
) -> Result<Vec<Field>> {
    let mut fields = resolved_where(schema, sides, statistics, |_| true)?;
    fields.extend(of_rows(schema));
    Ok(fields)
}

/// Returns the fields of the wanted features. `wanted` is called with the position of a feature in
/// the schema.
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

/// Returns the field that finds the rows of a join in its side table. `number` is the index of the
/// join.
pub(crate) fn side_row(schema: &Schema, sides: &SideTables, number: usize, join: &Join) -> Field {
    let side = &schema.sides[join.side];
    Field {
        used_by: format!("the join with side table `{}`", side.name),
        role: Role::SideRow(SideLookup::new(side.raw, sides.index(join.side), join.needed)),
        column: join.by.clone(),
        slot: Slot::Join(number),
    }
}

/// Returns the fields of the labels. [`Role::Label`] explains `optional`.
pub(crate) fn labels(schema: &Schema, optional: bool) -> impl Iterator<Item = Field> {
    schema.labels.iter().enumerate().map(move |(index, label)| Field {
        used_by: format!("label `{}`", label.name),
        column: label.column.clone(),
        role: Role::Label { optional, rule: LabelRule::of(label) },
        slot: Slot::Label(index),
    })
}

/// Returns the fields that belong to no feature: labels, weight, group and event time.
fn of_rows(schema: &Schema) -> Vec<Field> {
    let labels = labels(schema, schema.labels.len() > 1);
    let columns = [
        ("group", &schema.group, Role::Group, Slot::Group),
        (
            "event_time",
            &schema.event_time,
            Role::EventTime { unit: schema.event_time_unit, order: schema.event_date_order },
            Slot::EventTime,
        ),
    ];
    let columns = columns.into_iter().filter_map(|(key, column, role, slot)| {
        let used_by = format!("`columns.{key}`");
        Some(Field { used_by, column: column.clone()?, role, slot })
    });
    labels.chain(weight(schema)).chain(columns).collect()
}

/// Returns the field of the sample weights, if the schema has them.
pub(crate) fn weight(schema: &Schema) -> Option<Field> {
    let (used_by, column) = ("`columns.weight`".to_owned(), schema.weight.clone()?);
    Some(Field { used_by, column, role: Role::Weight, slot: Slot::Weight })
}

/// Returns the role that reads a feature, if `role` reads its number. The two roles differ for a
/// feature that derives the number from a time.
pub(crate) fn derived(feature: &FeatureSpec, role: Role) -> Role {
    match feature.time {
        Some(rule) => Role::Derived { rule, role: Box::new(role) },
        None => role,
    }
}

fn role(feature: &FeatureSpec, statistics: &Statistics) -> Result<Role> {
    let role = match feature.kind {
        FeatureKind::Numeric { transform, missing } => {
            let map = NumericMap::resolve(&feature.name, transform, statistics)?;
            Role::Numeric { map: Transform::new(map), missing: missing.map(|x| map.apply(x)) }
        }
        FeatureKind::Vector { size, missing } => {
            Role::Vector { size: size as usize, missing: missing.map(|x| x as f32) }
        }
        FeatureKind::Bucketized { .. } => Role::Bucket {
            buckets: Bucketizer::resolve(feature, statistics)?,
            missing: FeatureKey::missing(&feature.name),
        },
        _ => return Ok(role_in_side_table(feature)),
    };
    Ok(derived(feature, role))
}

/// Returns the role that decodes the column of a feature in the file of its side table. The values
/// are not transformed here, because a transform needs the statistics of the joined values.
pub(crate) fn role_in_side_table(feature: &FeatureSpec) -> Role {
    let role = match feature.kind {
        FeatureKind::Id { raw, .. } => {
            Role::Id { raw, missing: FeatureKey::missing(&feature.name) }
        }
        FeatureKind::Ids { raw, .. } | FeatureKind::Sequence { raw, .. } => Role::Ids { raw },
        // A cross reads no column and has no role.
        _ => Role::Number { needed: feature.needs_value() },
    };
    derived(feature, role)
}
