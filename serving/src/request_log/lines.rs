//! The lines of a request: one JSON object for each row, with the raw values under the names of the
//! stream's columns.
//!
//! A value is written as it was scored, so that a reader of JSON lines makes the same key or number
//! of it. Floats have the shortest text that reads as the same bits.

use std::io;
use std::time::Duration;

use serde::Serialize;
use zillion_feature::{Encoder, LabelKind, RawColumns, RawValue, RawValues, TimeUnit};
use zillion_registry::VersionId;

use super::bounded::Bounded;
use super::inputs::{self, Input, MODEL, ROW, VERSION, is_id_input, score_columns};
use super::settings::ModelLogSettings;
use crate::score::Output;

/// The most bytes of a line. A trainer takes messages of 16 MiB, and a row is far smaller.
const LONGEST_LINE: usize = 1 << 20;

/// A request that was scored.
#[derive(Debug)]
pub(super) struct Served<'a> {
    pub(super) model: &'a str,
    pub(super) version: VersionId,
    pub(super) encoder: &'a Encoder,
    pub(super) rows: usize,
    pub(super) columns: &'a RawColumns<'a>,
    /// The scores that the version can give, and the scores of the rows by their numbers.
    pub(super) outputs: &'a [Output],
    pub(super) logits: &'a [Vec<f32>],
    /// The id of the request.
    pub(super) id: &'a str,
    /// The time since 1970 at which the request was scored.
    pub(super) time: Duration,
}

/// The reason why a request has no lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unlogged {
    /// A line is too long.
    LongLine,
    /// The lines together exceed the limit of bytes.
    NoRoom,
    /// The version, or this request, does not fit the stream.
    Unfit(String),
}

/// A part of a line, which begins with a comma.
enum Part<'a> {
    /// Bytes that all lines have.
    Fixed(Vec<u8>),
    /// The number of the row.
    Row(Vec<u8>),
    /// The value or the list of a column, with the first value of each row of lists.
    Input { key: Vec<u8>, input: Input<'a>, starts: Option<Vec<usize>> },
    /// A score of each row.
    Score { key: Vec<u8>, logits: &'a [f32], predicts: Option<LabelKind> },
}

/// Writes the lines of a request, of at most `limit` bytes.
///
/// # Errors
/// Returns the reason if the request cannot be logged.
pub(super) fn write(
    served: &Served<'_>,
    id_column: &str,
    settings: &ModelLogSettings,
    limit: usize,
) -> Result<Vec<u8>, Unlogged> {
    let Served { encoder, columns, outputs, .. } = *served;
    let inputs = inputs::collect(encoder, columns, outputs, id_column, settings);
    let inputs = inputs.map_err(Unlogged::Unfit)?;
    let parts = lay_out(served, &inputs, id_column, settings).map_err(|_| Unlogged::LongLine)?;
    let mut out = Bounded::new(limit);
    for row in 0..served.rows {
        let end = out.len().saturating_add(LONGEST_LINE);
        out.set_limit(limit.min(end));
        if write_line(&mut out, &parts, row).is_err() {
            return Err(if out.limit() < limit { Unlogged::LongLine } else { Unlogged::NoRoom });
        }
    }
    Ok(out.into_bytes())
}

/// Returns the parts of a line in their order. Values that all rows share are written once.
fn lay_out<'a>(
    served: &Served<'a>,
    inputs: &[Input<'a>],
    id_column: &str,
    settings: &ModelLogSettings,
) -> io::Result<Vec<Part<'a>>> {
    let schema = served.encoder.schema();
    let mut fixed = Bounded::new(LONGEST_LINE);
    if !is_id_input(served.encoder, id_column, settings) {
        put_fixed(&mut fixed, id_column, served.id)?;
    }
    if let (Some(name), Some(unit)) = (&schema.event_time, schema.event_time_unit)
        && !inputs.iter().any(|input| input.column == name)
    {
        put_fixed(&mut fixed, name, &count_units(served.time, unit))?;
    }
    let mut parts = vec![Part::Row(key(ROW)?)];
    for input in inputs {
        if input.values.is_shared {
            fixed.put(&key(input.column)?)?;
            let lengths = input.values.lengths.as_deref();
            let end = lengths.map_or(1, |lengths| lengths.iter().sum());
            write_value(&mut fixed, input, 0, end)?;
            continue;
        }
        let starts = match &input.values.lengths {
            Some(lengths) if input.is_list => Some(find_starts(lengths)),
            _ => None,
        };
        parts.push(Part::Input { key: key(input.column)?, input: *input, starts });
    }
    put_fixed(&mut fixed, MODEL, served.model)?;
    put_fixed(&mut fixed, VERSION, &served.version.0)?;
    parts.insert(0, Part::Fixed(fixed.into_bytes()));
    for output in served.outputs {
        for (column, name) in score_columns(output).into_iter().enumerate() {
            let Some(logits) = served.logits.get(output.task + column) else { continue };
            let (key, predicts) = (key(&name)?, output.predicts);
            parts.push(Part::Score { key, logits, predicts });
        }
    }
    Ok(parts)
}

/// Returns the number of the first value of each row, and the number of all values.
fn find_starts(lengths: &[usize]) -> Vec<usize> {
    let mut starts = Vec::with_capacity(lengths.len() + 1);
    starts.push(0);
    let mut end = 0;
    for length in lengths {
        end += length;
        starts.push(end);
    }
    starts
}

/// Returns a time as a number of units.
fn count_units(time: Duration, unit: TimeUnit) -> u64 {
    let count = match unit {
        TimeUnit::Second => u128::from(time.as_secs()),
        TimeUnit::Millisecond => time.as_millis(),
        TimeUnit::Microsecond => time.as_micros(),
        TimeUnit::Nanosecond => time.as_nanos(),
    };
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Returns a comma, the name of a column, and a colon.
fn key(name: &str) -> io::Result<Vec<u8>> {
    let mut key = Vec::with_capacity(name.len() + 4);
    key.push(b',');
    serde_json::to_writer(&mut key, name)?;
    key.push(b':');
    Ok(key)
}

fn put_fixed(out: &mut Bounded, name: &str, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
    out.put(&key(name)?)?;
    Ok(serde_json::to_writer(out, value)?)
}

/// Writes the line of a row.
fn write_line(out: &mut Bounded, parts: &[Part<'_>], row: usize) -> io::Result<()> {
    out.put(b"{")?;
    for (at, part) in parts.iter().enumerate() {
        // The first part has no comma before it.
        let from = usize::from(at == 0);
        match part {
            Part::Fixed(bytes) => out.put(&bytes[from..])?,
            Part::Row(key) => {
                out.put(&key[from..])?;
                serde_json::to_writer(&mut *out, &row)?;
            }
            Part::Input { key, input, starts } => {
                out.put(&key[from..])?;
                let (start, end) = match starts {
                    Some(starts) => (starts[row], starts[row + 1]),
                    None => (row, row + 1),
                };
                write_value(out, input, start, end)?;
            }
            Part::Score { key, logits, predicts } => {
                out.put(&key[from..])?;
                let logit = logits.get(row).copied().unwrap_or(f32::NAN);
                let score = predicts.map_or(logit, |kind| kind.predict(logit));
                // A number that is not finite becomes null.
                serde_json::to_writer(&mut *out, &score)?;
            }
        }
    }
    out.put(b"}\n")
}

/// Writes the values of one row: a list, or the one value.
fn write_value(out: &mut Bounded, input: &Input<'_>, start: usize, end: usize) -> io::Result<()> {
    if !input.is_list {
        return write_scalar(out, input, start);
    }
    out.put(b"[")?;
    for at in start..end {
        if at > start {
            out.put(b",")?;
        }
        write_scalar(out, input, at)?;
    }
    out.put(b"]")
}

fn write_scalar(out: &mut Bounded, input: &Input<'_>, at: usize) -> io::Result<()> {
    match &input.values.values {
        RawValues::Ints(values) => serde_json::to_writer(out, &values[at])?,
        RawValues::Uints(values) => serde_json::to_writer(out, &values[at])?,
        RawValues::Floats(values) => write_float(out, values[at], input.is_id)?,
        RawValues::Any(values) => match &values[at] {
            RawValue::Missing => out.put(b"null")?,
            RawValue::Int(x) => serde_json::to_writer(out, x)?,
            RawValue::Uint(x) => serde_json::to_writer(out, x)?,
            RawValue::Float(x) => write_float(out, *x, input.is_id)?,
            RawValue::Bool(flag) => out.put(if *flag { b"true" } else { b"false" })?,
            RawValue::Text(text) => serde_json::to_writer(out, text.as_ref())?,
        },
    }
    Ok(())
}

/// Writes a float. A request may write the id 42 as 42.0, and files may not.
fn write_float(out: &mut Bounded, x: f64, is_id: bool) -> io::Result<()> {
    if is_id && x.fract() == 0.0 && x.abs() < 9e15 {
        return Ok(serde_json::to_writer(out, &(x as i64))?);
    }
    Ok(serde_json::to_writer(out, &x)?)
}
