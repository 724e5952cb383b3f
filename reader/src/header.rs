//! The search for a field's column among the column names of a file.

use std::path::Path;

use crate::error::{ReaderError, Result};
use crate::field::Field;

/// The number of column names that a message lists if no name is similar to the wanted one.
const LISTED: usize = 12;

/// Returns the position of the field's column in `names`, the column names of a file. `first` is
/// `None` for the first file of a list; for a later file, it is the path of the first file, which
/// has the column.
///
/// # Errors
/// Returns an error if no column has the name, or if several columns have it.
pub(crate) fn find<S: AsRef<str>>(
    names: &[S],
    field: &Field,
    path: &Path,
    first: Option<&Path>,
) -> Result<usize> {
    let mut matches = (0..names.len()).filter(|&i| names[i].as_ref() == field.column);
    let Some(found) = matches.next() else {
        return Err(ReaderError::MissingColumn {
            column: field.column.clone(),
            used_by: field.used_by.clone(),
            hint: hint(names, &field.column, first),
            path: path.to_owned(),
        });
    };
    let times = 1 + matches.count();
    if times > 1 {
        let column = field.column.clone();
        return Err(ReaderError::AmbiguousColumn { column, times, path: path.to_owned() });
    }
    Ok(found)
}

/// Checks the first record of a text file that should have a header. It has none if it has the
/// columns of no field, but numbers.
///
/// # Errors
/// Returns an error if the file has no header.
pub(crate) fn refuse_headerless(names: &[String], fields: &[Field], path: &Path) -> Result<()> {
    let is_column = |name: &String| fields.iter().any(|field| field.column == *name);
    match names.iter().find(|name| name.trim().parse::<f64>().is_ok()) {
        Some(number) if !fields.is_empty() && !names.iter().any(is_column) => {
            let value = number.escape_debug().to_string();
            Err(ReaderError::NoHeader { value, path: path.to_owned() })
        }
        _ => Ok(()),
    }
}

fn hint<S: AsRef<str>>(names: &[S], column: &str, first: Option<&Path>) -> String {
    let number = names.iter().find(|name| name.as_ref().trim().parse::<f64>().is_ok());
    let mut hint = match zillion_config::nearest(column, names.iter().map(AsRef::as_ref)) {
        Some(name) => format!("did you mean `{name}`?"),
        None if number.is_some() => {
            let number = number.map_or("", AsRef::as_ref).escape_debug().to_string();
            format!(
                "the first line has no names of columns but values such as `{number}`; give the names \
                 with `data.header = [\"..\"]`, or write them into the first line."
            )
        }
        None => {
            let listed: Vec<String> = names
                .iter()
                .take(LISTED)
                .map(|n| format!("`{}`", n.as_ref().escape_debug()))
                .collect();
            let more = if names.len() > LISTED { ", .." } else { "" };
            format!("the columns are {}{more}", listed.join(", "))
        }
    };
    if let Some(first) = first {
        hint.push_str(&format!(" The columns differ from those of {}", first.display()));
    }
    hint
}
