//! The call `ModelInfer`: tensors of the Open Inference Protocol to raw columns, and scores to a
//! response.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use zillion_feature::{Encoder, RawColumns, RawValue, RawValues};

use super::answers;
use super::framed::Framed;
use super::lists::{self, Coding, List};
use super::scan::{self, Field, malformed};
use super::{Scores, Target};
use crate::config::Limits;
use crate::describe::check_input;
use crate::error::{Result, ServeError};
use crate::host::Selector;
use crate::metrics::Stage;
use crate::proto::inference::InferParameter;
use crate::proto::inference::infer_parameter::ParameterChoice;
use crate::queue::Wire;
use crate::score::check_outputs;
use crate::scored::{RowsRequest, Scored, Step};
use crate::tensor::{self, Allowance, Datatype, Tensor, Tensors, check_id, columns, refuse, utf8};
use crate::text::shorten;

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
        let mut timeout = None;
        let mut parameters = 0;
        for field in scan::fields(MESSAGE, message, scan::MOST_FIELDS) {
            match field? {
                (1, Field::Bytes(name)) => model = scan::name(name)?,
                (2, Field::Bytes(name)) => version = scan::name(name)?,
                (4, Field::Bytes(entry)) => {
                    let is_timeout = scan::parameter(entry, &mut parameters)? == "timeout";
                    timeout = if is_timeout { Some(entry) } else { timeout };
                }
                _ => {}
            }
        }
        let selector = read_selector(&version)?;
        let time = match timeout {
            Some(entry) => read_timeout(&read_parameter(entry)?)?,
            None => None,
        };
        Ok(Target { model, selector, time })
    }

    fn score(self, scored: &Scored, message: Bytes) -> Result<Step<Framed>> {
        let parsing = scored.begin(Stage::Parse);
        let encoder = scored.servable().encoder();
        let Parsed { id, rows, columns, outputs } =
            parse(&message, scored.limits(), Some(encoder))?;
        check_outputs(scored.servable(), &outputs)?;
        drop(parsing);
        let named = Some(id).filter(|id| !id.is_empty());
        let own_id = id.to_owned();
        scored.score_then(
            RowsRequest { rows, columns, outputs, id: named },
            move |scored, answer| {
                Ok(scored.time(Stage::Write, || answers::encode(scored.model(), &own_id, &answer)))
            },
        )
    }
}

/// The name of the message in errors.
const MESSAGE: &str = "ModelInferRequest";

fn decode_error(error: prost::DecodeError) -> ServeError {
    ServeError::Malformed(format!(
        "the message is not a ModelInferRequest ({error}); send a valid protobuf message"
    ))
}

/// An entry of the map of parameters.
#[derive(Clone, PartialEq, Message)]
struct ParameterEntry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<InferParameter>,
}

/// Reads the value of a parameter, which is short.
fn read_parameter(entry: &[u8]) -> Result<InferParameter> {
    if entry.len() > 2 * scan::MOST_NAME_BYTES {
        return Err(ServeError::TooLarge {
            what: "the size in bytes of a parameter of the request",
            limit: 2 * scan::MOST_NAME_BYTES,
            remedy: "send only the parameters of the protocol",
        });
    }
    let entry = ParameterEntry::decode(entry).map_err(decode_error)?;
    Ok(entry.value.unwrap_or_default())
}

/// Reads a parameter of an input that is true or false.
fn read_flag(input: &str, name: &str, entry: &[u8]) -> Result<bool> {
    match read_parameter(entry)?.parameter_choice {
        Some(ParameterChoice::BoolParam(flag)) => Ok(flag),
        _ => Err(refuse(
            input,
            &format!("the parameter `{name}` is neither true nor false; send one of them"),
        )),
    }
}

/// Reads the version of a v2 request: a number, or an empty text for the default version.
pub(super) fn read_selector(version: &str) -> Result<Selector> {
    if version.is_empty() {
        return Ok(Selector::Default);
    }
    version.parse().map(Selector::Version).map_err(|_| {
        ServeError::Malformed(format!(
            "invalid version `{}`; send the number of a version, such as `3`",
            shorten(version)
        ))
    })
}

/// Reads the time limit from the protocol's parameter `timeout`, in microseconds.
fn read_timeout(timeout: &InferParameter) -> Result<Option<Duration>> {
    let micros = match timeout.parameter_choice {
        Some(ParameterChoice::Int64Param(micros)) => u64::try_from(micros).ok(),
        Some(ParameterChoice::Uint64Param(micros)) => Some(micros),
        _ => None,
    };
    let micros = micros.ok_or_else(|| {
        ServeError::Malformed(
            "parameter `timeout` is not an integer of at least 0; send a number of microseconds"
                .to_owned(),
        )
    })?;
    // Triton's value for no limit is 0.
    Ok((micros > 0).then(|| Duration::from_micros(micros)))
}

/// Refuses a parameter of the request that this server does not support.
fn refuse_parameter(name: &str, entry: &[u8]) -> Result<()> {
    if !["sequence_id", "sequence_start", "sequence_end"].contains(&name) {
        return Ok(());
    }
    let is_unset = match &read_parameter(entry)?.parameter_choice {
        None | Some(ParameterChoice::BoolParam(false)) => true,
        Some(ParameterChoice::Int64Param(0) | ParameterChoice::Uint64Param(0)) => true,
        Some(ParameterChoice::StringParam(text)) => text.is_empty(),
        Some(_) => false,
    };
    match is_unset {
        true => Ok(()),
        false => Err(ServeError::Malformed(format!(
            "parameter `{name}` is not supported, because models keep no state between requests; \
             remove it"
        ))),
    }
}

fn refuse_shared_memory(what: &str, name: &str) -> ServeError {
    ServeError::Malformed(format!(
        "{what} `{}`: shared memory is not supported; send the data in the message",
        shorten(name)
    ))
}

/// A request that is ready to be scored.
#[derive(Debug, PartialEq)]
pub(super) struct Parsed<'a> {
    pub(super) id: &'a str,
    pub(super) rows: usize,
    pub(super) columns: RawColumns<'a>,
    pub(super) outputs: Vec<String>,
}

/// Reads a request. Values are counted against the limits before memory is taken for them, and an
/// input that `encoder` does not read is refused before that of its values.
pub(super) fn parse<'a>(
    message: &'a [u8],
    limits: &Limits,
    encoder: Option<&Encoder>,
) -> Result<Parsed<'a>> {
    let mut id = "";
    let (mut inputs, mut outputs, mut raw) = (Vec::new(), Vec::new(), Vec::new());
    let (mut parameters, mut dims) = (0, Vec::new());
    for field in scan::fields(MESSAGE, message, scan::MOST_FIELDS) {
        match field? {
            (3, Field::Bytes(text)) => {
                id = std::str::from_utf8(text).map_err(|_| malformed(MESSAGE))?;
                check_id(id)?;
            }
            (4, Field::Bytes(entry)) => {
                refuse_parameter(scan::parameter(entry, &mut parameters)?, entry)?;
            }
            (5, Field::Bytes(input)) => inputs.push(Input::read(input, &mut dims)?),
            (6, Field::Bytes(output)) => outputs.push(read_output(output)?),
            (7, Field::Bytes(contents)) => raw.push(contents),
            _ => {}
        }
    }
    if !raw.is_empty() && raw.len() != inputs.len() {
        return Err(ServeError::Malformed(format!(
            "`raw_input_contents` has {} entries for {} inputs; send one entry for each input",
            raw.len(),
            inputs.len()
        )));
    }
    let mut allowance = Allowance::new(limits);
    let mut tensors = Tensors::with_capacity(inputs.len());
    for (at, input) in inputs.iter().enumerate() {
        if let Some(encoder) = encoder {
            check_input(encoder, input.name)?;
        }
        let tensor = input.tensor(raw.get(at).copied(), &dims, &mut allowance)?;
        tensors.push((Cow::Borrowed(input.name), tensor.share(input.is_shared)));
    }
    let (rows, columns) = columns(tensors, limits)?;
    Ok(Parsed { id, rows, columns, outputs })
}

/// Reads the name of a requested output.
fn read_output(message: &[u8]) -> Result<String> {
    let (mut name, mut parameters) = ("", 0);
    let (mut has_region, mut has_classes) = (false, false);
    for field in scan::fields("InferRequestedOutputTensor", message, MOST_TENSOR_FIELDS) {
        match field? {
            (1, Field::Bytes(text)) => name = scan::text(text)?,
            (2, Field::Bytes(entry)) => match scan::parameter(entry, &mut parameters)? {
                "shared_memory_region" => has_region = true,
                "classification" => has_classes = true,
                _ => {}
            },
            _ => {}
        }
    }
    if has_region {
        return Err(refuse_shared_memory("output", name));
    }
    if has_classes {
        return Err(ServeError::Malformed(format!(
            "output `{}`: an output has scores and no classes; remove the parameter \
             `classification`",
            shorten(name)
        )));
    }
    Ok(name.to_owned())
}

/// The largest number of fields of a tensor, besides those of its contents.
const MOST_TENSOR_FIELDS: usize = 256;

/// The largest number of dimensions of a shape that is read.
pub(super) const MOST_DIMENSIONS: usize = 32;

/// The lists of `InferTensorContents`: the number, the name, and the form of the values.
const LISTS: [(u64, &str, Coding); 8] = [
    (1, "bool_contents", Coding::Varint),
    (2, "int_contents", Coding::Varint),
    (3, "int64_contents", Coding::Varint),
    (4, "uint_contents", Coding::Varint),
    (5, "uint64_contents", Coding::Varint),
    (6, "fp32_contents", Coding::Four),
    (7, "fp64_contents", Coding::Eight),
    (8, "bytes_contents", Coding::Text),
];

/// The name of the message with these lists in errors.
const CONTENTS: &str = "InferTensorContents";

/// An input of a message, whose values are still bytes.
#[derive(Debug, Default)]
struct Input<'a> {
    name: &'a str,
    datatype: &'a str,
    /// The place of the shape among the dimensions of all inputs.
    shape: Range<usize>,
    /// Whether all rows of the request share the only row of the input.
    is_shared: bool,
    /// The pieces of the message with the values.
    contents: Vec<&'a [u8]>,
}

impl<'a> Input<'a> {
    /// Reads an input, and appends its shape to `dims`.
    fn read(message: &'a [u8], dims: &mut Vec<i64>) -> Result<Self> {
        const WHAT: &str = "InferInputTensor";
        let (mut input, mut parameters) = (Self::default(), 0);
        let mut has_region = false;
        let first = dims.len();
        for field in scan::fields(WHAT, message, MOST_TENSOR_FIELDS) {
            match field? {
                (1, Field::Bytes(text)) => input.name = scan::text(text)?,
                (2, Field::Bytes(text)) => input.datatype = scan::text(text)?,
                (3, Field::Number(dim)) => dims.push(dim as i64),
                (3, Field::Bytes(mut packed)) => {
                    while !packed.is_empty() && dims.len() - first <= MOST_DIMENSIONS {
                        let (dim, rest) = scan::varint(packed).ok_or_else(|| malformed(WHAT))?;
                        dims.push(dim as i64);
                        packed = rest;
                    }
                }
                (4, Field::Bytes(entry)) => match scan::parameter(entry, &mut parameters)? {
                    "shared_memory_region" => has_region = true,
                    "shared" => input.is_shared = read_flag(input.name, "shared", entry)?,
                    _ => {}
                },
                (5, Field::Bytes(contents)) => input.contents.push(contents),
                _ => {}
            }
        }
        input.shape = first..dims.len();
        if has_region {
            return Err(refuse_shared_memory("input", input.name));
        }
        if dims.len() - first > MOST_DIMENSIONS {
            let reason =
                format!("the shape has more than {MOST_DIMENSIONS} dimensions; send one or two");
            return Err(refuse(input.name, &reason));
        }
        Ok(input)
    }

    /// Counts the values in each list of `contents`, in the order of [`LISTS`].
    fn count(&self) -> Result<[usize; LISTS.len()]> {
        let mut counts = [0; LISTS.len()];
        for piece in &self.contents {
            for field in scan::fields(CONTENTS, piece, usize::MAX) {
                let (number, field) = field?;
                if let Some(at) = LISTS.iter().position(|(n, ..)| *n == number) {
                    counts[at] += lists::count(CONTENTS, LISTS[at].2, field)?;
                }
            }
        }
        Ok(counts)
    }

    /// Reads the values, which are in `raw` or in `contents`.
    fn tensor(
        &self,
        raw: Option<&'a [u8]>,
        dims: &[i64],
        allowance: &mut Allowance,
    ) -> Result<Tensor<'a>> {
        let name = self.name;
        let datatype = tensor::datatype(name, self.datatype)?;
        let shape = &dims[self.shape.clone()];
        let mut sizes = [0; MOST_DIMENSIONS];
        for (size, &dim) in sizes.iter_mut().zip(shape) {
            *size = u64::try_from(dim).map_err(|_| {
                let reason =
                    format!("the shape {shape:?} has a negative size; send sizes of at least 0");
                refuse(name, &reason)
            })?;
        }
        let shape = allowance.take(name, &sizes[..shape.len()])?;
        let counts = self.count()?;
        let count = counts.iter().sum();
        if let Some(raw) = raw {
            return match count {
                0 => Tensor::from_raw(name, shape, datatype, raw),
                _ => Err(refuse(
                    name,
                    "the values are both in `contents` and in `raw_input_contents`; send them in \
                     one of the two",
                )),
            };
        }
        let at = match datatype {
            Datatype::Bool => 0,
            Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => 1,
            Datatype::Int64 => 2,
            Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => 3,
            Datatype::Uint64 => 4,
            Datatype::Fp32 => 5,
            Datatype::Fp64 => 6,
            Datatype::Bytes => 7,
            // A tensor without values needs no list.
            Datatype::Fp16 | Datatype::Bf16 if count == 0 => 5,
            Datatype::Fp16 | Datatype::Bf16 => {
                let datatype = datatype.name();
                let reason =
                    format!("`contents` has no list for {datatype}; send `raw_input_contents`");
                return Err(refuse(name, &reason));
            }
        };
        let (number, list, coding) = LISTS[at];
        if counts[at] != count {
            let reason = format!(
                "values of datatype {} are in a wrong list; send them in `{list}`",
                datatype.name()
            );
            return Err(refuse(name, &reason));
        }
        shape.check_values(name, count)?;
        let list = List { what: CONTENTS, pieces: &self.contents, number, coding };
        let values = match datatype {
            Datatype::Bool => truth_values(list, count)?,
            Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => {
                RawValues::Ints(to_ints(name, datatype, list.numbers(count, |x| x as i32)?)?)
            }
            Datatype::Int64 => RawValues::Ints(list.numbers(count, |x| x as i64)?),
            Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => {
                RawValues::Ints(to_ints(name, datatype, list.numbers(count, |x| x as u32)?)?)
            }
            Datatype::Uint64 => RawValues::Uints(list.numbers(count, |x| x)?),
            Datatype::Fp64 => tensor::floats(list.numbers(count, f64::from_bits)?),
            Datatype::Bytes => read_texts(name, list, count)?,
            Datatype::Fp32 | Datatype::Fp16 | Datatype::Bf16 => {
                tensor::floats(list.numbers(count, to_f64)?)
            }
        };
        Tensor::new(name, shape, values)
    }
}

/// Returns the number of the bits of an `FP32` element.
pub(super) fn to_f64(bits: u64) -> f64 {
    f32::from_bits(bits as u32).into()
}

/// Reads the values of a Boolean tensor.
pub(super) fn truth_values(list: List<'_, '_>, count: usize) -> Result<RawValues<'static>> {
    Ok(RawValues::Any(list.numbers(count, |x| RawValue::Bool(x != 0))?))
}

/// Returns the integers of a list, whose type may be wider than their datatype.
///
/// # Errors
/// Returns an error that names the input if an integer does not fit the datatype.
pub(super) fn to_ints<T: Copy + Into<i64>>(
    name: &str,
    datatype: Datatype,
    values: Vec<T>,
) -> Result<Vec<i64>> {
    let values: Vec<i64> = values.into_iter().map(Into::into).collect();
    match values.iter().position(|&x| !datatype.takes(&RawValue::Int(x))) {
        None => Ok(values),
        Some(at) => {
            let reason = format!(
                "value {at} of the data is not of datatype {}; correct the value or the datatype",
                datatype.name()
            );
            Err(refuse(name, &reason))
        }
    }
}

/// Reads texts, which are borrowed from the message.
pub(super) fn read_texts<'a>(
    name: &str,
    list: List<'_, 'a>,
    count: usize,
) -> Result<RawValues<'a>> {
    let mut texts = Vec::with_capacity(count);
    list.each_text(|text| {
        let text = utf8(text, texts.len()).map_err(|reason| refuse(name, &reason))?;
        texts.push(RawValue::Text(Cow::Borrowed(text)));
        Ok(())
    })?;
    Ok(RawValues::Any(texts))
}

/// Reads the head and the columns of a message, and returns whether both can be read.
pub(super) fn accepts(message: &Bytes) -> bool {
    let has_columns = parse(message, &Limits::default(), None).is_ok();
    Infer.target(message).is_ok() && has_columns
}

#[cfg(test)]
mod tests;
