//! The call `Predict` of TensorFlow Serving: tensors to raw columns, and scores to a response.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use zillion_feature::{RawColumns, RawValues};
use zillion_registry::VersionId;

use super::infer::{read_texts, to_ints, truth_values};
use super::scan::{self, Field};
use super::{Scores, Target};
use crate::admission::Wire;
use crate::config::Limits;
use crate::domain::{RowsRequest, Scored};
use crate::error::{Result, ServeError};
use crate::host::Selector;
use crate::metrics::Stage;
use crate::proto::google::protobuf::Int64Value;
use crate::proto::tensorflow::serving::model_spec::VersionChoice;
use crate::proto::tensorflow::serving::{ModelSpec, PredictRequest, PredictResponse};
use crate::proto::tensorflow::tensor_shape_proto::Dim;
use crate::proto::tensorflow::{DataType, TensorProto, TensorShapeProto};
use crate::score::Answer;
use crate::tensor::{self, Datatype, Tensor, columns, refuse};

/// The name of the only signature of a model.
pub(super) const SIGNATURE: &str = "serving_default";

/// The call `Predict` of TensorFlow Serving.
#[derive(Clone, Copy, Debug)]
pub(super) struct Predict;

impl Scores for Predict {
    fn protocol(self) -> &'static str {
        "grpc_tf"
    }

    fn wire(self) -> Wire {
        Wire::GrpcTf
    }

    fn target(self, message: &Bytes) -> Result<Target> {
        let mut spec = ModelSpec::default();
        for field in scan::fields("PredictRequest", message, scan::MOST_FIELDS) {
            if let (1, Field::Bytes(bytes)) = field? {
                if bytes.len() > 4 * scan::MOST_NAME_BYTES {
                    return Err(ServeError::TooLarge {
                        what: "the model's description in the request",
                        limit: 4 * scan::MOST_NAME_BYTES,
                        setting: "none: names are short",
                    });
                }
                spec.merge(bytes).map_err(decode_error)?;
            }
        }
        check_signature(&spec)?;
        Ok(Target { selector: selector(&spec)?, model: spec.name, time: None })
    }

    fn score(self, scored: &Scored, message: Bytes) -> Result<Vec<u8>> {
        let parsing = scored.begin(Stage::Parse);
        let request = PredictRequest::decode(message).map_err(decode_error)?;
        let (rows, columns) = parse(&request, scored.limits())?;
        drop(parsing);
        let outputs = request.output_filter.clone();
        let answer = scored.score(&RowsRequest { rows, columns, outputs })?;
        Ok(scored.time(Stage::Write, || response(scored.model(), answer).encode_to_vec()))
    }
}

fn decode_error(error: prost::DecodeError) -> ServeError {
    ServeError::Malformed(format!("the message is not a PredictRequest: {error}"))
}

/// Reads the version of a request: a number, a label, or neither.
pub(super) fn selector(spec: &ModelSpec) -> Result<Selector> {
    Ok(match &spec.version_choice {
        None => Selector::Default,
        Some(VersionChoice::VersionLabel(label)) => {
            Selector::Label(label.chars().take(100).collect())
        }
        Some(VersionChoice::Version(number)) => {
            let version = u64::try_from(number.value).map_err(|_| {
                ServeError::Malformed(format!(
                    "invalid version {}: a version is at least 0",
                    number.value
                ))
            })?;
            Selector::Version(VersionId(version))
        }
    })
}

pub(super) fn check_signature(spec: &ModelSpec) -> Result<()> {
    let name = &spec.signature_name;
    if name.is_empty() || name == SIGNATURE {
        return Ok(());
    }
    let name: String = name.chars().take(100).collect();
    Err(ServeError::Malformed(format!(
        "unknown signature `{name}`; the model has the signature `{SIGNATURE}`"
    )))
}

/// Returns the specification of a model and its version for a response.
pub(super) fn spec(model: &str, version: VersionId) -> ModelSpec {
    let version = Int64Value { value: i64::try_from(version.0).unwrap_or(i64::MAX) };
    ModelSpec {
        name: model.to_owned(),
        signature_name: SIGNATURE.to_owned(),
        version_choice: Some(VersionChoice::Version(version)),
    }
}

fn parse<'a>(request: &'a PredictRequest, limits: &Limits) -> Result<(usize, RawColumns<'a>)> {
    if request.predict_streamed_options.is_some() || request.request_options.is_some() {
        return Err(ServeError::Malformed(
            "streamed answers are not supported; leave out `predict_streamed_options` and `request_options`"
                .to_owned(),
        ));
    }
    let mut tensors: BTreeMap<Cow<'_, str>, Tensor<'_>> = BTreeMap::new();
    for (name, tensor) in &request.inputs {
        tensors.insert(Cow::Borrowed(name), read(name, tensor, limits)?);
    }
    columns(tensors)
}

/// Returns the datatype that corresponds to a TensorFlow type.
fn datatype(name: &str, number: i32) -> Result<Datatype> {
    let dtype = DataType::try_from(number).map_err(|_| {
        refuse(name, &format!("unknown dtype {number}; send a number of TensorFlow's `DataType`"))
    })?;
    Ok(match dtype {
        DataType::DtBool => Datatype::Bool,
        DataType::DtInt8 => Datatype::Int8,
        DataType::DtInt16 => Datatype::Int16,
        DataType::DtInt32 => Datatype::Int32,
        DataType::DtInt64 => Datatype::Int64,
        DataType::DtUint8 => Datatype::Uint8,
        DataType::DtUint16 => Datatype::Uint16,
        DataType::DtUint32 => Datatype::Uint32,
        DataType::DtUint64 => Datatype::Uint64,
        DataType::DtHalf => Datatype::Fp16,
        DataType::DtBfloat16 => Datatype::Bf16,
        DataType::DtFloat => Datatype::Fp32,
        DataType::DtDouble => Datatype::Fp64,
        DataType::DtString => Datatype::Bytes,
        other => {
            let reason = format!("a feature cannot be a tensor of dtype {}", other.as_str_name());
            return Err(refuse(name, &reason));
        }
    })
}

fn read<'a>(name: &str, tensor: &'a TensorProto, limits: &Limits) -> Result<Tensor<'a>> {
    let datatype = datatype(name, tensor.dtype)?;
    let shape = shape(name, tensor)?;
    if !tensor.tensor_content.is_empty() {
        if datatype == Datatype::Bytes {
            return Err(refuse(name, "texts belong in `string_val`, not in `tensor_content`"));
        }
        return Tensor::from_raw(name, &shape, datatype, &tensor.tensor_content);
    }
    // One value may stand for all elements, so that the shape is checked against the limit before
    // it is believed.
    let elements = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
    let elements = elements.and_then(|n| usize::try_from(n).ok()).filter(|&n| n <= limits.values);
    let elements = elements.ok_or(ServeError::TooLarge {
        what: "the number of values",
        limit: limits.values,
        setting: "serve.max_values",
    })?;
    let values = match datatype {
        Datatype::Bool => truth_values(&tensor.bool_val),
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 | Datatype::Uint8 | Datatype::Uint16 => {
            RawValues::Ints(to_ints(name, datatype, &tensor.int_val)?)
        }
        Datatype::Int64 => RawValues::Ints(tensor.int64_val.clone()),
        Datatype::Uint32 => RawValues::Uints(tensor.uint32_val.iter().map(|&x| x.into()).collect()),
        Datatype::Uint64 => RawValues::Uints(tensor.uint64_val.clone()),
        Datatype::Fp16 | Datatype::Bf16 => {
            let halves = to_ints(name, Datatype::Uint16, &tensor.half_val)?;
            let number = |&bits: &i64| tensor::from_half(datatype, bits as u16).into();
            tensor::floats(halves.iter().map(number).collect())
        }
        Datatype::Fp32 => tensor::floats(tensor.float_val.iter().map(|&x| x.into()).collect()),
        Datatype::Fp64 => tensor::floats(tensor.double_val.clone()),
        Datatype::Bytes => RawValues::Any(read_texts(name, &tensor.string_val)?),
    };
    Tensor::new(name, &shape, repeat_single(values, elements))
}

/// Repeats a single value for every element of the shape, and returns other values unchanged.
fn repeat_single(values: RawValues<'_>, elements: usize) -> RawValues<'_> {
    if values.len() != 1 {
        return values;
    }
    match values {
        RawValues::Ints(values) => RawValues::Ints(values.repeat(elements)),
        RawValues::Uints(values) => RawValues::Uints(values.repeat(elements)),
        RawValues::Floats(values) => RawValues::Floats(values.repeat(elements)),
        RawValues::Any(mut values) => {
            if let Some(value) = values.pop() {
                values = vec![value; elements];
            }
            RawValues::Any(values)
        }
    }
}

fn shape(name: &str, tensor: &TensorProto) -> Result<Vec<u64>> {
    let none = TensorShapeProto::default();
    let shape = tensor.tensor_shape.as_ref().unwrap_or(&none);
    if shape.unknown_rank {
        return Err(refuse(
            name,
            "the rank of the tensor is unknown; a tensor with values needs a shape",
        ));
    }
    let sizes: Option<Vec<u64>> =
        shape.dim.iter().map(|dim| u64::try_from(dim.size).ok()).collect();
    sizes.ok_or_else(|| refuse(name, "the shape has a negative size; send sizes of at least 0"))
}

fn response(model: &str, answer: Answer) -> PredictResponse {
    let tensor = |scores: Vec<f32>| TensorProto {
        dtype: DataType::DtFloat.into(),
        tensor_shape: Some(flat(scores.len() as i64)),
        float_val: scores,
        ..TensorProto::default()
    };
    PredictResponse {
        model_spec: Some(spec(model, answer.version)),
        outputs: answer.outputs.into_iter().map(|(name, scores)| (name, tensor(scores))).collect(),
    }
}

/// Returns a shape of one dimension. The size -1 means any size.
pub(super) fn flat(size: i64) -> TensorShapeProto {
    let dim = vec![Dim { size, name: String::new() }];
    TensorShapeProto { dim, unknown_rank: false }
}

/// Reads the head and the columns of a message, and returns whether both can be read.
pub(super) fn accepts(message: &Bytes) -> bool {
    let request = PredictRequest::decode(message.clone());
    let has_columns = request.is_ok_and(|request| parse(&request, &Limits::default()).is_ok());
    Predict.target(message).is_ok() && has_columns
}

#[cfg(test)]
mod tests;
