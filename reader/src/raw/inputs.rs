//! The inputs of the requests of a schema: their names, their fields and their values.

use std::borrow::Cow;

use zillion_feature::{
    FeatureKind, FeatureSpec, RawColumn, RawColumns, RawType, RawValue, RawValues, Schema,
};

use crate::block::{self, ListPart, Piece};
use crate::error::{ReaderError, Result};
use crate::field::{self, Field, Role, Slot};

/// The names of the inputs of a schema. Input `i` is decoded from field `i` of the reading.
#[derive(Clone, Debug)]
pub(super) struct Inputs(Vec<String>);

impl Inputs {
    /// Returns the inputs of a schema, and the fields from which they are decoded.
    ///
    /// # Errors
    /// Returns an error if a feature and a join have the same input name but read different
    /// columns, or if no type fits both.
    pub(super) fn of(schema: &Schema) -> Result<(Self, Vec<Field>)> {
        let mut names = Vec::new();
        let mut fields: Vec<Field> = Vec::new();
        for feature in schema.features.iter().filter(|f| f.side.is_none() && !f.is_cross()) {
            names.push(feature.name.clone());
            fields.push(Field {
                used_by: format!("feature `{}`", feature.name),
                column: feature.column.clone(),
                role: role(feature),
                slot: Slot::Pass,
            });
        }
        for join in field::joins(schema) {
            let side = &schema.sides[join.side];
            if let Some(at) = names.iter().position(|name| *name == join.by) {
                let field = &mut fields[at];
                field.role = shared_role(&field.role, side.raw)
                    .filter(|_| field.column == join.by)
                    .ok_or_else(|| not_told_apart(field, &join.by, &side.name))?;
                continue;
            }
            names.push(join.by.clone());
            fields.push(Field {
                used_by: format!("the join with side table `{}`", side.name),
                column: join.by,
                role: Role::RawId { raw: side.raw },
                slot: Slot::Pass,
            });
        }
        Ok((Self(names), fields))
    }

    /// Returns the inputs that are copies of columns, and the fields from which they are decoded.
    pub(super) fn of_columns(columns: &[String]) -> (Self, Vec<Field>) {
        let field = |column: &String| Field {
            used_by: format!("kept column `{column}`"),
            column: column.clone(),
            role: Role::Kept,
            slot: Slot::Pass,
        };
        (Self(columns.to_vec()), columns.iter().map(field).collect())
    }

    /// Returns the values of all inputs in the rows of `pieces`, which were decoded for `fields`.
    pub(super) fn columns(&self, pieces: &[Piece], fields: &[Field]) -> RawColumns<'static> {
        let column = |(at, name): (usize, &String)| {
            let (values, lengths) = match fields[at].role {
                Role::RawId { raw } => (ids(raw, block::values(pieces, at)), None),
                Role::RawTime { .. } | Role::Kept => (
                    RawValues::Any(pieces.iter().flat_map(|p| p.values(at)).cloned().collect()),
                    None,
                ),
                Role::RawVector { .. } => {
                    let parts: Vec<ListPart<'_, f32>> =
                        pieces.iter().map(|piece| piece.lists(at)).collect();
                    let ends = parts.iter().flat_map(|part| part.ends.windows(2));
                    let lengths = ends.map(|ends| (ends[1] - ends[0]) as usize).collect();
                    let floats = parts.iter().flat_map(|part| part.values);
                    (RawValues::Floats(floats.map(|&x| f64::from(x)).collect()), Some(lengths))
                }
                Role::RawIds { raw, .. } => {
                    let parts: Vec<ListPart<'_, RawValue<'static>>> =
                        pieces.iter().map(|piece| piece.lists(at)).collect();
                    let ends = parts.iter().flat_map(|part| part.ends.windows(2));
                    let lengths = ends.map(|ends| (ends[1] - ends[0]) as usize).collect();
                    let values = parts.iter().flat_map(|part| part.values).cloned().collect();
                    (ids(raw, values), Some(lengths))
                }
                _ => (numbers(block::values(pieces, at)), None),
            };
            (Cow::Owned(name.clone()), RawColumn { values, lengths, is_shared: false })
        };
        self.0.iter().enumerate().map(column).collect()
    }
}

/// Returns the role that decodes the values of a feature for a request.
fn role(feature: &FeatureSpec) -> Role {
    if let Some(rule) = feature.time {
        return Role::RawTime { rule };
    }
    match feature.kind {
        FeatureKind::Vector { size, .. } => Role::RawVector { size: size as usize },
        FeatureKind::Id { raw, .. } => Role::RawId { raw },
        FeatureKind::Ids { raw, .. } | FeatureKind::Sequence { raw, .. } => {
            Role::RawIds { raw, weighted: false, whole: false }
        }
        _ => Role::Number { needed: feature.needs_value() },
    }
}

/// Returns the role of an input that both a feature and a join read. The role is possible because a
/// text can also be read as a whole number, and a whole number as a number. Returns `None` if no
/// type fits both.
fn shared_role(feature: &Role, side: RawType) -> Option<Role> {
    let raw = match (feature, side) {
        (Role::RawId { raw: RawType::String }, _) => RawType::String,
        (Role::RawId { .. }, RawType::String) => side,
        // If there are two integer types, the result is the signed one. An id that does not fit it
        // is refused, as in training.
        (Role::RawId { raw }, _) if *raw != side => RawType::I64,
        (Role::RawId { .. }, _) | (Role::Number { .. }, RawType::I64 | RawType::U64) => side,
        _ => return None,
    };
    Some(Role::RawId { raw })
}

fn not_told_apart(feature: &Field, by: &str, side: &str) -> ReaderError {
    let problem = format!(
        "{} and the join with side table `{side}` are one input of a request, but no value fits both; give the feature another name, with `column = \"{}\"`",
        feature.used_by, feature.column
    );
    ReaderError::setting(format_args!("features.{by}"), problem)
}

/// Returns ids as the values of one input. If all ids are present and are numbers, the result holds
/// numbers of one type.
fn ids(raw: RawType, values: Vec<RawValue<'static>>) -> RawValues<'static> {
    // A grammar returns each whole number in an integer type that fits the number. The number also
    // fits the declared type.
    let typed = |value: RawValue<'static>| match (raw, value) {
        (RawType::I64, RawValue::Uint(id)) => {
            i64::try_from(id).map_or(RawValue::Uint(id), RawValue::Int)
        }
        (RawType::U64, RawValue::Int(id)) => {
            u64::try_from(id).map_or(RawValue::Int(id), RawValue::Uint)
        }
        (_, value) => value,
    };
    let values: Vec<RawValue<'static>> = values.into_iter().map(typed).collect();
    let int = |value: &RawValue<'_>| match value {
        RawValue::Int(id) => Some(*id),
        _ => None,
    };
    let uint = |value: &RawValue<'_>| match value {
        RawValue::Uint(id) => Some(*id),
        _ => None,
    };
    let whole = match raw {
        RawType::I64 => values.iter().map(int).collect::<Option<_>>().map(RawValues::Ints),
        RawType::U64 => values.iter().map(uint).collect::<Option<_>>().map(RawValues::Uints),
        RawType::String => None,
    };
    whole.unwrap_or(RawValues::Any(values))
}

fn numbers(values: Vec<f64>) -> RawValues<'static> {
    if !values.iter().any(|x| x.is_nan()) {
        return RawValues::Floats(values);
    }
    let value = |x: f64| if x.is_nan() { RawValue::Missing } else { RawValue::Float(x) };
    RawValues::Any(values.into_iter().map(value).collect())
}
