//! The Open Inference Protocol v2: requests to raw columns, and scores to answers, in JSON and with
//! Triton's binary tensors.
//!
//! A body is JSON. The bytes of binary tensors follow the JSON in the order of the inputs, and a
//! header has the length of the JSON.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue as RawJson;
use zillion_feature::{RawColumns, RawValue, RawValues};

use super::parameters::Parameters;
use super::respond::{Reply, to_bytes};
use super::values::{Meter, Nesting, Seed, Values};
use crate::config::Limits;
use crate::error::{Result, ServeError};
use crate::score::Answer;
use crate::tensor::{
    self, Allowance, Datatype, MOST_INPUTS, Shape, Tensor, Tensors, check_id, columns,
    encode_scores, refuse,
};
use crate::text::shorten;

/// The JSON of a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InferRequest<'a> {
    #[serde(default)]
    id: Option<String>,
    /// The name of the model in the path, which some clients repeat here.
    #[serde(default)]
    model_name: Option<String>,
    /// The version in the path, which some clients repeat here.
    #[serde(default)]
    model_version: Option<String>,
    #[serde(borrow, default, deserialize_with = "read_tensors")]
    inputs: Vec<InferInput<'a>>,
    #[serde(default, deserialize_with = "read_tensors")]
    outputs: Vec<RequestedOutput>,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InferInput<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    shape: Vec<u64>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    #[serde(borrow, default)]
    data: Option<&'a RawJson>,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestedOutput {
    name: String,
    #[serde(default)]
    parameters: Parameters,
}

/// Reads the list of inputs or of outputs. The reader stops at a number that no model has.
fn read_tensors<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    json: D,
) -> Result<Vec<T>, D::Error> {
    struct Tensors<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Tensors<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut tensors = Vec::new();
            while let Some(tensor) = list.next_element()? {
                if tensors.len() == MOST_INPUTS {
                    let reason = format!(
                        "the list has more than {MOST_INPUTS} inputs or outputs; send only those \
                         of the model"
                    );
                    return Err(A::Error::custom(reason));
                }
                tensors.push(tensor);
            }
            Ok(tensors)
        }
    }
    json.deserialize_seq(Tensors(PhantomData))
}

/// A request that is ready to be scored.
#[derive(Debug)]
pub(crate) struct Inference<'a> {
    pub(crate) id: Option<String>,
    /// The model and the version that the body names, if any.
    pub(crate) named: (Option<String>, Option<String>),
    pub(crate) rows: usize,
    pub(crate) columns: RawColumns<'a>,
    /// The names of the requested outputs. None of them means the default outputs.
    pub(crate) outputs: Vec<String>,
    /// The time for which the request may wait.
    pub(crate) timeout: Option<Duration>,
    pub(crate) binary: BinaryOutputs,
}

/// The outputs that are requested as bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BinaryOutputs {
    /// Whether each of the outputs that are requested by name is binary.
    named: Vec<bool>,
    /// Whether all outputs are binary, if none is requested by name.
    all: bool,
}

/// Reads a request. `header_length` is the value of the header `Inference-Header-Content-Length`.
/// The values of a tensor count before memory is taken for them.
///
/// # Errors
/// Returns an error with the problem, and with the input that the problem belongs to, if the
/// request is invalid, and [`ServeError::TooLarge`] if it exceeds a limit.
pub(crate) fn parse<'a>(
    body: &'a [u8],
    header_length: Option<&str>,
    limits: &Limits,
) -> Result<Inference<'a>> {
    let (json, mut binary) = split(body, header_length)?;
    let request: InferRequest<'_> = serde_json::from_slice(json).map_err(|e| {
        ServeError::Malformed(format!(
            "the body is not a v2 inference request ({e}); send the form of `/openapi.json`"
        ))
    })?;
    check_id(request.id.as_deref().unwrap_or_default())?;
    request.parameters.check_request()?;
    let timeout = request.parameters.integer("timeout")?.filter(|&micros| micros > 0);
    let mut allowance = Allowance::new(limits);
    let mut tensors = Tensors::with_capacity(request.inputs.len());
    for input in request.inputs {
        let shape = allowance.take(&input.name, &input.shape)?;
        let tensor = read(&input, shape, &mut binary, limits)?;
        tensors.push((input.name, tensor));
    }
    if let Some(rest) = binary.filter(|rest| !rest.is_empty()) {
        return Err(ServeError::Malformed(format!(
            "{} bytes follow the binary data of the last input; correct the `binary_data_size` of \
             each input",
            rest.len()
        )));
    }
    let all = request.parameters.flag("binary_data_output")?.unwrap_or(false);
    let mut outputs = Vec::with_capacity(request.outputs.len());
    let mut named = Vec::with_capacity(request.outputs.len());
    for output in request.outputs {
        let about = |e: ServeError| match e {
            ServeError::Malformed(reason) => {
                ServeError::Malformed(format!("output `{}`: {reason}", shorten(&output.name)))
            }
            other => other,
        };
        output.parameters.check_output().map_err(about)?;
        named.push(output.parameters.flag("binary_data").map_err(about)?.unwrap_or(all));
        outputs.push(output.name);
    }
    let (rows, columns) = columns(tensors, limits)?;
    Ok(Inference {
        id: request.id,
        named: (request.model_name, request.model_version),
        rows,
        columns,
        outputs,
        timeout: timeout.map(Duration::from_micros),
        binary: BinaryOutputs { named, all },
    })
}

/// Splits a body into its JSON and the bytes behind the JSON. Such bytes exist only if the header
/// announces them.
pub(super) fn split<'a>(
    body: &'a [u8],
    header_length: Option<&str>,
) -> Result<(&'a [u8], Option<&'a [u8]>)> {
    let Some(text) = header_length else { return Ok((body, None)) };
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let length = if is_number { text.parse::<usize>().ok() } else { None };
    match length.and_then(|length| body.split_at_checked(length)) {
        Some((json, binary)) => Ok((json, Some(binary))),
        None => {
            let text: String = text.chars().take(40).collect();
            Err(ServeError::Malformed(format!(
                "invalid header `Inference-Header-Content-Length: {text}`; send a number of bytes \
                 from 0 to {}, the size of the body",
                body.len()
            )))
        }
    }
}

/// Reads the tensor of an input. Takes binary data from the front of `binary`.
fn read<'a>(
    input: &InferInput<'a>,
    shape: Shape,
    binary: &mut Option<&'a [u8]>,
    limits: &Limits,
) -> Result<Tensor<'a>> {
    let name = &input.name;
    let datatype = tensor::datatype(name, &input.datatype)?;
    let about = |e: ServeError| match e {
        ServeError::Malformed(reason) => refuse(name, &reason),
        other => other,
    };
    input.parameters.check_input().map_err(about)?;
    let is_shared = input.parameters.flag("shared").map_err(about)?.unwrap_or(false);
    let tensor = match (input.data, input.parameters.integer("binary_data_size").map_err(about)?) {
        (Some(data), None) => from_json(name, datatype, shape, data, limits),
        (None, Some(size)) => {
            let Some(rest) = *binary else {
                return Err(refuse(
                    name,
                    "the header `Inference-Header-Content-Length` is missing, which binary data \
                     needs; send it",
                ));
            };
            let taken = usize::try_from(size).ok().and_then(|size| rest.split_at_checked(size));
            let Some((own, rest)) = taken else {
                let reason = format!(
                    "`binary_data_size` is {size} bytes, but the body has only {} bytes left; \
                         correct the size",
                    rest.len()
                );
                return Err(refuse(name, &reason));
            };
            *binary = Some(rest);
            Tensor::from_raw(name, shape, datatype, own)
        }
        (Some(_), Some(_)) => {
            Err(refuse(name, "the input has both `data` and `binary_data_size`; send one of them"))
        }
        (None, None) => Err(refuse(
            name,
            "the input has neither `data` nor `binary_data_size`; send one of them",
        )),
    };
    Ok(tensor?.share(is_shared))
}

fn from_json<'a>(
    name: &str,
    datatype: Datatype,
    shape: Shape,
    data: &'a RawJson,
    limits: &Limits,
) -> Result<Tensor<'a>> {
    if matches!(datatype, Datatype::Fp16 | Datatype::Bf16) {
        let reason =
            format!("JSON has no {} values; send them as binary data, or as FP32", datatype.name());
        return Err(refuse(name, &reason));
    }
    // A value and its separator have two bytes at least.
    let mut values = Vec::with_capacity(shape.elements().min(data.get().len() / 2));
    let nesting = Nesting { lists: usize::MAX, base64: false };
    let mut meter = Meter::new(&Limits { values: shape.elements(), ..*limits });
    let mut json = serde_json::Deserializer::from_str(data.get());
    let seed = Seed(Values { into: &mut values, nesting, meter: &mut meter });
    let is_list = seed.deserialize(&mut json).map_err(|e| match meter.exceeded {
        Some(_) => refuse(
            name,
            &format!(
                "the data has more values than its shape {shape}; correct the shape or the data"
            ),
        ),
        None => refuse(
            name,
            &format!("value {} of the data cannot be read: {e}; correct it", values.len()),
        ),
    })?;
    if !is_list {
        return Err(refuse(name, "the data is not a list; send a list of values"));
    }
    for (at, value) in values.iter_mut().enumerate() {
        // A number of a float type becomes a float, however it is written.
        if datatype.is_float() {
            to_float(value, datatype);
        }
        // Some clients write true and false as 1 and 0.
        if let (Datatype::Bool, RawValue::Int(x @ 0..=1)) = (datatype, &*value) {
            *value = RawValue::Bool(*x == 1);
        }
        let overflows = matches!(value, RawValue::Float(x) if !x.is_finite());
        if overflows || !datatype.takes(value) {
            let reason = format!(
                "value {at} of the data is not of datatype {}; correct the value or the datatype",
                datatype.name()
            );
            return Err(refuse(name, &reason));
        }
    }
    Tensor::new(name, shape, RawValues::Any(values))
}

fn to_float(value: &mut RawValue<'_>, datatype: Datatype) {
    let x = match *value {
        RawValue::Int(x) => x as f64,
        RawValue::Uint(x) => x as f64,
        RawValue::Float(x) => x,
        _ => return,
    };
    *value = RawValue::Float(if datatype == Datatype::Fp32 { f64::from(x as f32) } else { x });
}

/// The JSON of an answer.
#[derive(Debug, Serialize)]
struct InferAnswer<'a> {
    model_name: &'a str,
    model_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    outputs: Vec<OutputTensor<'a>>,
}

#[derive(Debug, Serialize)]
struct OutputTensor<'a> {
    name: &'a str,
    shape: Vec<usize>,
    datatype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinarySize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a [f32]>,
}

#[derive(Debug, Serialize)]
struct BinarySize {
    binary_data_size: usize,
}

/// Writes the answer to a request.
///
/// # Errors
/// Returns an error if the JSON cannot be written, which is a bug.
pub(crate) fn reply(
    model: &str,
    id: Option<&str>,
    answer: &Answer,
    binary: &BinaryOutputs,
) -> Result<Reply> {
    let is_binary = |at: usize| binary.named.get(at).copied().unwrap_or(binary.all);
    let outputs = answer.outputs.iter().enumerate().map(|(at, (name, data))| OutputTensor {
        name,
        shape: answer.shape(data.len()),
        datatype: "FP32",
        parameters: is_binary(at)
            .then(|| BinarySize { binary_data_size: size_of_val(data.as_slice()) }),
        data: (!is_binary(at)).then_some(data),
    });
    let head = InferAnswer {
        model_name: model,
        model_version: answer.version.to_string(),
        id,
        outputs: outputs.collect(),
    };
    let mut bytes = to_bytes(&head)?;
    let json = bytes.len();
    let mut has_binary = false;
    for (at, (_, data)) in answer.outputs.iter().enumerate() {
        if is_binary(at) {
            has_binary = true;
            bytes.extend_from_slice(&encode_scores(data));
        }
    }
    Ok(Reply { bytes, header_length: has_binary.then_some(json) })
}

#[cfg(test)]
mod tests;
