//! The Open Inference Protocol v2 in JSON: requests to raw columns, scores to answers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue as RawJson;
use zillion_feature::{RawColumns, RawValue, RawValues};

use super::values::Flat;
use crate::error::{Result, ServeError};
use crate::score::Answer;
use crate::tensor::{self, Tensor, columns, refuse};

/// The body of a request.
#[derive(Debug, Deserialize)]
pub(crate) struct InferRequest<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    inputs: Vec<InferInput<'a>>,
    #[serde(borrow, default)]
    outputs: Vec<RequestedOutput<'a>>,
    #[serde(default)]
    parameters: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct InferInput<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    shape: Vec<u64>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    #[serde(borrow)]
    data: &'a RawJson,
}

#[derive(Debug, Deserialize)]
struct RequestedOutput<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

/// A request, ready to be scored.
#[derive(Debug)]
pub(crate) struct Inference<'a> {
    pub(crate) id: Option<String>,
    pub(crate) rows: usize,
    pub(crate) columns: RawColumns<'a>,
    /// Names of the outputs that are wanted; none means those by default.
    pub(crate) outputs: Vec<String>,
}

/// Reads a request.
pub(crate) fn parse(body: &[u8]) -> Result<Inference<'_>> {
    let request: InferRequest<'_> = serde_json::from_slice(body).map_err(|e| {
        ServeError::Malformed(format!("the body is not a v2 inference request: {e}"))
    })?;
    let _ = request.parameters;
    let mut tensors: BTreeMap<Cow<'_, str>, Tensor<'_>> = BTreeMap::new();
    for input in request.inputs {
        let tensor = tensor(&input)?;
        if tensors.insert(input.name.clone(), tensor).is_some() {
            return Err(refuse(&input.name, "the request has it twice"));
        }
    }
    let (rows, columns) = columns(tensors)?;
    let outputs = request.outputs.into_iter().map(|o| o.name.into_owned()).collect();
    Ok(Inference { id: request.id.map(Cow::into_owned), rows, columns, outputs })
}

/// Reads an input's tensor.
fn tensor<'a>(input: &InferInput<'a>) -> Result<Tensor<'a>> {
    let name = &input.name;
    let datatype = tensor::datatype(name, &input.datatype)?;
    let flat: Flat<'a> = serde_json::from_str(input.data.get())
        .map_err(|e| refuse(name, &format!("its data cannot be read: {e}")))?;
    if let Some(at) = flat.values.iter().position(|value| !datatype.takes(value)) {
        let reason = format!("value {at} of its data is not of datatype {}", input.datatype);
        return Err(refuse(name, &reason));
    }
    let mut values = flat.values;
    if datatype.is_float() {
        // What is said to be a float is one, however it is written: no feature takes it for an id.
        values.iter_mut().for_each(to_float);
    }
    Tensor::new(name, &input.shape, RawValues::Any(values))
}

fn to_float(value: &mut RawValue<'_>) {
    match *value {
        RawValue::Int(x) => *value = RawValue::Float(x as f64),
        RawValue::Uint(x) => *value = RawValue::Float(x as f64),
        _ => {}
    }
}

/// The body of an answer.
#[derive(Debug, Serialize)]
pub(crate) struct InferAnswer<'a> {
    model_name: &'a str,
    model_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    outputs: Vec<OutputTensor<'a>>,
}

#[derive(Debug, Serialize)]
struct OutputTensor<'a> {
    name: &'a str,
    shape: [usize; 1],
    datatype: &'static str,
    data: &'a [f32],
}

impl<'a> InferAnswer<'a> {
    /// The answer to a request, with the outputs that it asked for.
    pub(crate) fn new(model: &'a str, id: Option<&'a str>, answer: &'a Answer) -> Self {
        let outputs = answer.outputs.iter().map(|(name, data)| OutputTensor {
            name,
            shape: [data.len()],
            datatype: "FP32",
            data,
        });
        Self {
            model_name: model,
            model_version: answer.version.to_string(),
            id,
            outputs: outputs.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(body: &str) -> String {
        parse(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn tensors_become_columns() {
        let body = br#"{"id": "42", "parameters": {"x": 1}, "inputs": [
            {"name": "user", "shape": [2], "datatype": "INT64", "data": [7, -8]},
            {"name": "price", "shape": [2, 1], "datatype": "FP32", "data": [[0.5], [2]]},
            {"name": "tags", "shape": [3], "datatype": "BYTES", "data": ["a", "b", "c"]},
            {"name": "tags__lengths", "shape": [2], "datatype": "INT32", "data": [3, 0]},
            {"name": "pair", "shape": [2, 2], "datatype": "UINT8", "data": [1, 2, 3, 255]}],
            "outputs": [{"name": "logits"}]}"#;
        let inference = parse(body).unwrap();
        assert_eq!((inference.rows, inference.id.as_deref()), (2, Some("42")));
        assert_eq!(inference.outputs, ["logits"]);
        let lengths = |name: &str| inference.columns[name].lengths.clone();
        assert_eq!(lengths("user"), None);
        assert_eq!(lengths("price"), None);
        assert_eq!(lengths("tags"), Some(vec![3, 0]));
        assert_eq!(lengths("pair"), Some(vec![2, 2]));
        let RawValues::Any(users) = &inference.columns["user"].values else { panic!("any") };
        assert_eq!(users[..], [RawValue::Int(7), RawValue::Int(-8)]);
    }

    #[test]
    fn what_does_not_add_up_is_refused_by_name() {
        let one = |shape: &str, datatype: &str, data: &str| {
            refused(&format!(
                r#"{{"inputs": [{{"name": "x", "shape": {shape}, "datatype": "{datatype}", "data": {data}}}]}}"#
            ))
        };
        assert!(
            one("[3]", "INT64", "[1, 2]")
                .contains("does not have the 2 values of its data: input `x`")
        );
        assert!(one("[]", "INT64", "1").contains("must be [rows]"));
        assert!(one("[1]", "INT99", "[1]").contains("datatype `INT99`"));
        assert!(
            one("[1]", "INT8", "[128]").contains("value 0 of its data is not of datatype INT8")
        );
        assert!(one("[1]", "UINT64", "[-1]").contains("not of datatype UINT64"));
        assert!(one("[1]", "INT64", "[1.5]").contains("not of datatype INT64"));
        assert!(one("[1]", "BYTES", "[1]").contains("not of datatype BYTES"));
        assert!(one("[18446744073709551615, 3]", "INT64", "[1]").contains("does not have"));
        assert!(one("[1]", "INT64", r#"[{"a": 1}]"#).contains("cannot be read"));
        assert!(refused("{}").contains("no `inputs`"));
        assert!(refused("nonsense").contains("not a v2 inference request"));
        assert!(refused("").contains("not a v2 inference request"));
        let rows = r#"{"inputs": [{"name": "a", "shape": [1], "datatype": "INT64", "data": [1]},
            {"name": "b", "shape": [2], "datatype": "INT64", "data": [1, 2]}]}"#;
        assert!(refused(rows).contains("it has 2 rows and input `a` has 1: input `b`"));
        let twice = r#"{"inputs": [{"name": "a", "shape": [1], "datatype": "INT64", "data": [1]},
            {"name": "a", "shape": [1], "datatype": "INT64", "data": [1]}]}"#;
        assert!(refused(twice).contains("twice: input `a`"));
        let orphan = r#"{"inputs": [{"name": "a__lengths", "shape": [1], "datatype": "INT64", "data": [1]}]}"#;
        assert!(refused(orphan).contains("no input `a`"));
    }

    proptest! {
        #[test]
        fn no_body_is_a_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&body);
        }

        #[test]
        fn no_json_is_a_panic(
            shape in prop::collection::vec(any::<i64>(), 0..4),
            datatype in "(INT64|FP32|BYTES|[A-Z0-9]{0,6})",
            data in r#"[\[\]0-9,."a-z{}:-]{0,40}"#,
            name in "[a-z_]{0,12}(__lengths)?",
        ) {
            let body = format!(
                r#"{{"inputs":[{{"name":"{name}","shape":{shape:?},"datatype":"{datatype}","data":{data}}}]}}"#
            );
            let _ = parse(body.as_bytes());
        }
    }
}
