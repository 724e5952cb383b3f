//! The call `ModelInfer`: tensors of the Open Inference Protocol to raw columns, and scores to a
//! response.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use zillion_feature::{RawColumns, RawValue, RawValues};

use super::scan::{self, Field};
use super::{Scores, Target};
use crate::admission::Wire;
use crate::domain::{RowsRequest, Scored};
use crate::error::{Result, ServeError};
use crate::host::Selector;
use crate::metrics::Stage;
use crate::proto::inference::infer_parameter::ParameterChoice;
use crate::proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::proto::inference::model_infer_response::InferOutputTensor;
use crate::proto::inference::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse,
};
use crate::score::Answer;
use crate::tensor::{self, Datatype, Tensor, columns, encode_scores, refuse, utf8};

/// The call `ModelInfer` of Triton's service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Infer;

impl Scores for Infer {
    fn protocol(self) -> &'static str {
        "grpc_v2"
    }

    fn wire(self) -> Wire {
        Wire::GrpcTensors
    }

    fn target(self, message: &Bytes) -> Result<Target> {
        let (mut model, mut version) = (String::new(), String::new());
        let mut parameters = BTreeMap::new();
        for field in scan::fields("ModelInferRequest", message, scan::MOST_FIELDS) {
            match field? {
                (1, Field::Bytes(name)) => model = scan::name(name)?,
                (2, Field::Bytes(name)) => version = scan::name(name)?,
                (4, Field::Bytes(parameter)) => {
                    let (name, value) = read_parameter(parameter)?;
                    parameters.insert(name, value);
                }
                _ => {}
            }
        }
        let selector = read_selector(&version)?;
        Ok(Target { model, selector, time: read_timeout(&parameters)? })
    }

    fn score(self, scored: &Scored, message: Bytes) -> Result<Vec<u8>> {
        let parsing = scored.begin(Stage::Parse);
        let request = ModelInferRequest::decode(message).map_err(decode_error)?;
        let (rows, columns) = parse(&request)?;
        drop(parsing);
        let outputs = request.outputs.iter().map(|output| output.name.clone()).collect();
        let answer = scored.score(&RowsRequest { rows, columns, outputs })?;
        Ok(scored
            .time(Stage::Write, || response(scored.model(), &request.id, answer).encode_to_vec()))
    }
}

fn decode_error(error: prost::DecodeError) -> ServeError {
    ServeError::Malformed(format!("the message is not a ModelInferRequest: {error}"))
}

/// An entry of the map of parameters.
#[derive(Clone, PartialEq, Message)]
struct ParameterEntry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<InferParameter>,
}

/// Reads a parameter of a request, which is short.
fn read_parameter(entry: &[u8]) -> Result<(String, InferParameter)> {
    if entry.len() > 2 * scan::MOST_NAME_BYTES {
        return Err(ServeError::TooLarge {
            what: "a parameter of the request",
            limit: 2 * scan::MOST_NAME_BYTES,
            setting: "none: parameters are short",
        });
    }
    let entry = ParameterEntry::decode(entry).map_err(decode_error)?;
    Ok((entry.key, entry.value.unwrap_or_default()))
}

/// Reads the version of a v2 request: a number, or an empty text for the default version.
pub(super) fn read_selector(version: &str) -> Result<Selector> {
    if version.is_empty() {
        return Ok(Selector::Default);
    }
    version.parse().map(Selector::Version).map_err(|_| {
        let version: String = version.chars().take(100).collect();
        ServeError::Malformed(format!(
            "invalid version `{version}`: the version of a model is a number, such as `3`"
        ))
    })
}

/// Reads the time limit from the protocol's parameter `timeout`, in microseconds.
fn read_timeout(parameters: &BTreeMap<String, InferParameter>) -> Result<Option<Duration>> {
    let Some(timeout) = parameters.get("timeout") else { return Ok(None) };
    let micros = match timeout.parameter_choice {
        Some(ParameterChoice::Int64Param(micros)) => u64::try_from(micros).ok(),
        Some(ParameterChoice::Uint64Param(micros)) => Some(micros),
        _ => None,
    };
    let micros = micros.ok_or_else(|| {
        ServeError::Malformed("parameter `timeout` must be an integer of microseconds".to_owned())
    })?;
    // Triton's value for no limit is 0.
    Ok((micros > 0).then(|| Duration::from_micros(micros)))
}

/// Refuses parameters that this server does not support.
fn refuse_parameters(parameters: &BTreeMap<String, InferParameter>) -> Result<()> {
    let unset = |parameter: &InferParameter| match &parameter.parameter_choice {
        None | Some(ParameterChoice::BoolParam(false)) => true,
        Some(ParameterChoice::Int64Param(0) | ParameterChoice::Uint64Param(0)) => true,
        Some(ParameterChoice::StringParam(text)) => text.is_empty(),
        Some(_) => false,
    };
    for name in ["sequence_id", "sequence_start", "sequence_end"] {
        if parameters.get(name).is_some_and(|parameter| !unset(parameter)) {
            return Err(ServeError::Malformed(format!(
                "parameter `{name}` is not supported, because models keep no state between requests; leave it out"
            )));
        }
    }
    Ok(())
}

fn refuse_shared_memory(what: &str, name: &str, has: bool) -> Result<()> {
    if !has {
        return Ok(());
    }
    Err(ServeError::Malformed(format!(
        "{what} `{name}`: shared memory is not supported; send the data in the message"
    )))
}

fn parse(request: &ModelInferRequest) -> Result<(usize, RawColumns<'_>)> {
    refuse_parameters(&request.parameters)?;
    request.outputs.iter().try_for_each(refuse_output)?;
    // This check comes before that of the number of raw contents, of which such an input has none.
    for input in &request.inputs {
        let has = input.parameters.contains_key("shared_memory_region");
        refuse_shared_memory("input", &input.name, has)?;
    }
    let raw = &request.raw_input_contents;
    if !raw.is_empty() && raw.len() != request.inputs.len() {
        return Err(ServeError::Malformed(format!(
            "`raw_input_contents` has {} entries for {} inputs; send one for each input",
            raw.len(),
            request.inputs.len()
        )));
    }
    let mut tensors: BTreeMap<Cow<'_, str>, Tensor<'_>> = BTreeMap::new();
    for (at, input) in request.inputs.iter().enumerate() {
        let tensor = read(input, raw.get(at))?;
        if tensors.insert(Cow::Borrowed(&input.name), tensor).is_some() {
            return Err(refuse(&input.name, "the request has this input twice; send it once"));
        }
    }
    columns(tensors)
}

fn refuse_output(output: &InferRequestedOutputTensor) -> Result<()> {
    let has = |name: &str| output.parameters.contains_key(name);
    refuse_shared_memory("output", &output.name, has("shared_memory_region"))?;
    if has("classification") {
        return Err(ServeError::Malformed(format!(
            "output `{}`: an output has scores and no classes; leave `classification` out",
            output.name
        )));
    }
    Ok(())
}

fn read<'a>(input: &'a InferInputTensor, raw: Option<&'a Bytes>) -> Result<Tensor<'a>> {
    let name = &input.name;
    let datatype = tensor::datatype(name, &input.datatype)?;
    let shape: Option<Vec<u64>> = input.shape.iter().map(|&dim| u64::try_from(dim).ok()).collect();
    let shape = shape
        .ok_or_else(|| refuse(name, &format!("the shape {:?} has a negative size", input.shape)))?;
    let contents = input.contents.as_ref();
    match (raw, contents) {
        (Some(_), Some(contents)) if count(contents) > 0 => Err(refuse(
            name,
            "the values are both in `contents` and in `raw_input_contents`; send one of them",
        )),
        (Some(raw), _) => Tensor::from_raw(name, &shape, datatype, raw),
        (None, Some(contents)) => read_contents(name, &shape, datatype, contents),
        // A tensor without values needs no contents.
        (None, None) => Tensor::new(name, &shape, RawValues::Any(Vec::new())),
    }
}

/// Counts the values in all lists of `contents`.
fn count(contents: &InferTensorContents) -> usize {
    contents.bool_contents.len()
        + contents.int_contents.len()
        + contents.int64_contents.len()
        + contents.uint_contents.len()
        + contents.uint64_contents.len()
        + contents.fp32_contents.len()
        + contents.fp64_contents.len()
        + contents.bytes_contents.len()
}

fn read_contents<'a>(
    name: &str,
    shape: &[u64],
    datatype: Datatype,
    contents: &'a InferTensorContents,
) -> Result<Tensor<'a>> {
    let (list, values) = match datatype {
        Datatype::Bool => ("bool_contents", truth_values(&contents.bool_contents)),
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => {
            ("int_contents", RawValues::Ints(to_ints(name, datatype, &contents.int_contents)?))
        }
        Datatype::Int64 => ("int64_contents", RawValues::Ints(contents.int64_contents.clone())),
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => {
            ("uint_contents", RawValues::Ints(to_ints(name, datatype, &contents.uint_contents)?))
        }
        Datatype::Uint64 => ("uint64_contents", RawValues::Uints(contents.uint64_contents.clone())),
        Datatype::Fp32 => {
            let numbers = contents.fp32_contents.iter().map(|&x| x.into()).collect();
            ("fp32_contents", tensor::floats(numbers))
        }
        Datatype::Fp64 => ("fp64_contents", tensor::floats(contents.fp64_contents.clone())),
        Datatype::Bytes => {
            ("bytes_contents", RawValues::Any(read_texts(name, &contents.bytes_contents)?))
        }
        Datatype::Fp16 | Datatype::Bf16 => {
            let datatype = datatype.name();
            let reason =
                format!("`contents` has no list for {datatype}; send `raw_input_contents`");
            return Err(refuse(name, &reason));
        }
    };
    if values.len() != count(contents) {
        let reason = format!("the values of datatype {} belong in `{list}`", datatype.name());
        return Err(refuse(name, &reason));
    }
    Tensor::new(name, shape, values)
}

/// Returns truth values as raw values.
pub(super) fn truth_values(values: &[bool]) -> RawValues<'static> {
    RawValues::Any(values.iter().map(|&x| RawValue::Bool(x)).collect())
}

/// Returns the integers of a list, whose type may be wider than their datatype.
///
/// # Errors
/// Returns an error that names the input if an integer does not fit the datatype.
pub(super) fn to_ints<T: Copy + Into<i64>>(
    name: &str,
    datatype: Datatype,
    values: &[T],
) -> Result<Vec<i64>> {
    let values: Vec<i64> = values.iter().map(|&x| x.into()).collect();
    match values.iter().position(|&x| !datatype.takes(&RawValue::Int(x))) {
        None => Ok(values),
        Some(at) => {
            let reason = format!("value {at} of the data is not of datatype {}", datatype.name());
            Err(refuse(name, &reason))
        }
    }
}

/// Reads texts, which are borrowed from the message.
pub(super) fn read_texts<'a>(name: &str, values: &'a [Bytes]) -> Result<Vec<RawValue<'a>>> {
    let text = |(at, bytes): (usize, &'a Bytes)| {
        let text = utf8(bytes, at).map_err(|reason| refuse(name, &reason))?;
        Ok(RawValue::Text(Cow::Borrowed(text)))
    };
    values.iter().enumerate().map(text).collect()
}

fn response(model: &str, id: &str, answer: Answer) -> ModelInferResponse {
    let tensor = |(name, scores): &(String, Vec<f32>)| InferOutputTensor {
        name: name.clone(),
        datatype: Datatype::Fp32.name().to_owned(),
        shape: vec![scores.len() as i64],
        ..InferOutputTensor::default()
    };
    ModelInferResponse {
        model_name: model.to_owned(),
        model_version: answer.version.to_string(),
        id: id.to_owned(),
        outputs: answer.outputs.iter().map(tensor).collect(),
        raw_output_contents: answer.outputs.iter().map(|(_, s)| encode_scores(s).into()).collect(),
        ..ModelInferResponse::default()
    }
}

/// Reads the head and the columns of a message, and returns whether both can be read.
pub(super) fn accepts(message: &Bytes) -> bool {
    let request = ModelInferRequest::decode(message.clone());
    let has_columns = request.is_ok_and(|request| parse(&request).is_ok());
    Infer.target(message).is_ok() && has_columns
}

#[cfg(test)]
mod tests;
