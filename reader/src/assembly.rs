//! The assembly of batches from decoded rows: it gathers the columns of all pieces, joins side
//! tables and computes crosses.

use std::sync::Arc;

use zillion_feature::{
    Attribute, Batch, Crosses, FeatureSpec, KeyColumn, LabelColumn, Schema, Statistics,
};

use crate::block::{Piece, lists, values};
use crate::error::{ReaderError, Result};
use crate::field::{self, Field, Role, Slot};
use crate::side_tables::SideTables;

/// The plan by which decoded columns become batches of a schema.
#[derive(Clone, Debug)]
pub(crate) struct Assembly {
    schema: Arc<Schema>,
    /// The joins of the schema, in its order.
    joined: Vec<Joined>,
    crosses: Crosses,
    /// The maximum length of a list in each sparse column.
    max_lens: Vec<Option<usize>>,
}

/// A join: the side table, and the attributes that take their values from it.
#[derive(Clone, Debug)]
struct Joined {
    side: usize,
    /// The row index that stands for a key that is not in the side table.
    absent: u32,
    attributes: Vec<Attribute>,
}

impl Assembly {
    /// Returns the plan for batches of the wanted features; the columns of the other features stay
    /// empty. `wanted` is called with the position of a feature in the schema.
    ///
    /// # Errors
    /// Returns an error if statistics that a transform needs are absent, or if a value of a side
    /// table is infinite after its transform.
    pub(crate) fn new(
        schema: &Arc<Schema>,
        sides: &SideTables,
        statistics: &Statistics,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        let joined = field::joins(schema).into_iter().map(|join| {
            let features = join.features.into_iter().filter(|&feature| wanted(feature));
            let attributes = features.map(|feature| {
                let column = sides.column(join.side, feature);
                let attribute = Attribute::new(schema, feature, column, statistics)?;
                refuse_infinite(schema, feature, &attribute)?;
                Ok(attribute)
            });
            let absent = sides.index(join.side).len();
            Ok(Joined { side: join.side, absent, attributes: attributes.collect::<Result<_>>()? })
        });
        Ok(Self {
            joined: joined.collect::<Result<_>>()?,
            schema: schema.clone(),
            crosses: Crosses::of(schema),
            max_lens: schema.sparse().map(FeatureSpec::max_len).collect(),
        })
    }

    /// Assembles pieces into one batch. The columns of the pieces were decoded for `fields`, in
    /// this order.
    ///
    /// # Errors
    /// Returns an error if a column of lists has more ids than offsets of 32 bits can count.
    pub(crate) fn batch(&self, pieces: &[Piece], fields: &[Field]) -> Result<Batch> {
        let rows = pieces.iter().map(|piece| piece.rows).sum();
        // If the data for prediction lacks a column, there is no field for this column, and the
        // batch leaves it out.
        let empty = Batch::empty(&self.schema);
        let mut batch = Batch { rows, weight: None, group: None, event_time: None, ..empty };
        for (i, field) in fields.iter().enumerate() {
            match field.slot {
                Slot::Sparse(at) => {
                    batch.sparse[at] = match field.role {
                        Role::Ids { .. } => {
                            let mut column = lists(pieces, rows, i)?;
                            if let Some(max_len) = self.max_lens[at] {
                                column.keep_last(max_len);
                            }
                            column
                        }
                        _ => KeyColumn::single(values(pieces, i)),
                    };
                }
                Slot::Numeric(at) => match field.role {
                    Role::Vector { size, .. } => {
                        spread(pieces, i, rows, &mut batch.numeric[at..at + size]);
                    }
                    _ => batch.numeric[at] = values(pieces, i),
                },
                Slot::Label(at) => batch.labels[at] = gather_label(pieces, i, &field.role),
                Slot::Weight => batch.weight = Some(values(pieces, i)),
                Slot::Group => batch.group = Some(values(pieces, i)),
                Slot::EventTime => batch.event_time = Some(values(pieces, i)),
                Slot::Join(number) => {
                    self.joined[number].fill(&values(pieces, i), &mut batch);
                }
                Slot::Pass => {}
            }
        }
        self.crosses.fill(&mut batch);
        Ok(batch)
    }
}

impl Joined {
    fn fill(&self, rows: &[u32], batch: &mut Batch) {
        let missing = rows.iter().filter(|&&row| row == self.absent).count();
        batch.side_missing[self.side] += missing as u64;
        for attribute in &self.attributes {
            attribute.fill(rows, batch);
        }
    }
}

/// Fills one column for each float of a vector.
fn spread(pieces: &[Piece], field: usize, rows: usize, columns: &mut [Vec<f32>]) {
    columns.iter_mut().for_each(|column| *column = Vec::with_capacity(rows));
    for part in pieces.iter().map(|piece| piece.lists::<f32>(field)) {
        for vector in part.values.chunks_exact(columns.len()) {
            columns.iter_mut().zip(vector).for_each(|(column, &x)| column.push(x));
        }
    }
}

/// Returns an error if a value of a side table's attribute is infinite after its transform. Such
/// numbers in the data itself are refused when they are decoded.
fn refuse_infinite(schema: &Schema, feature: usize, attribute: &Attribute) -> Result<()> {
    let spec = &schema.features[feature];
    let Some(row) = attribute.first_infinite() else { return Ok(()) };
    let side = spec.side.as_ref().map_or("", |s| &schema.sides[s.side].name);
    let problem = format!(
        "row {} of side table `{side}`: the transformed value is too large for 32-bit floats; scale column `{}`",
        row + 1,
        spec.column
    );
    Err(ReaderError::setting(format_args!("features.{}", spec.name), problem))
}

/// Returns the values of one label field in all pieces.
pub(crate) fn gather_label(pieces: &[Piece], i: usize, role: &Role) -> LabelColumn {
    let is_optional = matches!(role, Role::Label { optional: true, .. });
    let mask = is_optional.then(|| values(pieces, i));
    // A mask of `None` says that every row has a label.
    LabelColumn { values: values(pieces, i), mask: mask.filter(|mask| mask.contains(&false)) }
}
