//! The check that the type of a column fits the field that reads the column.

use std::path::Path;

use arrow_schema::DataType;
use zillion_feature::RawType;

use super::decimals::is_decimal;
use super::kept::can_keep;
use super::times::is_time;
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
            DataType::List(element) => (fits_item(*raw, element.data_type()), wanted_id(*raw)),
            // The field reads one text cell that holds several ids, as in CSV.
            found => (fits_item(*raw, found) || is_text(found), wanted_id(*raw)),
        },
        Role::Vector { .. } | Role::RawVector { .. } => {
            let fits = match found {
                DataType::List(item) => is_float_item(item.data_type()),
                found => is_text(found),
            };
            (fits, "lists of numbers, or texts with numbers")
        }
        Role::Kept => {
            (can_keep(found) || is_decimal(found), "one text, number or time in each row")
        }
        Role::Text => (is_text(found), "strings"),
        Role::SideRow(lookup) => (fits_id(lookup.raw, found), wanted_id(lookup.raw)),
        Role::Numeric { .. } | Role::Bucket { .. } | Role::Number { .. } => {
            (is_number(found) || *found == DataType::Boolean, "numbers")
        }
        Role::Derived { rule, .. } | Role::RawTime { rule } => match rule.unit {
            Some(_) => (
                is_time(found) || is_text(found) || is_count(found),
                "dates, timestamps, texts with dates, or numbers of its `time_unit`",
            ),
            None => (is_time(found) || is_text(found), "dates, timestamps or texts with dates"),
        },
        Role::Label { rule: LabelRule::Values(_), .. } => (
            is_number(found) || is_text(found) || *found == DataType::Boolean,
            "texts, numbers or booleans",
        ),
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
        Role::EventTime { unit: None, .. } => {
            (found.is_integer() || is_time(found), "whole numbers, dates or timestamps")
        }
        Role::EventTime { unit: Some(unit), .. } => {
            times = format!("numbers of {unit}, timestamps, dates or texts with dates");
            (is_count(found) || is_time(found) || is_text(found), times.as_str())
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
        RawType::String => is_text(found) || is_decimal(found) || *found == DataType::Boolean,
    }
}

/// Returns whether the items of a list can be ids. Lists of decimals and booleans are not read.
fn fits_item(raw: RawType, found: &DataType) -> bool {
    let is_flag = *found == DataType::Boolean && raw == RawType::String;
    fits_id(raw, found) && !is_decimal(found) && !is_flag
}

fn is_number(found: &DataType) -> bool {
    let is_float = matches!(found, DataType::Float16 | DataType::Float32 | DataType::Float64);
    found.is_integer() || is_float || is_decimal(found)
}

/// Returns whether the items of a list can be floats of a vector.
fn is_float_item(found: &DataType) -> bool {
    is_number(found) && !is_decimal(found)
}

/// Returns whether the values of a type can count the units since 1970. A float of 32 bits would
/// round them to minutes.
fn is_count(found: &DataType) -> bool {
    found.is_integer() || *found == DataType::Float64
}

fn is_text(found: &DataType) -> bool {
    matches!(found, DataType::Utf8 | DataType::Binary)
}

/// Returns the description of a type for messages.
fn describe(found: &DataType) -> String {
    match found {
        DataType::Utf8 => "a column of strings".to_owned(),
        DataType::Binary => "a column of byte strings".to_owned(),
        DataType::Boolean => "a column of booleans".to_owned(),
        DataType::List(element) => format!("a column of lists of {}", element.data_type()),
        DataType::Struct(_) => "a column of structs".to_owned(),
        DataType::Timestamp(..) => "a column of timestamps".to_owned(),
        DataType::Date32 | DataType::Date64 => "a column of dates".to_owned(),
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
        (Role::EventTime { unit: None, .. }, found) if is_text(found) => {
            "set `columns.event_time_unit` to the unit into which dates are converted, such as \"s\""
        }
        (Role::Derived { rule, .. } | Role::RawTime { rule }, found)
            if rule.unit.is_none() && is_number(found) =>
        {
            "set the `time_unit` of the feature: \"s\", \"ms\", \"us\" or \"ns\""
        }
        (
            Role::Id { .. }
            | Role::RawId { .. }
            | Role::Numeric { .. }
            | Role::Bucket { .. }
            | Role::Number { .. },
            found,
        ) if is_time(found) => {
            "add `derive = \"hour\"`, `\"weekday\"`, `\"days\"` or another part of the time"
        }
        (Role::Numeric { .. } | Role::Number { .. }, DataType::List(_)) => {
            "declare `kind = \"vector\"` for lists of the same number of floats"
        }
        (Role::Label { .. }, found) if is_text(found) => {
            "set `positive = \"<value>\"` for the value that makes the label 1"
        }
        _ => "convert the column, or name another one",
    }
}
