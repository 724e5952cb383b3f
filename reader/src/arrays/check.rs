//! The check that the type of a column fits the field that reads the column.

use std::path::Path;

use arrow_schema::{DataType, TimeUnit as ArrowUnit};
use zillion_feature::{RawType, TimeUnit};

use crate::error::{ReaderError, Result};
use crate::field::{Field, Role};
use crate::value::{ClassIndex, LabelRule};

/// Checks that a field can read a column of the type `found`.
///
/// # Errors
/// Returns an error if the type does not fit the role of the field.
pub(crate) fn check_type(field: &Field, found: &DataType, path: &Path) -> Result<()> {
    // A column of this type has no values, so every value is missing.
    if *found == DataType::Null {
        return Ok(());
    }
    let times;
    let (fits, wanted) = match &field.role {
        Role::Id { raw, .. } | Role::RawId { raw } => (fits_id(*raw, found), wanted_id(*raw)),
        Role::Ids { raw } | Role::RawIds { raw, .. } => match found {
            DataType::List(element) => (fits_id(*raw, element.data_type()), wanted_id(*raw)),
            // The field reads one text cell that holds several ids, as in CSV.
            found => (fits_id(*raw, found) || is_text(found), wanted_id(*raw)),
        },
        Role::Text => (is_text(found), "strings"),
        Role::SideRow(lookup) => (fits_id(lookup.raw, found), wanted_id(lookup.raw)),
        Role::Numeric { .. } | Role::Bucket { .. } | Role::Number { .. } => {
            (is_number(found) || *found == DataType::Boolean, "numbers")
        }
        Role::Label { rule: LabelRule::AtLeast(_), .. } => {
            (is_number(found), "numbers to compare with its `at_least`")
        }
        Role::Label { rule: LabelRule::Class(classes), .. } => match **classes {
            ClassIndex::Numbers(_) => (is_number(found), "numbers, as its `classes` are"),
            ClassIndex::Texts(_) => (is_text(found), "strings, as its `classes` are"),
        },
        Role::Label { rule: LabelRule::Number | LabelRule::Count, .. } => {
            (is_number(found), "numbers")
        }
        Role::Label { .. } => (is_number(found) || *found == DataType::Boolean, "0 or 1"),
        Role::Weight => (is_number(found), "numbers"),
        Role::Group => (found.is_integer() || is_text(found), "whole numbers or strings"),
        Role::EventTime { unit: None } => {
            (found.is_integer() || is_time(found), "whole numbers, dates or timestamps")
        }
        Role::EventTime { unit: Some(unit) } => {
            times = format!("whole numbers or timestamps of {unit}");
            (found.is_integer() || time_unit(found) == Some(*unit), times.as_str())
        }
    };
    if fits {
        return Ok(());
    }
    let (found_name, remedy) = (describe(found), remedy(&field.role, found));
    Err(ReaderError::ColumnType {
        column: field.column.clone(),
        mismatch: format!("{found_name}, but {} needs {wanted}; {remedy}", field.used_by),
        path: path.to_owned(),
    })
}

fn wanted_id(raw: RawType) -> &'static str {
    match raw {
        RawType::I64 => "whole numbers (its `type` is i64)",
        RawType::U64 => "whole numbers (its `type` is u64)",
        RawType::String => "strings (its `type` is string)",
    }
}

fn fits_id(raw: RawType, found: &DataType) -> bool {
    match raw {
        // A column of whole numbers with missing values is often written as floating-point numbers.
        RawType::I64 | RawType::U64 => is_number(found) || *found == DataType::Boolean,
        RawType::String => is_text(found),
    }
}

fn is_number(found: &DataType) -> bool {
    found.is_integer() || matches!(found, DataType::Float16 | DataType::Float32 | DataType::Float64)
}

fn is_text(found: &DataType) -> bool {
    matches!(found, DataType::Utf8 | DataType::Binary)
}

fn is_time(found: &DataType) -> bool {
    matches!(found, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64)
}

/// Returns the unit of a type of dates or timestamps. Returns `None` if the type has no unit that
/// the settings of event times allow.
fn time_unit(found: &DataType) -> Option<TimeUnit> {
    match found {
        DataType::Timestamp(ArrowUnit::Second, _) => Some(TimeUnit::Second),
        DataType::Timestamp(ArrowUnit::Millisecond, _) | DataType::Date64 => {
            Some(TimeUnit::Millisecond)
        }
        DataType::Timestamp(ArrowUnit::Microsecond, _) => Some(TimeUnit::Microsecond),
        DataType::Timestamp(ArrowUnit::Nanosecond, _) => Some(TimeUnit::Nanosecond),
        // A date of whole days is not a point in time.
        _ => None,
    }
}

/// Returns the description of a type for messages.
fn describe(found: &DataType) -> String {
    match found {
        DataType::Utf8 => "a column of strings".to_owned(),
        DataType::Binary => "a column of byte strings".to_owned(),
        DataType::Boolean => "a column of booleans".to_owned(),
        DataType::List(element) => format!("a column of lists of {}", element.data_type()),
        DataType::Struct(_) => "a column of structs".to_owned(),
        other if is_number(other) => format!("a column of {}", other.to_string().to_lowercase()),
        other => format!("a column of type {other}"),
    }
}

fn remedy(role: &Role, found: &DataType) -> &'static str {
    let is_id = matches!(
        role,
        Role::Id { .. }
            | Role::RawId { .. }
            | Role::Ids { .. }
            | Role::RawIds { .. }
            | Role::SideRow(_)
    );
    match (role, found) {
        (Role::Id { .. } | Role::RawId { .. }, DataType::List(_)) => {
            "declare `kind = \"ids\"` for a list"
        }
        (_, found) if is_id && is_text(found) => {
            "declare `type = \"string\"`, or write the column as integers"
        }
        (_, found) if is_id && found.is_integer() => "declare `type = \"i64\"` or `type = \"u64\"`",
        (_, found) if is_id && is_number(found) => {
            "declare `type = \"i64\"` if the numbers are whole, or `kind = \"bucketized\"`"
        }
        (Role::Numeric { .. } | Role::Bucket { .. } | Role::Number { .. }, found)
            if is_text(found) =>
        {
            "declare `kind = \"id\"` with `type = \"string\"`, or write the column as numbers"
        }
        (Role::EventTime { unit: Some(_) }, DataType::Date32) => {
            "write timestamps, because a day is not a point in time, or remove `columns.event_time_unit`"
        }
        (Role::EventTime { unit: Some(_) }, found) if is_time(found) => {
            "set `columns.event_time_unit` to the unit of this type"
        }
        _ => "convert the column, or name another one",
    }
}
