//! The requests that consist of rows: TF-Serving's predict, classify and regress, and rank.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, MapAccess, Visitor};
use zillion_feature::{Encoder, InputSpec, RawColumn, RawColumns};

use super::table::{Column, ColumnsVisitor, Name, RowVisitor, RowsVisitor, Table, Trouble};
use super::values::{Meter, Seed, to_integer};
use crate::config::Limits;
use crate::error::{Result, ServeError};
use crate::tensor::MOST_NAME_BYTES;
use crate::text::shorten;

/// The name of the only signature of a model.
pub(super) const SIGNATURE: &str = "serving_default";

/// The form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A body with `instances`, or with `inputs` in columns.
    Predict,
    /// A body with `examples` and a `context`, for classify and regress.
    Examples,
    /// A body with `candidates` and a `context`.
    Rank,
}

/// A request that is ready to be scored after [`Rows::fit`].
#[derive(Debug)]
pub(crate) struct Rows<'a> {
    pub(crate) rows: usize,
    pub(crate) columns: RawColumns<'a>,
    /// Whether the answer is in columns too.
    pub(crate) is_columnar: bool,
    /// The number of best candidates to return in order.
    pub(crate) top_k: Option<usize>,
    /// The values of an input without a name, if the rows are values and not objects. A model with
    /// one input accepts such rows.
    nameless: Option<RawColumn<'a>>,
    /// The inputs that have a text outside of a list, each with the first such row.
    bare_texts: Vec<(String, Option<usize>)>,
}

/// Reads the body of a request in one of the forms. The reader counts values, rows and inputs, and
/// stops at the limits.
///
/// # Errors
/// Returns an error with the line, the column, the input and the row of the problem if the request
/// is invalid, and [`ServeError::TooLarge`] if it exceeds a limit.
pub(crate) fn parse<'a>(form: Form, body: &'a [u8], limits: &Limits) -> Result<Rows<'a>> {
    let trouble = Trouble::new(Meter::new(limits));
    let mut read = Body { form, parts: Parts::default(), trouble };
    let mut json = serde_json::Deserializer::from_slice(body);
    let outcome = Seed(BodyVisitor(&mut read)).deserialize(&mut json).and_then(|()| json.end());
    if let Err(error) = outcome {
        return Err(read.trouble.describe(&error, form.name()));
    }
    read.parts.finish(form)
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Predict => "a predict request",
            Self::Examples => "a classify or regress request",
            Self::Rank => "a rank request",
        }
    }

    /// Returns the key of the list of rows.
    fn list(self) -> &'static str {
        match self {
            Self::Predict => "instances",
            Self::Examples => "examples",
            Self::Rank => "candidates",
        }
    }

    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Predict => &["signature_name", "instances", "inputs"],
            Self::Examples => &["signature_name", "context", "examples"],
            Self::Rank => &["context", "candidates", "top_k"],
        }
    }
}

impl Rows<'_> {
    /// Fits the request to the inputs of the model.
    ///
    /// # Errors
    /// Returns an error if rows without names are sent to a model of several inputs, or if a text
    /// stands in the place of a list of texts. Files may have such texts, because their job names
    /// the separator of the parts; a version does not know the separator.
    pub(crate) fn fit(&mut self, encoder: &Encoder) -> Result<()> {
        if let Some(column) = self.nameless.take() {
            let mut names: Vec<&str> = encoder.inputs().map(|input| input.name.as_str()).collect();
            names.dedup();
            let [name] = names[..] else {
                let names = names.join("`, `");
                return Err(ServeError::Malformed(format!(
                    "the values of the rows have no names, but the model has several inputs \
                     (`{names}`); send an object for each row"
                )));
            };
            let is_bare = self.bare_texts.iter().position(|(bare, _)| bare.is_empty());
            if let Some(at) = is_bare {
                self.bare_texts[at].0 = name.to_owned();
            }
            self.columns.insert(Cow::Owned(name.to_owned()), column);
        }
        for (name, row) in &self.bare_texts {
            let is_meant = |input: &&InputSpec| input.name == *name || input.column == *name;
            if encoder.inputs().filter(is_meant).any(|input| input.is_list) {
                return Err(ServeError::Input(zillion_feature::RequestError {
                    input: name.clone(),
                    row: *row,
                    reason: "the value is one text, but the input takes a list of texts in each \
                             row; send a list of texts"
                        .to_owned(),
                }));
            }
        }
        Ok(())
    }
}

/// The parts of a body that have been read so far.
#[derive(Debug, Default)]
struct Parts<'a> {
    signature: Option<Cow<'a, str>>,
    rows: Option<Table<'a>>,
    inputs: Option<Table<'a>>,
    context: Option<Table<'a>>,
    top_k: Option<usize>,
}

impl<'a> Parts<'a> {
    fn finish(self, form: Form) -> Result<Rows<'a>> {
        let malformed = |reason: String| Err(ServeError::Malformed(reason));
        if let Some(name) = self.signature.filter(|name| name != SIGNATURE) {
            return malformed(format!(
                "unknown signature `{}`; use `{SIGNATURE}`, the only signature of the model",
                shorten(&name)
            ));
        }
        let is_columnar = self.inputs.is_some();
        let table = match (self.rows, self.inputs) {
            (Some(table), None) | (None, Some(table)) => table,
            _ if form == Form::Predict => {
                return malformed(
                    "a predict request needs either `instances` or `inputs`; send one of them"
                        .to_owned(),
                );
            }
            _ => return malformed(format!("{} has no `{}`; send it", form.name(), form.list())),
        };
        let rows = table.rows();
        let is_nameless = table.is_nameless();
        let mut columns = RawColumns::new();
        let mut bare_texts = Vec::new();
        let mut add = |column: Column<'a>, is_shared: bool| {
            if let Some(row) = column.bare_text {
                bare_texts.push((column.name.to_string(), (!is_shared).then_some(row)));
            }
            let name = column.name.clone();
            columns.insert(name, column.finish(is_shared)).is_none()
        };
        for column in table.into_columns() {
            add(column, false);
        }
        for column in self.context.map(Table::into_columns).unwrap_or_default() {
            let name = column.name.clone();
            if !add(column, true) {
                return malformed(format!(
                    "input `{}` is both in `context` and in `{}`; send it in one of them",
                    shorten(&name),
                    form.list()
                ));
            }
        }
        let nameless = if is_nameless { columns.remove("") } else { None };
        if columns.is_empty() && nameless.is_none() && is_columnar {
            return malformed(
                "the request has no inputs; send a list for each input of the model".to_owned(),
            );
        }
        Ok(Rows { rows, columns, is_columnar, top_k: self.top_k, nameless, bare_texts })
    }
}

struct Body<'a> {
    form: Form,
    parts: Parts<'a>,
    trouble: Trouble,
}

/// A reader of the object of a body.
struct BodyVisitor<'s, 'a>(&'s mut Body<'a>);

impl<'de: 'a, 'a> Visitor<'de> for BodyVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        use serde::de::Error as _;
        let Body { form, parts, trouble } = self.0;
        let list = form.list();
        let mut seen = BTreeMap::new();
        while let Some(key) = map.next_key_seed(Seed(Name))? {
            let Some(&known) = form.keys().iter().find(|known| **known == key) else {
                // A comparison with a long key would take as long as the key is.
                let keys = form.keys().iter().copied().filter(|_| key.len() <= MOST_NAME_BYTES);
                let near = zillion_config::nearest(&key, keys);
                let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
                let key = shorten(&key);
                return Err(A::Error::custom(format!(
                    "unknown key `{key}`; use one of `{}`{near}",
                    form.keys().join("`, `")
                )));
            };
            if seen.insert(known, ()).is_some() {
                return Err(A::Error::custom(format!(
                    "the key `{known}` appears twice; send it once"
                )));
            }
            match known {
                "signature_name" => {
                    parts.signature = map.next_value::<Option<String>>()?.map(Cow::Owned)
                }
                "top_k" => {
                    let number = map.next_value::<Option<serde_json::Number>>()?;
                    parts.top_k = number.map(|number| read_top_k(&number)).transpose()?;
                }
                "inputs" => {
                    let table = parts.inputs.insert(Table::default());
                    map.next_value_seed(Seed(ColumnsVisitor { table, trouble }))?;
                }
                "context" => {
                    let table = parts.context.insert(Table::default());
                    let part = ("context", None);
                    map.next_value_seed(Seed(RowVisitor {
                        table,
                        trouble,
                        part,
                        nameless: false,
                    }))?;
                }
                _ => {
                    let table = parts.rows.insert(Table::default());
                    let nameless = *form == Form::Predict;
                    map.next_value_seed(Seed(RowsVisitor { table, trouble, list, nameless }))?;
                }
            }
        }
        Ok(())
    }
}

/// Reads the value of `top_k`.
fn read_top_k<E: serde::de::Error>(number: &serde_json::Number) -> Result<usize, E> {
    let integer = number.as_f64().and_then(to_integer).and_then(|x| u64::try_from(x).ok());
    let count =
        number.as_u64().or(integer).map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    count.ok_or_else(|| E::custom(format!("`top_k` is {number}; send an integer of at least 0")))
}

#[cfg(test)]
mod tests;
