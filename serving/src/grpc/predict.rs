//! The call `Predict` of TensorFlow Serving: tensors to raw columns, and scores to a response.

use std::borrow::Cow;

use bytes::Bytes;
use prost::Message;
use zillion_feature::{Encoder, RawColumns, RawValues};
use zillion_registry::VersionId;

use super::framed::Framed;
use super::infer::{MOST_DIMENSIONS, read_texts, to_f64, to_ints, truth_values};
use super::lists::{Coding, List};
use super::scan::{self, Field, malformed};
use super::{Scores, Target};
use crate::config::Limits;
use crate::describe::check_input;
use crate::error::{Result, ServeError};
use crate::host::Selector;
use crate::metrics::Stage;
use crate::proto::google::protobuf::Int64Value;
use crate::proto::tensorflow::serving::model_spec::VersionChoice;
use crate::proto::tensorflow::serving::{ModelSpec, PredictResponse};
use crate::proto::tensorflow::tensor_shape_proto::Dim;
use crate::proto::tensorflow::{DataType, TensorProto, TensorShapeProto};
use crate::queue::Wire;
use crate::score::{Answer, check_outputs};
use crate::scored::{RowsRequest, Scored, Step};
use crate::tensor::{self, Allowance, Datatype, Tensor, Tensors, columns, refuse};
use crate::text::shorten;

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
        // The pieces of a description are merged on the network's thread, whatever their number.
        let mut left = 4 * scan::MOST_NAME_BYTES;
        for field in scan::fields(MESSAGE, message, scan::MOST_FIELDS) {
            if let (1, Field::Bytes(bytes)) = field? {
                left = left.checked_sub(bytes.len()).ok_or(ServeError::TooLarge {
                    what: "the size in bytes of `model_spec`",
                    limit: 4 * scan::MOST_NAME_BYTES,
                    remedy: "send only the name, the version and the signature",
                })?;
                spec.merge(bytes).map_err(decode_error)?;
            }
        }
        check_signature(&spec)?;
        Ok(Target { selector: selector(&spec)?, model: spec.name, time: None })
    }

    fn score(self, scored: &Scored, message: Bytes) -> Result<Step<Framed>> {
        let parsing = scored.begin(Stage::Parse);
        let encoder = scored.servable().encoder();
        let Parsed { rows, columns, outputs } = parse(&message, scored.limits(), Some(encoder))?;
        check_outputs(scored.servable(), &outputs)?;
        drop(parsing);
        scored.score_then(RowsRequest { rows, columns, outputs, id: None }, |scored, answer| {
            Ok(scored.time(Stage::Write, || Framed::of(&response(scored.model(), answer))))
        })
    }
}

/// The name of the message in errors.
const MESSAGE: &str = "PredictRequest";

fn decode_error(error: prost::DecodeError) -> ServeError {
    ServeError::Malformed(format!(
        "the message is not a PredictRequest ({error}); send a valid protobuf message"
    ))
}

/// Reads the version of a request: a number, a label, or neither.
pub(super) fn selector(spec: &ModelSpec) -> Result<Selector> {
    Ok(match &spec.version_choice {
        None => Selector::Default,
        Some(VersionChoice::VersionLabel(label)) => {
            // The name of a pointer is shorter, so that a label that was cut names none.
            Selector::Label(label.chars().take(101).collect())
        }
        Some(VersionChoice::Version(number)) => {
            let version = u64::try_from(number.value).map_err(|_| {
                ServeError::Malformed(format!(
                    "invalid version {}; send a number of at least 0",
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
    Err(ServeError::Malformed(format!(
        "unknown signature `{}`; use `{SIGNATURE}`, the only signature of the model",
        shorten(name)
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

/// A request that is ready to be scored.
#[derive(Debug, PartialEq)]
struct Parsed<'a> {
    rows: usize,
    columns: RawColumns<'a>,
    outputs: Vec<String>,
}

/// Reads a request. Values are counted against the limits before memory is taken for them, and an
/// input that `encoder` does not read is refused before that of its values.
fn parse<'a>(message: &'a [u8], limits: &Limits, encoder: Option<&Encoder>) -> Result<Parsed<'a>> {
    let mut allowance = Allowance::new(limits);
    let mut tensors = Tensors::new();
    let mut outputs = Vec::new();
    for field in scan::fields(MESSAGE, message, scan::MOST_FIELDS) {
        match field? {
            (2, Field::Bytes(entry)) => {
                let (name, pieces) = read_entry(entry)?;
                if let Some(encoder) = encoder {
                    check_input(encoder, name)?;
                }
                let tensor = read(name, &pieces, &mut allowance)?;
                tensors.push((Cow::Borrowed(name), tensor));
            }
            (3, Field::Bytes(name)) => outputs.push(scan::name(name)?),
            (5 | 7, _) => {
                return Err(ServeError::Malformed(
                    "streamed answers are not supported; remove `predict_streamed_options` and \
                     `request_options`"
                        .to_owned(),
                ));
            }
            _ => {}
        }
    }
    let (rows, columns) = columns(tensors, limits)?;
    Ok(Parsed { rows, columns, outputs })
}

/// The largest number of fields of an entry of the map of inputs.
const MOST_ENTRY_FIELDS: usize = 64;

/// Reads an entry of the map of inputs: the name, and the pieces of the tensor's message.
fn read_entry(entry: &[u8]) -> Result<(&str, Vec<&[u8]>)> {
    let (mut name, mut pieces) = ("", Vec::with_capacity(1));
    for field in scan::fields("map of inputs", entry, MOST_ENTRY_FIELDS) {
        match field? {
            (1, Field::Bytes(text)) => name = scan::text(text)?,
            (2, Field::Bytes(tensor)) => pieces.push(tensor),
            _ => {}
        }
    }
    Ok((name, pieces))
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
            let reason = format!(
                "a feature cannot be a tensor of dtype {}; send numbers, truth values or strings",
                other.as_str_name()
            );
            return Err(refuse(name, &reason));
        }
    })
}

/// The name of the message of a tensor in errors.
const TENSOR: &str = "TensorProto";

/// The facts of a tensor besides its lists of values.
#[derive(Debug, Default)]
struct Head<'a> {
    dtype: i32,
    shape: Vec<i64>,
    is_rank_unknown: bool,
    content: &'a [u8],
}

/// Reads the tensor of an input, whose message comes in these pieces. One value may stand for all
/// elements of the shape.
fn read<'a>(name: &str, pieces: &[&'a [u8]], allowance: &mut Allowance) -> Result<Tensor<'a>> {
    let head = Head::read(name, pieces)?;
    let datatype = datatype(name, head.dtype)?;
    let shape = allowance.take(name, &head.shape(name)?)?;
    if !head.content.is_empty() {
        if datatype == Datatype::Bytes {
            return Err(refuse(
                name,
                "texts cannot be sent in `tensor_content`; send them in \
                                     `string_val`",
            ));
        }
        return Tensor::from_raw(name, shape, datatype, head.content);
    }
    let (number, coding) = match datatype {
        Datatype::Bool => (11, Coding::Varint),
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 | Datatype::Uint8 | Datatype::Uint16 => {
            (7, Coding::Varint)
        }
        Datatype::Int64 => (10, Coding::Varint),
        Datatype::Uint32 => (16, Coding::Varint),
        Datatype::Uint64 => (17, Coding::Varint),
        Datatype::Fp16 | Datatype::Bf16 => (13, Coding::Varint),
        Datatype::Fp32 => (5, Coding::Four),
        Datatype::Fp64 => (6, Coding::Eight),
        Datatype::Bytes => (8, Coding::Text),
    };
    let list = List { what: TENSOR, pieces, number, coding };
    let count = list.count()?;
    if count != 1 {
        shape.check_values(name, count)?;
    }
    let values = match datatype {
        Datatype::Bool => truth_values(list, count)?,
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 | Datatype::Uint8 | Datatype::Uint16 => {
            RawValues::Ints(to_ints(name, datatype, list.numbers(count, |x| x as i32)?)?)
        }
        Datatype::Int64 => RawValues::Ints(list.numbers(count, |x| x as i64)?),
        Datatype::Uint32 => RawValues::Uints(list.numbers(count, |x| u64::from(x as u32))?),
        Datatype::Uint64 => RawValues::Uints(list.numbers(count, |x| x)?),
        Datatype::Fp16 | Datatype::Bf16 => {
            let halves = list.numbers(count, |x| x as i32)?;
            let halves = to_ints(name, Datatype::Uint16, halves)?;
            let number = |&bits: &i64| tensor::from_half(datatype, bits as u16).into();
            tensor::floats(halves.iter().map(number).collect())
        }
        Datatype::Fp32 => tensor::floats(list.numbers(count, to_f64)?),
        Datatype::Fp64 => tensor::floats(list.numbers(count, f64::from_bits)?),
        Datatype::Bytes => read_texts(name, list, count)?,
    };
    Tensor::of_values_or_constant(name, shape, values)
}

impl<'a> Head<'a> {
    fn read(name: &str, pieces: &[&'a [u8]]) -> Result<Self> {
        let mut head = Self::default();
        for piece in pieces {
            for field in scan::fields(TENSOR, piece, usize::MAX) {
                match field? {
                    (1, Field::Number(dtype)) => head.dtype = dtype as i32,
                    (2, Field::Bytes(shape)) => head.read_shape(name, shape)?,
                    (4, Field::Bytes(content)) => head.content = content,
                    _ => {}
                }
            }
        }
        Ok(head)
    }

    fn read_shape(&mut self, name: &str, message: &[u8]) -> Result<()> {
        const WHAT: &str = "TensorShapeProto";
        for field in scan::fields(WHAT, message, MOST_ENTRY_FIELDS) {
            match field? {
                (2, Field::Bytes(dim)) => {
                    if self.shape.len() == MOST_DIMENSIONS {
                        let reason = format!(
                            "the shape has more than {MOST_DIMENSIONS} dimensions; send one or two"
                        );
                        return Err(refuse(name, &reason));
                    }
                    let mut size = 0;
                    for field in scan::fields(WHAT, dim, MOST_ENTRY_FIELDS) {
                        match field? {
                            (1, Field::Number(number)) => size = number as i64,
                            (1, _) => return Err(malformed(WHAT)),
                            _ => {}
                        }
                    }
                    self.shape.push(size);
                }
                (3, Field::Number(flag)) => self.is_rank_unknown = flag != 0,
                _ => {}
            }
        }
        Ok(())
    }

    fn shape(&self, name: &str) -> Result<Vec<u64>> {
        if self.is_rank_unknown {
            return Err(refuse(
                name,
                "the rank of the tensor is unknown; send a shape with the values",
            ));
        }
        let sizes: Option<Vec<u64>> =
            self.shape.iter().map(|&dim| u64::try_from(dim).ok()).collect();
        sizes.ok_or_else(|| refuse(name, "the shape has a negative size; send sizes of at least 0"))
    }
}

fn response(model: &str, answer: Answer) -> PredictResponse {
    let columns = answer.classes.map(|classes| classes.get() as i64);
    let sizes = |values: usize| match columns {
        Some(columns) => vec![values as i64 / columns, columns],
        None => vec![values as i64],
    };
    let tensor = |scores: Vec<f32>| TensorProto {
        dtype: DataType::DtFloat.into(),
        tensor_shape: Some(shape_of(sizes(scores.len()))),
        float_val: scores,
        ..TensorProto::default()
    };
    PredictResponse {
        model_spec: Some(spec(model, answer.version)),
        outputs: answer.outputs.into_iter().map(|(name, scores)| (name, tensor(scores))).collect(),
    }
}

/// Returns a shape with these sizes. The size -1 means any size.
pub(super) fn shape_of(sizes: Vec<i64>) -> TensorShapeProto {
    let dim = sizes.into_iter().map(|size| Dim { size, name: String::new() }).collect();
    TensorShapeProto { dim, unknown_rank: false }
}

/// Reads the head and the columns of a message, and returns whether both can be read.
pub(super) fn accepts(message: &Bytes) -> bool {
    let has_columns = parse(message, &Limits::default(), None).is_ok();
    Predict.target(message).is_ok() && has_columns
}

#[cfg(test)]
mod tests;
