//! The encoding of requests: raw values become a batch for the model.
//!
//! Each feature is transformed as in training. Ids become keys according to their declared type,
//! numbers are transformed with the stored statistics, side tables are joined by key, sequences are
//! shortened, and crosses are computed. The encoder never guesses. An input that a feature reads
//! must be present (`null` means a missing value). An input that no feature reads is refused,
//! because its name is probably misspelt.
//!
//! An input has the name of the feature that reads it, or the name of the column in the training
//! data. A feature from a side table is not an input. The input is the column with the key of the
//! side table.

mod part;
mod reasons;
mod shape;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::batch::{Batch, KeyColumn};
use crate::cross::Crosses;
use crate::error::{RequestError, SchemaError};
use crate::key::FeatureKey;
use crate::moment::TimeRule;
use crate::raw_value::{RawValue, finite, id_from_i64, id_from_u64};
use crate::schema::{FeatureKind, FeatureSpec, RawType, Schema, SideRef};
use crate::side::{Attribute, SideTable};
use crate::statistics::Statistics;
use crate::transform::{Bucketizer, NumericMap};
use part::Omitted;
use shape::Shape;

/// The maximum number of characters of an unknown input's name that an error message repeats.
const LONGEST_NAME: usize = 100;

/// The raw values of a column. Tensors contain numbers of one type, and JSON contains values of any
/// type.
#[derive(Clone, Debug, PartialEq)]
pub enum RawValues<'a> {
    /// Signed integers of 64 bits.
    Ints(Vec<i64>),
    /// Unsigned integers of 64 bits.
    Uints(Vec<u64>),
    /// Floating-point numbers of 64 bits.
    Floats(Vec<f64>),
    /// Values of different types.
    Any(Vec<RawValue<'a>>),
}

/// The values of one input of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct RawColumn<'a> {
    /// The values of all rows, concatenated.
    pub values: RawValues<'a>,
    /// The number of values in each row, or `None` if each row has one value.
    pub lengths: Option<Vec<usize>>,
    /// Whether the column has only one row, whose values apply to all rows of the request.
    pub is_shared: bool,
}

/// The inputs of a request, by name.
pub type RawColumns<'a> = BTreeMap<Cow<'a, str>, RawColumn<'a>>;

/// A description of an input, for tools that list the inputs of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// The name of the input.
    pub name: String,
    /// The name of the column in the training data, which is also accepted as the name of the
    /// input.
    pub column: String,
    /// The type of the values.
    pub kind: InputKind,
    /// Whether a row may have any number of values, or the number of [`InputSpec::size`].
    pub is_list: bool,
    /// The number of values that each row must have, or `None` if the input is no vector.
    pub size: Option<usize>,
    /// Whether each row must have a value, because the job sets no value for missing ones.
    pub needs_value: bool,
}

/// The type of the values of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// Ids of this type.
    Id(RawType),
    /// Numbers of any type.
    Number,
    /// Times: texts with a date, or numbers if the feature has a `time_unit`.
    Time,
}

/// An encoder of requests to batches for one version of a model. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Encoder {
    schema: Arc<Schema>,
    inputs: Arc<Vec<Input>>,
    /// The names of all inputs and of their columns, sorted.
    names: Arc<Vec<String>>,
    joins: Arc<Vec<Join>>,
    crosses: Crosses,
    /// The columns that no input fills, because the encoder reads only a part of the features.
    omitted: Arc<Vec<Omitted>>,
}

#[derive(Clone, Debug)]
struct Input {
    spec: InputSpec,
    rule: Rule,
    /// The rule by which the values are times, or `None` if they are read as they are.
    time: Option<TimeRule>,
    /// The position of the input's column among the sparse or numeric columns of a batch. If the
    /// input is the key of a join, its position among the joins.
    at: usize,
}

#[derive(Clone, Debug)]
enum Rule {
    Id { raw: RawType, missing: FeatureKey },
    Ids { raw: RawType, max_len: Option<usize> },
    Number { map: NumericMap, missing: Option<f32> },
    Vector { size: usize, missing: Option<f32> },
    Bucket { buckets: Bucketizer, missing: FeatureKey },
    Side { raw: RawType },
}

/// A side table, together with the input whose values are looked up in it.
#[derive(Clone, Debug)]
struct Join {
    reference: SideRef,
    table: Arc<SideTable>,
    attributes: Vec<Attribute>,
    /// Whether a feature needs a value in every row. Then every key of a request must be in the
    /// side table.
    is_needed: bool,
}

impl Encoder {
    /// Returns an encoder for a schema. `statistics` are the statistics of the training data.
    /// `sides` are the side tables in the order of the schema.
    ///
    /// # Errors
    /// Returns an error if a feature needs statistics that are absent, or if the side tables do not
    /// match the schema.
    pub fn new(
        schema: &Schema,
        statistics: &Statistics,
        sides: &[Arc<SideTable>],
    ) -> Result<Self, SchemaError> {
        if sides.len() != schema.sides.len() {
            return Err(SchemaError::SideTables { have: sides.len(), want: schema.sides.len() });
        }
        let mut inputs: Vec<Input> = Vec::new();
        let mut joins: Vec<Join> = Vec::new();
        let columns = schema.column_positions();
        for (position, feature) in schema.features.iter().enumerate() {
            match &feature.side {
                _ if feature.is_cross() => {}
                None => inputs.push(Input::of(feature, statistics, columns[position])?),
                Some(side) => {
                    let known = joins.iter().position(|join| join.reference == *side);
                    let join = known.unwrap_or_else(|| {
                        let raw = schema.sides[side.side].raw;
                        inputs.push(Input::join(&side.by, raw, joins.len()));
                        let (table, attributes) = (sides[side.side].clone(), Vec::new());
                        let reference = side.clone();
                        joins.push(Join { reference, table, attributes, is_needed: false });
                        joins.len() - 1
                    });
                    let join = &mut joins[join];
                    let column = join
                        .table
                        .column(position)
                        .ok_or_else(|| SchemaError::SideColumn { feature: feature.name.clone() })?;
                    let attribute = Attribute::new(schema, position, column, statistics)?;
                    join.attributes.push(attribute);
                    join.is_needed |= feature.needs_value();
                }
            }
        }
        for input in &mut inputs {
            if let Rule::Side { .. } = input.rule {
                input.spec.needs_value = joins[input.at].is_needed;
            }
        }
        let names = inputs.iter().flat_map(|input| [&input.spec.name, &input.spec.column]);
        let mut names: Vec<String> = names.cloned().collect();
        names.sort_unstable();
        names.dedup();
        Ok(Self {
            crosses: Crosses::of(schema),
            names: Arc::new(names),
            schema: Arc::new(schema.clone()),
            inputs: Arc::new(inputs),
            joins: Arc::new(joins),
            omitted: Arc::default(),
        })
    }

    /// Returns the inputs in the order of the schema. Each feature has its own input. If several
    /// features read one column, their inputs have the same [`InputSpec::column`].
    pub fn inputs(&self) -> impl Iterator<Item = &InputSpec> {
        self.inputs.iter().map(|input| &input.spec)
    }

    /// Returns whether all inputs with this name accept a number. A number is accepted if it is
    /// finite and if its transform fits a 32-bit float. The accepted numbers form a single
    /// interval.
    pub fn takes_number(&self, name: &str, x: f64) -> bool {
        let takes = |input: &Input| match &input.rule {
            Rule::Number { map, .. } => map.apply(x).is_finite(),
            Rule::Vector { .. } => (x as f32).is_finite(),
            _ => true,
        };
        x.is_finite() && self.inputs.iter().filter(|i| i.spec.name == name).all(takes)
    }

    /// Returns whether an input, or the column of an input, has this name.
    pub fn reads(&self, name: &str) -> bool {
        self.names.binary_search_by(|known| known.as_str().cmp(name)).is_ok()
    }

    /// Returns the schema that the encoder was made for.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Encodes a request as a batch. `rows` is the number of rows of the request. An input that the
    /// request gives once for several rows gets columns of one row (see [`Batch::shared`]).
    ///
    /// # Errors
    /// Returns an error if an input is missing or unknown, or if a value cannot be used. The error
    /// names the input, and the row if one value is refused.
    pub fn encode(&self, rows: usize, columns: &RawColumns<'_>) -> Result<Batch, RequestError> {
        self.refuse_unread(columns)?;
        let empty = Batch::empty(&self.schema);
        let mut batch = Batch { rows, weight: None, group: None, event_time: None, ..empty };
        self.omitted.iter().for_each(|omitted| omitted.fill(&mut batch));
        for input in self.inputs.iter() {
            let column = columns
                .get(input.spec.name.as_str())
                .or_else(|| columns.get(input.spec.column.as_str()))
                .ok_or_else(|| {
                    input.refuse(
                        None,
                        "it is not in the request; send it, with `null` for a \
                                        missing value",
                    )
                })?;
            let shape = Shape::of(input, column, rows)?;
            let derived = input.derive(column, &shape)?;
            self.fill(input, derived.as_ref().unwrap_or(column), &shape, &mut batch)?;
        }
        self.crosses.fill(&mut batch);
        Ok(batch)
    }

    fn fill(
        &self,
        input: &Input,
        column: &RawColumn<'_>,
        shape: &Shape,
        batch: &mut Batch,
    ) -> Result<(), RequestError> {
        let value = |row: usize| column.values.at(row);
        match &input.rule {
            Rule::Number { .. } if shape.is_shared() => batch.shared.add_numeric(input.at),
            Rule::Vector { size, .. } if shape.is_shared() => {
                (input.at..input.at + size).for_each(|at| batch.shared.add_numeric(at));
            }
            Rule::Vector { .. } => {}
            Rule::Side { .. } => {}
            _ if shape.is_shared() => batch.shared.add_sparse(input.at),
            _ => {}
        }
        match &input.rule {
            Rule::Id { raw, missing } => {
                let keys = match &column.values {
                    // Columns of one type of number need no look at the type of each value.
                    RawValues::Ints(ids) if *raw != RawType::String => {
                        shape.single(input, |row| Ok(id_from_i64(*raw, ids[row])?))
                    }
                    RawValues::Uints(ids) if *raw != RawType::String => {
                        shape.single(input, |row| Ok(id_from_u64(*raw, ids[row])?))
                    }
                    _ => shape.single(input, |row| Ok(value(row).id(*raw)?.unwrap_or(*missing))),
                };
                batch.sparse[input.at] = KeyColumn::single(keys?);
            }
            Rule::Bucket { buckets, missing } => {
                let key = |row| Ok(value(row).number()?.map_or(*missing, |x| buckets.key(x)));
                batch.sparse[input.at] = KeyColumn::single(shape.single(input, key)?);
            }
            Rule::Number { map, missing } => {
                let transform = |x: Option<f64>| {
                    let none = "the value is missing, but the feature needs one; send a number";
                    let large = "the value is too large for a 32-bit float; send a smaller number";
                    let y = match x {
                        Some(x) => map.apply(x),
                        None => missing.ok_or(none)?,
                    };
                    if y.is_finite() { Ok(y) } else { Err(large) }
                };
                let numbers = match &column.values {
                    RawValues::Floats(xs) => {
                        shape.single(input, |row| transform(Some(finite(xs[row])?)))
                    }
                    _ => shape.single(input, |row| transform(value(row).number()?)),
                };
                batch.numeric[input.at] = numbers?;
            }
            Rule::Vector { size, missing } => {
                let columns = &mut batch.numeric[input.at..input.at + size];
                fill_vector(input, column, shape, *missing, columns)?;
            }
            Rule::Ids { raw, max_len } => {
                let mut list = shape.lists(input, |i| Ok(value(i).id(*raw)?))?;
                if let Some(max_len) = max_len {
                    list.keep_last(*max_len);
                }
                batch.sparse[input.at] = list;
            }
            Rule::Side { raw } => {
                let join = &self.joins[input.at];
                let absent = join.table.index.len();
                let found = |row| {
                    let key = value(row).id(*raw)?;
                    match key.and_then(|key| join.table.index.row(key)) {
                        None if join.is_needed => Err(
                            "the side table has no row with this key, but a numeric feature without `missing` needs one; send a key that the side table has",
                        ),
                        row => Ok(row.unwrap_or(absent)),
                    }
                };
                let side_rows: Vec<u32> = shape.single(input, found)?;
                let missing = side_rows.iter().filter(|&&row| row == absent).count();
                let missing = missing * shape.rows_of_each();
                batch.side_missing[join.reference.side] += missing as u64;
                for attribute in &join.attributes {
                    attribute.fill(&side_rows, batch);
                    if shape.is_shared() {
                        attribute.mark_shared(batch);
                    }
                }
            }
        }
        Ok(())
    }

    fn refuse_unread(&self, columns: &RawColumns<'_>) -> Result<(), RequestError> {
        // Both lists are sorted, so one pass over both is enough.
        let mut known = self.names.iter();
        let mut is_read = |name: &str| {
            known.by_ref().find(|known| known.as_str() >= name).is_some_and(|known| known == name)
        };
        let Some(name) = columns.keys().find(|name| !is_read(name)) else { return Ok(()) };
        // A client may send a name of any length. The size of the answer and the time of the
        // comparison must not depend on this length.
        let name: String = name.chars().take(LONGEST_NAME).collect();
        let names = self.inputs.iter().map(|i| i.spec.name.as_str());
        let nearest = zillion_config::nearest(&name, names)
            .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        let reason = format!("the model has no input of this name{nearest}");
        Err(RequestError { input: name, row: None, reason })
    }
}

/// Fills the numeric columns of a vector.
fn fill_vector(
    input: &Input,
    column: &RawColumn<'_>,
    shape: &Shape,
    missing: Option<f32>,
    columns: &mut [Vec<f32>],
) -> Result<(), RequestError> {
    let value = |i: usize| column.values.at(i);
    let float = |i: usize| match value(i).number()?.map(|x| x as f32) {
        Some(x) if x.is_finite() => Ok(x),
        Some(_) => Err("a number is too large for a 32-bit float; send smaller numbers"),
        None => Err("a number of the vector is missing; send a number, or `null` for the whole \
                     vector"),
    };
    shape.vectors(input, columns, missing, |i| value(i) == RawValue::Missing, float)
}

impl Input {
    fn of(feature: &FeatureSpec, statistics: &Statistics, at: usize) -> Result<Self, SchemaError> {
        let absent = FeatureKey::missing(&feature.name);
        let (rule, kind) = match feature.kind {
            FeatureKind::Id { raw, .. } => (Rule::Id { raw, missing: absent }, InputKind::Id(raw)),
            FeatureKind::Ids { raw, .. } | FeatureKind::Sequence { raw, .. } => {
                (Rule::Ids { raw, max_len: feature.max_len() }, InputKind::Id(raw))
            }
            FeatureKind::Numeric { transform, missing } => {
                let map = NumericMap::resolve(&feature.name, transform, statistics)?;
                let missing = missing.map(|x| map.apply(x));
                (Rule::Number { map, missing }, InputKind::Number)
            }
            FeatureKind::Vector { size, missing } => {
                let (size, missing) = (size as usize, missing.map(|x| x as f32));
                (Rule::Vector { size, missing }, InputKind::Number)
            }
            FeatureKind::Bucketized { .. } => {
                let buckets = Bucketizer::resolve(feature, statistics)?;
                (Rule::Bucket { buckets, missing: absent }, InputKind::Number)
            }
            FeatureKind::Cross { .. } => unreachable!("a cross reads no input"),
        };
        let kind = if feature.time.is_some() { InputKind::Time } else { kind };
        let spec = InputSpec {
            name: feature.name.clone(),
            column: feature.column.clone(),
            kind,
            is_list: matches!(rule, Rule::Ids { .. } | Rule::Vector { .. }),
            size: match rule {
                Rule::Vector { size, .. } => Some(size),
                _ => None,
            },
            needs_value: feature.needs_value(),
        };
        Ok(Self { spec, rule, time: feature.time, at })
    }

    /// Returns the numbers that a feature derives from the times of its input, or `None` if the
    /// feature reads the values as they are.
    fn derive(
        &self,
        column: &RawColumn<'_>,
        shape: &Shape,
    ) -> Result<Option<RawColumn<'static>>, RequestError> {
        let Some(time) = &self.time else { return Ok(None) };
        let is_id = matches!(self.rule, Rule::Id { .. });
        let values = shape.each(self, |row| Ok(time.derived(&column.values.at(row), is_id)?))?;
        let (lengths, is_shared) = (column.lengths.clone(), column.is_shared);
        Ok(Some(RawColumn { values: RawValues::Any(values), lengths, is_shared }))
    }

    fn join(by: &str, raw: RawType, at: usize) -> Self {
        let (name, column) = (by.to_owned(), by.to_owned());
        let kind = InputKind::Id(raw);
        let spec = InputSpec { name, column, kind, is_list: false, size: None, needs_value: false };
        Self { spec, rule: Rule::Side { raw }, time: None, at }
    }

    fn refuse(&self, row: Option<usize>, reason: impl Into<String>) -> RequestError {
        RequestError { input: self.spec.name.clone(), row, reason: reason.into() }
    }
}

impl RawValues<'_> {
    /// Returns the number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Ints(values) => values.len(),
            Self::Uints(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Any(values) => values.len(),
        }
    }

    /// Returns whether the column has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn at(&self, i: usize) -> RawValue<'_> {
        match self {
            Self::Ints(values) => RawValue::Int(values[i]),
            Self::Uints(values) => RawValue::Uint(values[i]),
            Self::Floats(values) => RawValue::Float(values[i]),
            Self::Any(values) => match &values[i] {
                RawValue::Text(text) => RawValue::Text(Cow::Borrowed(text)),
                other => other.clone(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
