//! The messages about values that are refused.

use crate::field::{Field, Role};
use crate::value::{LabelRule, Refusal, refuse_time, shorten};
use zillion_feature::raw_value::ValueError;

/// Returns the message about a refused value, with the value as text, the problem and the remedy.
/// `text` is `None` if the value is missing.
pub(crate) fn explain(refusal: Refusal, field: &Field, text: Option<&[u8]>) -> String {
    let used_by = &field.used_by;
    let shown = shorten(text.unwrap_or_default());
    let says = |problem: &str| format!("\"{shown}\" {problem}");
    let refusal = match (&field.role, refusal) {
        (Role::EventTime { .. }, Refusal::Raw(error)) => refuse_time(error),
        (_, refusal) => refusal,
    };
    match refusal {
        Refusal::Raw(ValueError::NotWhole) => says(&format!(
            "is not a whole number; declare `type = \"string\"` for {used_by} if its ids are text, or add this text to `data.null` if it stands for a missing value"
        )),
        Refusal::Raw(ValueError::Beyond64Bits) => says(&format!(
            "does not fit the declared 64-bit type of {used_by}; declare `type = \"u64\"` or `type = \"string\"`"
        )),
        Refusal::Raw(ValueError::Rounded) if matches!(field.role, Role::Kept) => says(&format!(
            "is a whole number that was rounded to 64 bits, so {used_by} would not be a copy; write it \
             as a string"
        )),
        Refusal::Raw(ValueError::Rounded) => says(&format!(
            "is a floating-point number that may have been rounded, so that {used_by} would take several ids for one; write the column as whole numbers or texts"
        )),
        Refusal::Raw(ValueError::Negative) => {
            says(&format!("is negative, but {used_by} is declared u64; declare `type = \"i64\"`"))
        }
        Refusal::Raw(ValueError::NotNumber) => says(&format!(
            "is not a number, which {used_by} needs; add it to `data.null` if it stands for a missing value{}",
            if text.is_some_and(|t| t.contains(&b',')) {
                ", or set `data.decimal = \",\"` if the comma stands before a fraction"
            } else {
                ""
            }
        )),
        Refusal::Raw(ValueError::NotFinite) => says(&format!(
            "is not finite; clean the data, or write it as a missing value and give {used_by} a `missing = <number>`"
        )),
        Refusal::BeyondF32 => {
            says(&format!("is too large for 32-bit floats; scale the column that {used_by} reads"))
        }
        Refusal::Missing => match field.role.of_values() {
            Role::Numeric { .. } | Role::Number { .. } | Role::Vector { .. } => format!(
                "the value is missing; give {used_by} a `missing = <number>` or clean the data"
            ),
            _ => format!(
                "the value is missing, but {used_by} needs one in every row; clean the data"
            ),
        },
        Refusal::NotLabel => says(&format!(
            "is not 0 or 1, which {used_by} needs; give it \
             `positive = \"<value>\"`, `at_least = <number>` or `kind = \"number\"`"
        )),
        Refusal::NotClass => match &field.role {
            Role::Label { rule: LabelRule::Class(classes), .. } => says(&format!(
                "is not a class of {used_by}, which has {}; add it to `classes`, or clean the data",
                classes.describe()
            )),
            other => unreachable!("{other:?} has no classes"),
        },
        Refusal::NegativeCount => says(&format!(
            "is negative, but {used_by} is a count; clean the data, or give it `kind = \"number\"`"
        )),
        Refusal::NotWeight => {
            says("is not a weight; write weights as finite numbers that are not negative")
        }
        Refusal::NotTime
        | Refusal::NotInUnit(_)
        | Refusal::Raw(
            ValueError::NotTime
            | ValueError::AmbiguousDate
            | ValueError::NoTimeUnit
            | ValueError::NotInUnit(_),
        ) => says(&explain_time(refusal, field)),
        Refusal::VectorSize { .. } | Refusal::VectorGap => says(&explain_vector(refusal, field)),
        Refusal::OtherLabel => says(&format!(
            "is neither a `positive` nor a `negative` value of {used_by}; add it to one of the two \
             lists, or remove `negative`, so that every other value is 0"
        )),
        Refusal::Raw(ValueError::NotUtf8) => says(
            "is not UTF-8; set `data.encoding` to the encoding of the file, such as \"windows-1252\"",
        ),
        Refusal::NoSideRow => match &field.role {
            Role::SideRow(lookup) => says(&lookup.explain(used_by)),
            other => unreachable!("{other:?} looks nothing up"),
        },
        Refusal::Raw(ValueError::NoText) => says(&format!(
            "is a number with a fraction, which {used_by} cannot read, because such a number has several spellings; write it as a string"
        )),
        Refusal::ListGap => says(
            "has a missing element, whose place would be lost; write a value for it, or write the \
             rows to Parquet, which keeps such elements",
        ),
        Refusal::List | Refusal::Object | Refusal::Weighted => {
            let is_in_list = text.is_some_and(|text| text.starts_with(b"["));
            says(&explain_shape(refusal, field, is_in_list))
        }
        Refusal::TooManyIds => {
            "the shuffle window has more than 2^31 ids; lower `data.shuffle_window`".to_owned()
        }
    }
}

/// Returns the problem of a list, an object or a value with a weight, without the value.
/// `is_in_list` says whether the value is a list.
fn explain_shape(refusal: Refusal, field: &Field, is_in_list: bool) -> String {
    let used_by = &field.used_by;
    match (refusal, &field.role) {
        (Refusal::Object, _) if is_in_list => format!(
            "is a list with an object, which {used_by} cannot read; write a list of numbers or texts under a \
             key of the row for each part of the objects, such as a list of their ids"
        ),
        (Refusal::List, Role::Ids { .. } | Role::RawIds { .. }) if is_in_list => format!(
            "is a list inside a list, which {used_by} cannot read; write one list of numbers or texts in each row"
        ),
        (Refusal::List, Role::Vector { .. } | Role::RawVector { .. }) if is_in_list => format!(
            "is a list inside a list, which {used_by} cannot read; write one list of numbers in each row"
        ),
        (Refusal::Object, _) => format!(
            "is an object, which {used_by} cannot read; write each part of the object under a key of the row"
        ),
        (Refusal::Weighted, _) => format!(
            "has weights other than 1, which a request for {used_by} cannot contain; score such rows from files"
        ),
        (_, Role::Id { .. } | Role::RawId { .. }) => format!(
            "is a list or has a weight, but {used_by} reads one plain id in each row; declare `kind = \"ids\"`"
        ),
        _ => format!("is a list, but {used_by} reads one value in each row; name another column"),
    }
}

/// Returns the problem of a value that is not a time, without the value.
fn explain_time(refusal: Refusal, field: &Field) -> String {
    let used_by = &field.used_by;
    match refusal {
        Refusal::NotTime => String::from(
            "is not an event time; write event times as whole numbers, or set \
             `columns.event_time_unit` to read dates such as 2024-05-01T10:00:00Z",
        ),
        Refusal::Raw(ValueError::NotTime) => format!(
            "is not a time, which {used_by} needs; write it like 2024-05-01 or \
             2024-05-01T10:00:00Z, or add it to `data.null` if it stands for a missing value"
        ),
        Refusal::Raw(ValueError::AmbiguousDate) => match field.role {
            Role::EventTime { .. } => String::from(
                "does not tell the day from the month; set `columns.event_date_order` to \
                 \"day_first\" or \"month_first\"",
            ),
            _ => format!(
                "does not tell the day from the month; give {used_by} `date_order = \"day_first\"` or \
                 `date_order = \"month_first\"`"
            ),
        },
        Refusal::Raw(ValueError::NoTimeUnit) => format!(
            "is a number without a unit; give {used_by} a `time_unit`: \"s\", \"ms\", \"us\" or \"ns\""
        ),
        Refusal::Raw(ValueError::NotInUnit(unit)) => format!(
            "is not a number of {unit} since 1970 between 1980 and 2199; set the `time_unit` of \
             {used_by} to the unit of the column"
        ),
        Refusal::NotInUnit(unit) => format!(
            "is not a number of {unit} since 1970 between 1980 and 2199; set \
             `columns.event_time_unit` to the unit of the column, or remove it if the column has another meaning"
        ),
        other => unreachable!("{other:?} is not about a time"),
    }
}

/// Returns the problem of a vector, without the vector.
fn explain_vector(refusal: Refusal, field: &Field) -> String {
    let used_by = &field.used_by;
    match refusal {
        Refusal::VectorSize { found } => {
            let size = match field.role {
                Role::Vector { size, .. } | Role::RawVector { size } => size,
                _ => 0,
            };
            format!(
                "has {found} numbers, but {used_by} has `size = {size}`; clean the data, or set the \
                 size to that of the column"
            )
        }
        Refusal::VectorGap => format!(
            "has a missing number, but {used_by} needs all numbers of a vector; clean the data, or \
             leave out the whole vector and give {used_by} a `missing = <number>`"
        ),
        other => unreachable!("{other:?} is not about a vector"),
    }
}
