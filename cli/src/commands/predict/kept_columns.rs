//! The columns of the data that `zillion predict` copies beside the scores.
//!
//! The columns are read in a pass of their own over the file, so that their values stay what they
//! are: no feature has read them as keys or numbers.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use anyhow::Result;
use zillion_console::exit::usage_error;
use zillion_feature::{RawValue, RawValues};
use zillion_reader::{DataConfig, RawRows};

/// The number of rows that are read at a time.
const ROWS: usize = 4096;

/// A reader of the kept columns, row by row.
pub(super) struct KeptColumns {
    rows: RawRows,
    names: Vec<String>,
    /// The values of the rows that have been read and not been taken yet, for each column.
    values: Vec<VecDeque<RawValue<'static>>>,
}

impl KeptColumns {
    /// Opens a file whose columns `names` are kept. Returns `None` if there are no names. `scores`
    /// are the names of the columns of scores that stand in the same line, none in JSON.
    pub(super) fn open(
        data: &DataConfig,
        input: &Path,
        names: &[String],
        scores: &[&str],
    ) -> Result<Option<Self>> {
        if names.is_empty() {
            return Ok(None);
        }
        if let Some(at) = (1..names.len()).find(|&at| names[..at].contains(&names[at])) {
            return usage_error(format!("column `{}` is twice in --keep; name it once", names[at]));
        }
        if let Some(name) = names.iter().find(|name| scores.contains(&name.as_str())) {
            return usage_error(format!(
                "column `{name}` of --keep has the name of a column of scores, so the lines would \
                 have two columns `{name}`; add --json, which sets kept columns apart, or leave it out"
            ));
        }
        if input.as_os_str() == "-" {
            return usage_error(
                "--keep reads the file a second time, which stdin does not allow; write the rows \
                 to a file first",
            );
        }
        let rows = RawRows::open_columns(data, &[input.to_owned()], names)?;
        let values = names.iter().map(|_| VecDeque::new()).collect();
        Ok(Some(Self { rows, names: names.to_vec(), values }))
    }

    /// Returns the names of the columns.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the values of the next row.
    pub(super) fn next_row(&mut self) -> io::Result<Vec<RawValue<'static>>> {
        if self.values.iter().any(VecDeque::is_empty) {
            let block = self.rows.next_block(ROWS).map_err(io::Error::other)?;
            let mut columns = block.map(|block| block.columns).unwrap_or_default();
            for (name, values) in self.names.iter().zip(&mut self.values) {
                match columns.remove(name.as_str()).map(|column| column.values) {
                    Some(RawValues::Any(read)) => values.extend(read),
                    _ => return Err(io::Error::other("the file has fewer rows than before")),
                }
            }
        }
        Ok(self.values.iter_mut().map(|values| values.pop_front().unwrap_or_default()).collect())
    }
}

/// Returns a value as a cell of a line whose cells are separated by tabs.
pub(super) fn cell(name: &str, value: &RawValue<'_>) -> io::Result<String> {
    let text = match value {
        RawValue::Missing => String::new(),
        RawValue::Int(x) => x.to_string(),
        RawValue::Uint(x) => x.to_string(),
        RawValue::Float(x) => x.to_string(),
        RawValue::Bool(flag) => flag.to_string(),
        RawValue::Text(text) => text.to_string(),
    };
    match text.contains(['\t', '\n', '\r']) {
        false => Ok(text),
        true => Err(io::Error::other(format!(
            "kept column `{name}` has a text with a tab or a line end, which a line of cells cannot \
             hold; add --json"
        ))),
    }
}

/// Returns a value in JSON. A number that is not finite is null.
pub(super) fn json(value: &RawValue<'_>) -> serde_json::Value {
    match value {
        RawValue::Missing => serde_json::Value::Null,
        RawValue::Int(x) => (*x).into(),
        RawValue::Uint(x) => (*x).into(),
        RawValue::Float(x) => (*x).into(),
        RawValue::Bool(flag) => (*flag).into(),
        RawValue::Text(text) => text.as_ref().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_copied_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.csv");
        std::fs::write(&file, "id,x,note\n1234567890123456789012,1.50,a b\n007,,\n").unwrap();
        let names = ["note", "id", "x"].map(str::to_owned);
        let mut kept =
            KeptColumns::open(&DataConfig::default(), &file, &names, &[]).unwrap().unwrap();
        let row = kept.next_row().unwrap();
        let cells: Vec<String> = row.iter().map(|value| cell("c", value).unwrap()).collect();
        assert_eq!(cells, ["a b", "1234567890123456789012", "1.50"]);
        let row = kept.next_row().unwrap();
        let copies: Vec<serde_json::Value> = row.iter().map(json).collect();
        assert_eq!(serde_json::Value::from(copies), serde_json::json!([null, "007", null]));
        assert!(kept.next_row().is_err());

        let file = folder.path().join("rows.jsonl");
        std::fs::write(&file, "{\"id\":18446744073709551615,\"x\":0.1}\n{\"id\":1e30,\"x\":2}\n")
            .unwrap();
        let names = ["id", "x"].map(str::to_owned);
        let mut kept =
            KeptColumns::open(&DataConfig::default(), &file, &names, &[]).unwrap().unwrap();
        let refused = kept.next_row().unwrap_err().to_string();
        assert!(refused.contains("rounded to 64 bits") && refused.contains("`id`"), "{refused}");
        std::fs::write(&file, "{\"id\":18446744073709551615,\"x\":0.1}\n{\"id\":-5,\"x\":true}\n")
            .unwrap();
        let mut kept =
            KeptColumns::open(&DataConfig::default(), &file, &names, &[]).unwrap().unwrap();
        let mut cells = || -> Vec<String> {
            kept.next_row().unwrap().iter().map(|value| cell("c", value).unwrap()).collect()
        };
        assert_eq!(cells(), ["18446744073709551615", "0.1"]);
        assert_eq!(cells(), ["-5", "true"]);
        assert!(cell("c", &RawValue::Text("a\tb".into())).is_err());
    }

    #[test]
    fn what_cannot_be_kept_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.csv");
        std::fs::write(&file, "id\n1\n").unwrap();
        let open = |file: &Path, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let opened = KeptColumns::open(&DataConfig::default(), file, &names, &["click"]);
            opened.map(|kept| kept.is_some()).map_err(|error| error.to_string())
        };
        assert_eq!(open(&file, &[]), Ok(false));
        assert!(open(&file, &["id", "id"]).unwrap_err().contains("`id` is twice"));
        assert!(open(Path::new("-"), &["id"]).unwrap_err().contains("stdin"));
        assert!(open(&file, &["id", "click"]).unwrap_err().contains("two columns `click`"));
        assert!(open(&file, &["user"]).unwrap_err().contains("column `user` of kept column"));
    }
}
