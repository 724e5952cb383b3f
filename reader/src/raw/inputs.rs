//! The inputs of a schema's requests, with the fields that they read and their values.

use std::borrow::Cow;

use zillion_feature::{
    FeatureKind, FeatureSpec, RawColumn, RawColumns, RawType, RawValue, RawValues, Schema,
};

use crate::block::{self, Column, Piece, column_of};
use crate::error::{ReaderError, Result};
use crate::field::{self, Field, Role, Slot};

/// The inputs of a schema; field `i` of the reading is input `i`.
#[derive(Clone, Debug)]
pub(super) struct Inputs(Vec<Input>);

#[derive(Clone, Debug)]
struct Input {
    name: String,
    kind: Kind,
}

/// The type of an input's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    RawId(RawType),
    Ids(RawType),
    Number,
}

impl Inputs {
    /// Returns the inputs, and the fields from which they are decoded.
    ///
    /// # Errors
    /// Returns an error if a feature and a join have the same input name, but need values of
    /// different types or columns.
    pub(super) fn of(schema: &Schema) -> Result<(Self, Vec<Field>)> {
        let mut inputs = Vec::new();
        let mut fields = Vec::new();
        for feature in schema.features.iter().filter(|f| f.side.is_none() && !f.is_cross()) {
            let (kind, role) = kind_and_role(feature);
            inputs.push(Input { name: feature.name.clone(), kind });
            fields.push(Field {
                used_by: format!("feature `{}`", feature.name),
                column: feature.column.clone(),
                role,
                slot: Slot::Pass,
            });
        }
        for join in field::joins(schema) {
            let side = &schema.sides[join.side];
            let known = inputs.iter().position(|input| input.name == join.by);
            if let Some(at) = known {
                let (input, field): (&mut Input, &mut Field) = (&mut inputs[at], &mut fields[at]);
                input.kind = shared(input.kind, side.raw)
                    .filter(|_| field.column == join.by)
                    .ok_or_else(|| not_told_apart(field, &join.by, &side.name))?;
                if let Kind::RawId(raw) = input.kind {
                    field.role = Role::RawId { raw };
                }
                continue;
            }
            inputs.push(Input { name: join.by.clone(), kind: Kind::RawId(side.raw) });
            fields.push(Field {
                used_by: format!("the join with side table `{}`", side.name),
                column: join.by,
                role: Role::RawId { raw: side.raw },
                slot: Slot::Pass,
            });
        }
        Ok((Self(inputs), fields))
    }

    /// Returns the values of some rows.
    pub(super) fn columns(&self, pieces: &[Piece], rows: usize) -> RawColumns<'static> {
        let column = |(at, input): (usize, &Input)| {
            let column = match input.kind {
                Kind::RawId(raw) => of_rows(ids(raw, singles(pieces, rows, at))),
                Kind::Ids(raw) => lists(raw, pieces, rows, at),
                Kind::Number => of_rows(numbers(pieces, rows, at)),
            };
            (Cow::Owned(input.name.clone()), column)
        };
        self.0.iter().enumerate().map(column).collect()
    }
}

fn kind_and_role(feature: &FeatureSpec) -> (Kind, Role) {
    match feature.kind {
        FeatureKind::Id { raw, .. } => (Kind::RawId(raw), Role::RawId { raw }),
        FeatureKind::Ids { raw, .. } | FeatureKind::Sequence { raw, .. } => {
            (Kind::Ids(raw), Role::RawIds { raw })
        }
        FeatureKind::Numeric { .. } | FeatureKind::Bucketized { .. } => {
            (Kind::Number, Role::Number { needed: feature.needs_value() })
        }
        FeatureKind::Cross { .. } => unreachable!("a cross reads no column"),
    }
}

/// Returns the type of an input that both a feature and a join read: a text can be read as a whole
/// number, and a whole number as a number. Returns `None` if no type serves both.
fn shared(kind: Kind, side: RawType) -> Option<Kind> {
    match (kind, side) {
        (Kind::RawId(RawType::String), _) => Some(kind),
        (Kind::RawId(_), RawType::String) => Some(Kind::RawId(side)),
        // Of the two integer types, the signed one is used: an id beyond it is refused, as in
        // training.
        (Kind::RawId(own), side) => Some(Kind::RawId(if own == side { own } else { RawType::I64 })),
        (Kind::Number, RawType::I64 | RawType::U64) => Some(Kind::RawId(side)),
        (Kind::Number, RawType::String) | (Kind::Ids(_), _) => None,
    }
}

fn not_told_apart(feature: &Field, by: &str, side: &str) -> ReaderError {
    ReaderError::Setting {
        problem: format!(
            "{} and the join with side table `{side}` are one input of a request, but no value fits both; give the feature another name, with `column = \"{}\"`",
            feature.used_by, feature.column
        ),
        key: format!("features.{by}"),
    }
}

fn of_rows(values: RawValues<'static>) -> RawColumn<'static> {
    RawColumn { values, lengths: None, is_shared: false }
}

fn singles(pieces: &[Piece], rows: usize, at: usize) -> Vec<RawValue<'static>> {
    let mut values = Vec::with_capacity(rows);
    for piece in pieces {
        let own = column_of!(piece.block, at, Column::Raws(values) => values);
        values.extend_from_slice(piece.part(own));
    }
    values
}

fn lists(raw: RawType, pieces: &[Piece], rows: usize, at: usize) -> RawColumn<'static> {
    let mut lengths = Vec::with_capacity(rows);
    let mut values = Vec::new();
    for piece in pieces {
        let (offsets, own) =
            column_of!(piece.block, at, Column::RawLists { offsets, ids } => (offsets, ids));
        let ends = &offsets[piece.start..=piece.start + piece.rows];
        lengths.extend(ends.windows(2).map(|ends| (ends[1] - ends[0]) as usize));
        values.extend_from_slice(&own[ends[0] as usize..ends[piece.rows] as usize]);
    }
    RawColumn { values: ids(raw, values), lengths: Some(lengths), is_shared: false }
}

/// Returns ids as numbers of one type, if all are present and are numbers.
fn ids(raw: RawType, values: Vec<RawValue<'static>>) -> RawValues<'static> {
    // A grammar returns each whole number in a type that fits it; the declared type fits it too.
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

fn numbers(pieces: &[Piece], rows: usize, at: usize) -> RawValues<'static> {
    let values = block::values(pieces, rows, |b| column_of!(b, at, Column::Numbers(x) => x));
    if !values.iter().any(|x| x.is_nan()) {
        return RawValues::Floats(values);
    }
    let value = |x: f64| if x.is_nan() { RawValue::Missing } else { RawValue::Float(x) };
    RawValues::Any(values.into_iter().map(value).collect())
}
