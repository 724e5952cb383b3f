//! The rows of a file as the bodies of requests, and the columns from which the bodies are made.

use std::path::PathBuf;

use anyhow::{Result, bail};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use zillion_feature::{RawColumn, RawColumns, RawValue, RawValues, Schema};
use zillion_reader::{DataConfig, RawRows};
use zillion_registry::VersionId;

use super::grpc;
use crate::args::Protocol;

/// A request, with the columns of its rows.
#[derive(Clone, Debug)]
pub struct Body {
    /// The request as JSON.
    pub json: Bytes,
    /// The number of rows of the request.
    pub rows: usize,
    /// The columns that the server must decode from the JSON. This process computes the expected
    /// answer from the same columns.
    pub columns: RawColumns<'static>,
}

impl Body {
    /// Returns the bytes of the request in a protocol: raw tensors for gRPC, and the JSON for all
    /// other protocols.
    ///
    /// # Errors
    /// Returns an error if an input has values that a tensor cannot contain.
    pub(crate) fn message(
        &self,
        protocol: Protocol,
        model: &str,
        version: Option<VersionId>,
    ) -> Result<Bytes> {
        match protocol {
            Protocol::Grpc => grpc::encode_request(model, version, &self.columns),
            _ => Ok(self.json.clone()),
        }
    }
}

/// The settings for converting rows to requests.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The protocol of the request.
    pub protocol: Protocol,
    /// The number of rows in a request.
    pub rows: usize,
    /// The names of the inputs that all rows of a rank request share.
    pub context: Vec<String>,
    /// The outputs that a v2 request asks for. If the list is empty, the server answers with its
    /// default outputs.
    pub outputs: Vec<String>,
}

/// Reads up to `limit` requests from the rows of a file, in the order of the rows. Rows at the end
/// that do not fill a whole request are left out.
///
/// # Errors
/// Returns an error if the file cannot be read or has too few rows for one request, or if a name in
/// the context is not an input.
pub(crate) fn read(
    data: &DataConfig,
    file: PathBuf,
    schema: &Schema,
    recipe: &Recipe,
    limit: usize,
) -> Result<Vec<Body>> {
    let mut rows = RawRows::open(data, std::slice::from_ref(&file), schema)?;
    let mut bodies = Vec::new();
    while bodies.len() < limit
        && let Some(block) = rows.next_block(recipe.rows)?
        && block.rows == recipe.rows
    {
        bodies.push(recipe.body(block.columns)?);
    }
    if bodies.is_empty() {
        bail!(
            "file `{}` has fewer rows than one request ({}); lower --candidates",
            file.display(),
            recipe.rows
        );
    }
    Ok(bodies)
}

impl Recipe {
    /// Returns the settings for v2 requests of `rows` rows that ask for the default outputs.
    pub(crate) fn v2(rows: usize) -> Self {
        Self { protocol: Protocol::V2, rows, context: Vec::new(), outputs: Vec::new() }
    }

    /// Returns the request for the columns. Each column must have the number of rows of a request.
    pub fn body(&self, mut columns: RawColumns<'static>) -> Result<Body> {
        for name in &self.context {
            let Some(column) = columns.get_mut(name.as_str()) else {
                let names: Vec<&str> = columns.keys().map(AsRef::as_ref).collect();
                bail!(
                    "unknown input `{name}` in --context (the model has: {}); name one of its \
                     inputs",
                    names.join(", ")
                );
            };
            *column = RawColumn { is_shared: true, ..row_of(column, 0) };
        }
        let json = match self.protocol {
            // For gRPC, the same columns are encoded separately, by the module `grpc`.
            Protocol::V2 | Protocol::Grpc => {
                let mut inputs = Vec::new();
                for (name, column) in &columns {
                    inputs.extend(tensors(name, column)?);
                }
                match &self.outputs[..] {
                    [] => json!({ "inputs": inputs }),
                    names => {
                        let output = |name: &String| json!({ "name": name });
                        let outputs: Vec<Value> = names.iter().map(output).collect();
                        json!({ "inputs": inputs, "outputs": outputs })
                    }
                }
            }
            Protocol::Predict => json!({ "instances": rows(&columns, self.rows, false)? }),
            Protocol::Rank => json!({
                "context": rows(&columns, 1, true)?.pop(),
                "candidates": rows(&columns, self.rows, false)?,
            }),
        };
        let json = Bytes::from(serde_json::to_vec(&json)?);
        Ok(Body { json, rows: self.rows, columns })
    }
}

/// Returns a column that contains only one of the rows of `column`.
pub(crate) fn row_of(column: &RawColumn<'static>, row: usize) -> RawColumn<'static> {
    let own = match &column.lengths {
        Some(lengths) => {
            let start = lengths[..row].iter().sum();
            start..start + lengths[row]
        }
        None => row..row + 1,
    };
    let values = match &column.values {
        RawValues::Ints(all) => RawValues::Ints(all[own].to_vec()),
        RawValues::Uints(all) => RawValues::Uints(all[own].to_vec()),
        RawValues::Floats(all) => RawValues::Floats(all[own].to_vec()),
        RawValues::Any(all) => RawValues::Any(all[own].to_vec()),
    };
    let lengths = column.lengths.as_ref().map(|lengths| vec![lengths[row]]);
    RawColumn { values, lengths, is_shared: column.is_shared }
}

/// Returns the rows as JSON objects. If `are_shared` is true, they contain only the shared columns,
/// and otherwise only the other columns.
fn rows(
    columns: &RawColumns<'static>,
    count: usize,
    are_shared: bool,
) -> Result<Vec<Map<String, Value>>> {
    let mut rows = vec![Map::new(); count];
    for (name, column) in columns.iter().filter(|(_, column)| column.is_shared == are_shared) {
        let mut values = json_values(name, &column.values)?.into_iter();
        for (row, object) in rows.iter_mut().enumerate() {
            let value = match &column.lengths {
                None => values.next().unwrap_or(Value::Null),
                Some(lengths) => Value::Array(values.by_ref().take(lengths[row]).collect()),
            };
            object.insert(name.to_string(), value);
        }
    }
    Ok(rows)
}

/// Returns a column as tensors of the v2 protocol: one for the values, and one for the lengths of
/// lists if there are lists.
fn tensors(name: &str, column: &RawColumn<'static>) -> Result<Vec<Value>> {
    let data = json_values(name, &column.values)?;
    let datatype = datatype(name, &column.values)?;
    let mut values =
        json!({ "name": name, "shape": [data.len()], "datatype": datatype, "data": data });
    if column.is_shared {
        values["parameters"] = json!({ "shared": true });
    }
    let Some(lengths) = &column.lengths else { return Ok(vec![values]) };
    let lengths = json!({
        "name": format!("{name}__lengths"),
        "shape": [lengths.len()],
        "datatype": "INT64",
        "data": lengths,
    });
    Ok(vec![values, lengths])
}

fn json_values(name: &str, values: &RawValues<'static>) -> Result<Vec<Value>> {
    let float = |x: f64| match serde_json::Number::from_f64(x) {
        Some(number) => Ok(Value::Number(number)),
        None => bail!("input `{name}` holds {x}, which JSON cannot write; remove such rows"),
    };
    Ok(match values {
        RawValues::Ints(values) => values.iter().map(|&x| x.into()).collect(),
        RawValues::Uints(values) => values.iter().map(|&x| x.into()).collect(),
        RawValues::Floats(values) => values.iter().map(|&x| float(x)).collect::<Result<_>>()?,
        RawValues::Any(values) => {
            let value = |value: &RawValue<'static>| match value {
                RawValue::Missing => Ok(Value::Null),
                RawValue::Int(x) => Ok((*x).into()),
                RawValue::Uint(x) => Ok((*x).into()),
                RawValue::Float(x) => float(*x),
                RawValue::Bool(flag) => Ok((*flag).into()),
                RawValue::Text(text) => Ok(text.as_ref().into()),
            };
            values.iter().map(value).collect::<Result<_>>()?
        }
    })
}

/// Returns the data type of the v2 protocol that fits all values of a column.
fn datatype(name: &str, values: &RawValues<'static>) -> Result<&'static str> {
    let RawValues::Any(values) = values else {
        return Ok(match values {
            RawValues::Ints(_) => "INT64",
            RawValues::Uints(_) => "UINT64",
            _ => "FP64",
        });
    };
    let has = |kind: fn(&RawValue<'_>) -> bool| values.iter().any(kind);
    let texts = has(|value| matches!(value, RawValue::Text(_)));
    let floats = has(|value| matches!(value, RawValue::Float(_)));
    let beyond = has(|value| matches!(value, RawValue::Uint(x) if i64::try_from(*x).is_err()));
    let below = has(|value| matches!(value, RawValue::Int(x) if *x < 0));
    let numbers = has(|value| !matches!(value, RawValue::Text(_) | RawValue::Missing));
    if (texts && numbers) || (beyond && below) {
        bail!("input `{name}` mixes types, but a v2 tensor has one type; use --protocol predict");
    }
    Ok(match () {
        () if texts => "BYTES",
        () if floats => "FP64",
        () if beyond => "UINT64",
        () => "INT64",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> RawColumns<'static> {
        let column = |values, lengths| RawColumn { values, lengths, is_shared: false };
        let text = |t: &'static str| RawValue::Text(t.into());
        RawColumns::from([
            ("item".into(), column(RawValues::Ints(vec![5, -6]), None)),
            (
                "price".into(),
                column(RawValues::Any(vec![RawValue::Missing, RawValue::Float(0.1)]), None),
            ),
            (
                "tags".into(),
                column(RawValues::Any(vec![text("a"), text("b"), text("a")]), Some(vec![2, 1])),
            ),
        ])
    }

    fn body(protocol: Protocol, context: &[&str]) -> Result<Body> {
        let context = context.iter().map(|&name| name.to_owned()).collect();
        Recipe { protocol, rows: 2, context, outputs: Vec::new() }.body(columns())
    }

    fn json_of(body: &Body) -> Value {
        serde_json::from_slice(&body.json).unwrap()
    }

    #[test]
    fn bodies_have_the_form_of_their_protocol() {
        let v2 = body(Protocol::V2, &[]).unwrap();
        assert_eq!(
            json_of(&v2),
            json!({ "inputs": [
                { "name": "item", "shape": [2], "datatype": "INT64", "data": [5, -6] },
                { "name": "price", "shape": [2], "datatype": "FP64", "data": [null, 0.1] },
                { "name": "tags", "shape": [3], "datatype": "BYTES", "data": ["a", "b", "a"] },
                { "name": "tags__lengths", "shape": [2], "datatype": "INT64", "data": [2, 1] },
            ]})
        );
        assert_eq!(v2.columns, columns());
        let shared = json_of(&body(Protocol::V2, &["item"]).unwrap());
        assert_eq!(
            shared["inputs"][0],
            json!({ "name": "item", "shape": [1], "datatype": "INT64", "data": [5],
                    "parameters": { "shared": true } })
        );
        assert_eq!(
            json_of(&body(Protocol::Predict, &[]).unwrap()),
            json!({ "instances": [
                { "item": 5, "price": null, "tags": ["a", "b"] },
                { "item": -6, "price": 0.1, "tags": ["a"] },
            ]})
        );
    }

    #[test]
    fn the_context_has_the_values_of_the_first_row() {
        let rank = body(Protocol::Rank, &["tags", "item"]).unwrap();
        assert_eq!(
            json_of(&rank),
            json!({
                "context": { "item": 5, "tags": ["a", "b"] },
                "candidates": [{ "price": null }, { "price": 0.1 }],
            })
        );
        let tags = &rank.columns["tags"];
        assert_eq!(
            (tags.values.len(), tags.lengths.clone(), tags.is_shared),
            (2, Some(vec![2]), true)
        );
        assert!(!rank.columns["price"].is_shared);
        let unknown = body(Protocol::Rank, &["user"]).unwrap_err().to_string();
        assert!(
            unknown.contains("`user` in --context (the model has: item, price, tags)"),
            "{unknown}"
        );
    }

    #[test]
    fn what_json_or_a_tensor_cannot_hold_is_refused() {
        let of = |values: Vec<RawValue<'static>>| {
            let column =
                RawColumn { values: RawValues::Any(values), lengths: None, is_shared: false };
            let recipe = Recipe {
                protocol: Protocol::V2,
                rows: 1,
                context: Vec::new(),
                outputs: Vec::new(),
            };
            let body = recipe.body(RawColumns::from([("x".into(), column)]));
            body.map(|body| json_of(&body)["inputs"][0]["datatype"].clone())
                .map_err(|e| e.to_string())
        };
        let big = || RawValue::Uint(u64::MAX);
        assert_eq!(of(vec![RawValue::Int(1), big()]), Ok("UINT64".into()));
        assert!(of(vec![RawValue::Int(-1), big()]).unwrap_err().contains("mixes types"));
        assert!(
            of(vec![RawValue::Int(1), RawValue::Text("a".into())])
                .unwrap_err()
                .contains("input `x`")
        );
        assert!(
            of(vec![RawValue::Float(f64::INFINITY)])
                .unwrap_err()
                .contains("inf, which JSON cannot write")
        );
    }
}
