//! A chunk of records to a block of columns.

use zillion_feature::FeatureKey;

use super::TextSettings;
use super::chunks::Chunk;
use super::records::{Records, Step};
use crate::block::{Block, Column, end_list};
use crate::config::Decimal;
use crate::field::{Field, Role};
use crate::value::{self, Outcome, Refusal};

/// Which cells of a record are decoded, into which fields.
#[derive(Clone, Debug)]
pub(crate) struct TextPlan {
    /// Cells of every record.
    pub(crate) width: usize,
    /// (cell, field), ascending.
    pub(crate) cells: Vec<(usize, usize)>,
    pub(crate) settings: TextSettings,
}

/// A row that cannot be decoded: the chunk's row, counted from 0, and the byte at which it starts in the
/// decompressed text. Whoever knows the rows before the chunk makes a message of it.
#[derive(Debug)]
pub(crate) struct BadRow {
    pub(crate) row: u64,
    pub(crate) byte: u64,
    pub(crate) problem: Problem,
}

/// What is wrong with a row.
#[derive(Debug)]
pub(crate) enum Problem {
    CellCount {
        found: usize,
        expected: usize,
    },
    OpenQuote,
    /// A value of the numbered field.
    Value {
        field: usize,
        explanation: String,
    },
}

/// Number of records of a chunk.
pub(crate) fn count(chunk: &Chunk, plan: &TextPlan) -> usize {
    let mut records = Records::new(plan.settings.dialect, &chunk.bytes);
    let mut rows = 0;
    while matches!(records.advance(), Step::Record | Step::LastRecord) {
        rows += 1;
    }
    rows
}

/// Decodes a chunk without its first `skip` rows.
pub(crate) fn decode(
    chunk: &Chunk,
    plan: &TextPlan,
    fields: &[Field],
    skip: usize,
) -> Result<Block, BadRow> {
    // A guess that is right within a factor of two for most logs, and only a guess.
    let capacity = chunk.bytes.len() / (4 * plan.width + 1) + 1;
    let mut columns: Vec<Column> =
        fields.iter().map(|field| Column::with_capacity(&field.role, capacity)).collect();
    let mut records = Records::new(plan.settings.dialect, &chunk.bytes);
    let mut row = 0;
    loop {
        let start = records.consumed();
        let bad = |problem| BadRow { row: row as u64, byte: chunk.offset + start as u64, problem };
        match records.advance() {
            Step::Record | Step::LastRecord => {}
            Step::OpenQuote => return Err(bad(Problem::OpenQuote)),
            Step::End => break,
        }
        if row >= skip {
            if records.cells() != plan.width {
                let (found, expected) = (records.cells(), plan.width);
                return Err(bad(Problem::CellCount { found, expected }));
            }
            for &(cell, field) in &plan.cells {
                let text = records.cell(cell);
                if let Err(refusal) =
                    push(&mut columns[field], &fields[field].role, text, &plan.settings)
                {
                    let shown = (refusal != Refusal::Missing).then_some(text);
                    let explanation = refusal.explain(&fields[field], shown);
                    return Err(bad(Problem::Value { field, explanation }));
                }
            }
        }
        row += 1;
    }
    Ok(Block { rows: row.saturating_sub(skip), columns })
}

impl TextSettings {
    #[inline]
    fn is_missing(&self, cell: &[u8]) -> bool {
        cell.is_empty() || self.null.iter().any(|marker| marker == cell)
    }

    #[inline]
    fn number(&self, cell: &[u8]) -> Outcome<f64> {
        match self.decimal {
            Decimal::Point => value::parse_f64(cell.trim_ascii()),
            Decimal::Comma => value::parse_f64_with_comma(cell.trim_ascii()),
        }
    }

    fn label(&self, cell: &[u8]) -> Outcome<f32> {
        match self.decimal {
            Decimal::Comma if cell.contains(&b',') => {
                self.number(cell).map_err(|_| Refusal::NotLabel).and_then(value::label)
            }
            _ => value::label_from_cell(cell),
        }
    }
}

/// Decodes one cell.
#[inline]
fn push(column: &mut Column, role: &Role, cell: &[u8], settings: &TextSettings) -> Outcome<()> {
    let missing = settings.is_missing(cell);
    match (role, column) {
        (Role::Id { raw, missing: key }, Column::Keys(keys)) => {
            keys.push(if missing { *key } else { value::id_from_cell(*raw, cell)? });
        }
        (Role::Ids { raw }, Column::Lists { offsets, keys }) => {
            if !missing {
                for id in cell.split(|&b| b == settings.list_separator) {
                    if !settings.is_missing(id) {
                        keys.push(value::id_from_cell(*raw, id)?);
                    }
                }
            }
            end_list(offsets, keys)?;
        }
        (Role::Numeric { map, missing: fill }, Column::Floats(values)) => {
            values.push(match missing {
                true => fill.ok_or(Refusal::Missing)?,
                false => value::numeric(map, settings.number(cell)?)?,
            });
        }
        (Role::Bucket { buckets, missing: key }, Column::Keys(keys)) => {
            keys.push(match missing {
                true => *key,
                false => buckets.key(value::finite(settings.number(cell)?)?),
            });
        }
        (Role::Present, Column::Present(values)) => {
            if !missing {
                values.push(value::finite(settings.number(cell)?)?);
            }
        }
        (Role::Number { needed }, Column::Numbers(values)) => {
            values.push(match missing {
                true if *needed => return Err(Refusal::Missing),
                true => f64::NAN,
                false => value::finite(settings.number(cell)?)?,
            });
        }
        (Role::SideRow(lookup), Column::Rows(rows)) => {
            let key = (!missing).then(|| value::id_from_cell(lookup.raw, cell)).transpose()?;
            rows.push(lookup.row(key)?);
        }
        (Role::Label { .. }, Column::Labels { values, mask }) => {
            values.push(match (missing, &mask) {
                (false, _) => settings.label(cell)?,
                (true, Some(_)) => 0.0,
                (true, None) => return Err(Refusal::Missing),
            });
            if let Some(mask) = mask {
                mask.push(!missing);
            }
        }
        (_, _) if missing => return Err(Refusal::Missing),
        (Role::Weight, Column::Floats(values)) => {
            let x = settings.number(cell).map_err(|_| Refusal::NotWeight)?;
            values.push(value::weight(x)?);
        }
        (Role::Group, Column::Words(words)) => words.push(value::group_from_bytes(cell)?),
        (Role::EventTime, Column::Times(times)) => times.push(value::time_from_cell(cell)?),
        // `Column::with_capacity` chose the column by the role.
        (role, column) => unreachable!("{role:?} does not decode into {column:?}"),
    }
    Ok(())
}

const _: () = assert!(size_of::<Outcome<FeatureKey>>() <= 16);
