//! The inputs of a request under the names of the stream's columns, and the columns that a line of
//! the log has besides them.
//!
//! A version whose rows a trainer could not learn from is refused with the reason, instead of a log
//! that somebody finds useless later.

use std::collections::BTreeMap;

use zillion_feature::{Encoder, InputKind, RawColumn, RawColumns, RawType, RawValue, RawValues};

use super::settings::ModelLogSettings;
use crate::score::{LOGITS, Output, PREDICTIONS, PROBABILITIES, SCORES};

/// The column with the number of a row in its request.
pub(super) const ROW: &str = "served_row";
/// The column with the name of the model that answered.
pub(super) const MODEL: &str = "served_model";
/// The column with the number of the version that answered.
pub(super) const VERSION: &str = "served_version";

/// The values of a column of the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    pub(super) column: &'a str,
    pub(super) values: &'a RawColumn<'a>,
    /// Whether an id feature reads the column.
    pub(super) is_id: bool,
    /// Whether only features with lists read the column.
    pub(super) is_list: bool,
}

/// Returns the columns of an output in the log: one, or one for each class.
pub(super) fn score_columns(output: &Output) -> Vec<String> {
    let name = score_column(output);
    match &output.classes[..] {
        [] => vec![name],
        classes => classes.iter().map(|class| format!("{name}/{class}")).collect(),
    }
}

/// Returns the column of a score in the log, by the name of the output.
fn score_column(output: &Output) -> String {
    let (kind, task) = match output.name.split_once('/') {
        Some((kind, task)) => (kind, Some(task)),
        None => (output.name.as_str(), None),
    };
    let kind = match kind {
        PROBABILITIES => "probability",
        PREDICTIONS => "prediction",
        LOGITS => "logit",
        SCORES => "score",
        other => other,
    };
    match task {
        Some(task) => format!("served_{kind}/{task}"),
        None => format!("served_{kind}"),
    }
}

/// Collects the columns of a request in the order of the schema, without those that are left out.
///
/// # Errors
/// Returns the reason and the remedy if a trainer could not learn from the lines of the version, or
/// if they would not have what the model has scored.
pub(super) fn collect<'a>(
    encoder: &'a Encoder,
    columns: &'a RawColumns<'a>,
    outputs: &[Output],
    id_column: &str,
    settings: &ModelLogSettings,
) -> Result<Vec<Input<'a>>, String> {
    let mut inputs: Vec<Input<'a>> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut omitted = vec![false; settings.omit.len()];
    for spec in encoder.inputs() {
        if let Some(at) = settings.omit.iter().position(|name| *name == spec.column) {
            if spec.needs_value {
                return Err(format!(
                    "column `{}` is in `omit`, but the feature `{}` needs a value in each row; set \
                     `missing` of the feature and publish the model again, or log the column",
                    spec.column, spec.name
                ));
            }
            omitted[at] = true;
            continue;
        }
        let given = columns.get(spec.name.as_str()).or_else(|| columns.get(spec.column.as_str()));
        // A request that was scored has all inputs.
        let Some(values) = given else { continue };
        let is_id = matches!(spec.kind, InputKind::Id(_));
        let Some(&at) = places.get(spec.column.as_str()) else {
            places.insert(&spec.column, inputs.len());
            inputs.push(Input { column: &spec.column, values, is_id, is_list: spec.is_list });
            continue;
        };
        let known = &mut inputs[at];
        if !std::ptr::eq(known.values, values) && known.values != values {
            return Err(format!(
                "the request has different values for the features that read the column `{}`, and \
                 a line has one; send the input `{}` once",
                spec.column, spec.column
            ));
        }
        known.is_id |= is_id;
        known.is_list &= spec.is_list;
    }
    if let Some(at) = omitted.iter().position(|found| !found) {
        return Err(format!(
            "`omit` names the column `{}`, which no input of the version has; correct the name, so \
             that nothing is logged that must not be",
            settings.omit[at]
        ));
    }
    check_schema(encoder, &places, outputs, id_column, settings)?;
    Ok(inputs)
}

/// Checks that the lines of a version have all columns that its schema needs, each once.
fn check_schema(
    encoder: &Encoder,
    inputs: &BTreeMap<&str, usize>,
    outputs: &[Output],
    id_column: &str,
    settings: &ModelLogSettings,
) -> Result<(), String> {
    let schema = encoder.schema();
    if schema.event_time.is_none() || schema.event_time_unit.is_none() {
        return Err("the schema of the version has no event time; set `columns.event_time` and \
                    `columns.event_time_unit` in the job, and publish the model again"
            .to_owned());
    }
    let needed = [schema.event_time.as_deref(), Some(id_column)];
    if let Some(name) = settings.omit.iter().find(|name| needed.contains(&Some(name.as_str()))) {
        return Err(format!(
            "`omit` names the column `{name}`, which a trainer needs for the time or the id of a \
             row; remove the name"
        ));
    }
    for (key, column) in [("weight", &schema.weight), ("group", &schema.group)] {
        if let Some(column) = column.as_deref().filter(|column| !inputs.contains_key(column)) {
            return Err(format!(
                "the schema has `columns.{key} = \"{column}\"`, which no request has, so that a \
                 trainer would reject the rows; remove the key from the job, and publish the model \
                 again"
            ));
        }
    }
    let labels = schema.labels.iter().map(|label| label.column.as_str());
    let event_time = schema.event_time.as_deref();
    let is_read = |name: &str| {
        inputs.contains_key(name) || labels.clone().chain(event_time).any(|known| known == name)
    };
    let own =
        outputs.iter().flat_map(score_columns).chain([ROW, MODEL, VERSION].map(str::to_owned));
    for name in own {
        if is_read(&name) {
            return Err(format!(
                "the schema has a column `{name}`, and a line of the log has one of this name; \
                 rename the column in the data and in the job"
            ));
        }
    }
    if is_read(id_column) && !is_id_input(encoder, id_column, settings) {
        return Err(format!(
            "the schema has a column `{id_column}`, and the log writes the id of the request there; \
             set `id_column` of the request log to another name, or `id_input` of the model to this \
             input"
        ));
    }
    Ok(())
}

/// Returns whether a column is that of the input with the id of the request.
pub(super) fn is_id_input(encoder: &Encoder, column: &str, settings: &ModelLogSettings) -> bool {
    let id_input = settings.id_input.as_deref();
    id_input.is_some_and(|name| {
        let reads = |input: &zillion_feature::InputSpec| {
            input.column == column && (input.name == name || input.column == name)
        };
        encoder.inputs().any(reads)
    })
}

/// Returns the id of a request that one of its inputs holds, or `None` if the value is missing.
///
/// # Errors
/// Returns the reason and the remedy if the version has no such input, or if the rows of the
/// request have no common value that can be an id.
pub(super) fn read_id(
    encoder: &Encoder,
    columns: &RawColumns<'_>,
    rows: usize,
    name: &str,
) -> Result<Option<String>, String> {
    let mut specs = encoder.inputs();
    let spec = specs.find(|spec| spec.name == name || spec.column == name).ok_or_else(|| {
        format!("`id_input` is `{name}`, and the version has no such input; correct the name")
    })?;
    let given = columns.get(spec.name.as_str()).or_else(|| columns.get(spec.column.as_str()));
    let Some(column) = given else { return Ok(None) };
    let unusable = || {
        format!(
            "the rows of the request have no common value of `{name}`, which is the `id_input`; \
             send the same text or whole number in all rows"
        )
    };
    let id = |at: usize| -> Result<Option<String>, String> {
        let id = raw_value(&column.values, at).and_then(|value| {
            let id: Option<RawValue<'static>> = value.id(RawType::String).ok()?;
            Some(id)
        });
        match id.ok_or_else(unusable)? {
            Some(RawValue::Text(text)) => Ok(Some(text.into_owned())),
            _ => Ok(None),
        }
    };
    if spec.is_list {
        return Err(unusable());
    }
    let first = id(0)?;
    let last = if column.is_shared { 1 } else { rows };
    for row in 1..last {
        if id(row)? != first {
            return Err(unusable());
        }
    }
    Ok(first)
}

/// Returns a value of a column, without a copy of its text.
fn raw_value<'v>(values: &'v RawValues<'_>, at: usize) -> Option<RawValue<'v>> {
    Some(match values {
        RawValues::Ints(values) => RawValue::Int(*values.get(at)?),
        RawValues::Uints(values) => RawValue::Uint(*values.get(at)?),
        RawValues::Floats(values) => RawValue::Float(*values.get(at)?),
        RawValues::Any(values) => match values.get(at)? {
            RawValue::Text(text) => RawValue::Text(std::borrow::Cow::Borrowed(text)),
            other => other.clone(),
        },
    })
}
