//! The types of the columns of a text file. A type is given on the command line, defined by the
//! job, or guessed from the first rows.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use zillion_console::exit::usage_error;
use zillion_datatools::{ColumnProfile, Guessed, Profile, guess, profile};
use zillion_device::Workers;
use zillion_feature::{Classes, FeatureKind, RawType, Schema};
use zillion_reader::{ColumnType, DataConfig, Decimal};

use super::GUESS_ROWS;
use crate::args::ReadArgs;
use crate::raw_files::first_rows;

/// Returns the columns of the first file with their types. Returns no columns if the files
/// themselves store the types.
pub(in crate::commands::data) fn resolve(
    args: &ReadArgs,
    config: &DataConfig,
    schema: Option<&Schema>,
    first: &Path,
    workers: &Workers,
) -> Result<Vec<(String, ColumnType)>> {
    if !config.is_text(first)? {
        if let Some((column, _)) = args.types.first() {
            return usage_error(format!(
                "file `{}` has column types of its own, which are kept; remove `--type {column}`, \
                 because --type is only for text files",
                first.display()
            ));
        }
        return Ok(Vec::new());
    }
    let given = match schema {
        Some(schema) => job_types(schema)?,
        None => BTreeMap::new(),
    };
    let is_typed = |name: &String| {
        given.contains_key(name) || args.types.iter().any(|(typed, _)| typed == name)
    };
    // If every type is already given, only the names of the columns are read.
    let mut found = look(config, first, 1, workers)?;
    if !found.columns.iter().all(|column| is_typed(&column.name)) {
        found = look(config, first, GUESS_ROWS, workers)?;
    }
    let guessed = guess(config, &found, None);
    let mut columns = Vec::with_capacity(found.columns.len());
    for column in &found.columns {
        let own = args.types.iter().rev().find(|(name, _)| *name == column.name);
        let guess = find_guess(&guessed.columns, &column.name);
        if own.is_none() && column.data_type.contains("list of float") {
            return usage_error(format!(
                "column `{}` has lists of floats, which text files are not converted with; write \
                 it as lists of Parquet with another program",
                column.name
            ));
        }
        let of = match own {
            Some((_, of)) => *of,
            None => match given.get(&column.name) {
                Some(of) => *of,
                None => guess_type(column, guess, guessed.config.decimal),
            },
        };
        columns.push((column.name.clone(), with_weights(column, of)));
    }
    let missing = args.types.iter().find(|(name, _)| found.column(name).is_none());
    if let Some((name, _)) = missing {
        let names: Vec<&str> = found.columns.iter().map(|c| c.name.as_str()).collect();
        return usage_error(format!(
            "unknown column `{name}` in --type (the file has: {}); correct the name",
            names.join(", ")
        ));
    }
    Ok(columns)
}

fn look(config: &DataConfig, first: &Path, rows: u64, workers: &Workers) -> Result<Profile> {
    Ok(profile(config, &[first.to_owned()], &first_rows(rows), workers)?)
}

/// Returns the names of the columns with weights that the conversion writes: `<column>.weights` for
/// each weighted column.
pub(super) fn weight_columns(columns: &[(String, ColumnType)]) -> Vec<String> {
    let weighted = columns.iter().filter(|(_, of)| matches!(of, ColumnType::Weighted(_)));
    weighted.map(|(name, _)| format!("{name}.weights")).collect()
}

fn find_guess<'a>(columns: &'a [(String, Guessed)], name: &str) -> Option<&'a Guessed> {
    columns.iter().find(|(known, _)| known == name).map(|(_, guessed)| guessed)
}

/// Returns the type of a list with weights if the column contains sparse vectors, otherwise the
/// type `of`.
fn with_weights(column: &ColumnProfile, of: ColumnType) -> ColumnType {
    match of {
        ColumnType::List(raw) if is_vector(column) => ColumnType::Weighted(raw),
        of => of,
    }
}

fn is_vector(column: &ColumnProfile) -> bool {
    column.data_type == "libsvm vector"
}

/// Guesses a type from a column's values. The rules are those of `zillion init`, but no column is
/// left out.
/// Numbers that are not written with the decimal sign of the other columns stay texts.
fn guess_type(column: &ColumnProfile, guessed: Option<&Guessed>, decimal: Decimal) -> ColumnType {
    match guessed {
        Some(Guessed::Ids { raw, .. }) => return ColumnType::List(*raw),
        Some(Guessed::Weighted { raw, .. }) => return ColumnType::Weighted(*raw),
        _ => {}
    }
    let cells = column.cells;
    let has_other_sign = match decimal {
        Decimal::Comma => cells.fraction > cells.comma || cells.thousands == cells.comma,
        Decimal::Point => cells.comma > 0,
    };
    match column.kind() {
        "whole" if cells.beyond_i64 > 0 && cells.negative > 0 => ColumnType::Text,
        "whole" if cells.beyond_i64 > 0 => ColumnType::Uint64,
        // Codes such as 00123 are no numbers.
        "whole" if cells.padded > 0 => ColumnType::Text,
        "whole" => ColumnType::Int64,
        "number" if cells.not_finite > 0 => ColumnType::Text,
        "number" if matches!(guessed, Some(Guessed::Left(_))) && has_other_sign => ColumnType::Text,
        "number" => ColumnType::Float,
        // Jobs read the texts true and false as 1 and 0, which a column of texts has not.
        "boolean" => ColumnType::Label,
        "list" if is_vector(column) => ColumnType::Weighted(RawType::I64),
        "list" if column.data_type.contains("string") => ColumnType::List(RawType::String),
        "list" => ColumnType::List(RawType::I64),
        _ => ColumnType::Text,
    }
}

/// Returns the types of the columns that a job reads, as the job defines them.
fn job_types(schema: &Schema) -> Result<BTreeMap<String, ColumnType>> {
    let mut types: BTreeMap<String, (ColumnType, String)> = BTreeMap::new();
    let mut add = |column: &str, of: ColumnType, by: String| -> Result<()> {
        let known = types.entry(column.to_owned()).or_insert_with(|| (of, by.clone()));
        match common_type(known.0, of) {
            Some(both) => {
                known.0 = both;
                Ok(())
            }
            None => usage_error(format!(
                "column `{column}` is {} for {} and {of} for {by}; choose one with `--type {column}=...`",
                known.0, known.1
            )),
        }
    };
    for feature in &schema.features {
        let by = format!("feature `{}`", feature.name);
        if let Some(side) = &feature.side {
            if let Some(table) = schema.sides.get(side.side) {
                add(&side.by, ColumnType::of_raw(table.raw), by)?;
            }
            continue;
        }
        // A time is a number or a text, as its values are.
        if feature.time.is_some() {
            continue;
        }
        let of = match &feature.kind {
            FeatureKind::Id { raw, .. } => ColumnType::of_raw(*raw),
            FeatureKind::Ids { raw, .. } | FeatureKind::Sequence { raw, .. } => {
                ColumnType::List(*raw)
            }
            FeatureKind::Numeric { .. } | FeatureKind::Bucketized { .. } => ColumnType::Float,
            FeatureKind::Vector { .. } => {
                return usage_error(format!(
                    "column `{}` is a vector for {by}, and text files with vectors cannot be \
                     converted; write the vectors as lists of Parquet with another program",
                    feature.column
                ));
            }
            FeatureKind::Cross { .. } => continue,
        };
        add(&feature.column, of, by)?;
    }
    for label in &schema.labels {
        // The values that make the label may be numbers or texts.
        if label.values.is_some() {
            continue;
        }
        let of = match (&label.classes, label.kind.is_binary() && label.at_least.is_none()) {
            (Some(Classes::Texts(_)), _) => ColumnType::Text,
            (_, true) => ColumnType::Label,
            _ => ColumnType::Float,
        };
        add(&label.column, of, format!("label `{}`", label.name))?;
    }
    if let Some(column) = &schema.weight {
        add(column, ColumnType::Float, "the weight".to_owned())?;
    }
    // With a unit, event times may be dates, so that the values tell the type.
    if let Some(column) = &schema.event_time
        && schema.event_time_unit.is_none()
    {
        add(column, ColumnType::Int64, "the event time".to_owned())?;
    }
    Ok(types.into_iter().map(|(column, (of, _))| (column, of)).collect())
}

/// Returns a type that both uses of a column can read, or `None` if there is no such type.
fn common_type(a: ColumnType, b: ColumnType) -> Option<ColumnType> {
    match (a, b) {
        (a, b) if a == b => Some(a),
        // A column that one use reads as whole ids holds only whole numbers, and these can be read
        // as floats too.
        (ColumnType::Int64 | ColumnType::Uint64, ColumnType::Float) => Some(a),
        (ColumnType::Float, ColumnType::Int64 | ColumnType::Uint64) => Some(b),
        (ColumnType::Label, ColumnType::Float | ColumnType::Int64) => Some(b),
        (ColumnType::Float | ColumnType::Int64, ColumnType::Label) => Some(a),
        _ => None,
    }
}
