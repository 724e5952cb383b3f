//! The requests and answers of gRPC. A request contains the columns of a v2 request as raw tensors,
//! in the frame of a gRPC message.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use zillion_feature::RawColumns;
use zillion_registry::VersionId;
use zillion_serving::proto::Message;
use zillion_serving::proto::inference::infer_parameter::ParameterChoice;
use zillion_serving::proto::inference::model_infer_request::InferInputTensor;
use zillion_serving::proto::inference::{InferParameter, ModelInferRequest, ModelInferResponse};
use zillion_serving::tensor::{Datatype, LENGTHS, encode};

/// The number of bytes before the message in a frame: one byte, which is 0 if the message is not
/// compressed, and four bytes with the length of the message.
const FRAME: usize = 5;

/// Returns the request for the columns as a frame.
///
/// # Errors
/// Returns an error if an input has values that a tensor cannot contain.
pub(crate) fn encode_request(
    model: &str,
    version: Option<VersionId>,
    columns: &RawColumns<'static>,
) -> Result<Bytes> {
    let mut request = ModelInferRequest {
        model_name: model.to_owned(),
        model_version: version.map_or_else(String::new, |version| version.to_string()),
        ..ModelInferRequest::default()
    };
    let shared = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    let mut add = |name: &str, datatype: Datatype, size: usize, is_shared, bytes: Vec<u8>| {
        let parameters = BTreeMap::from_iter([("shared".to_owned(), shared.clone())]);
        request.inputs.push(InferInputTensor {
            name: name.to_owned(),
            datatype: datatype.name().to_owned(),
            shape: vec![size as i64],
            parameters: if is_shared { parameters } else { BTreeMap::new() },
            ..InferInputTensor::default()
        });
        request.raw_input_contents.push(bytes.into());
    };
    for (name, column) in columns {
        let Some((datatype, bytes)) = encode(&column.values) else {
            bail!("input `{name}` mixes types, but a tensor has one type; use --protocol predict");
        };
        add(name, datatype, column.values.len(), column.is_shared, bytes);
        if let Some(lengths) = &column.lengths {
            let bytes = lengths.iter().flat_map(|&length| (length as u64).to_le_bytes()).collect();
            add(&format!("{name}{LENGTHS}"), Datatype::Uint64, lengths.len(), false, bytes);
        }
    }
    let length = request.encoded_len();
    let mut framed = BytesMut::with_capacity(FRAME + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).context("the request has more than 4 GiB")?);
    request.encode(&mut framed)?;
    Ok(framed.freeze())
}

/// Returns the message that a frame contains.
///
/// # Errors
/// Returns an error if the bytes are not exactly one complete frame.
pub(crate) fn unframe(mut bytes: Bytes) -> Result<Bytes> {
    if bytes.len() < FRAME || bytes.get_u8() != 0 || bytes.get_u32() as usize != bytes.len() {
        bail!("the answer is not one whole gRPC message");
    }
    Ok(bytes)
}

/// The outputs of an answer: the name of each output, and its value for each row.
pub(crate) type Outputs = Vec<(String, Vec<f32>)>;

/// Returns the version that an answer names, and the outputs of the answer.
///
/// # Errors
/// Returns an error if the bytes are not an answer.
pub(crate) fn decode_answer(bytes: &[u8]) -> Result<(String, Outputs)> {
    let answer =
        ModelInferResponse::decode(bytes).context("the answer is not a ModelInferResponse")?;
    let tensors = answer.outputs.into_iter().zip(&answer.raw_output_contents);
    let float = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
    let scores = |bytes: &Bytes| bytes.as_chunks::<4>().0.iter().map(float).collect();
    let outputs = tensors.map(|(output, bytes)| (output.name, scores(bytes))).collect();
    Ok((answer.model_version, outputs))
}

/// Returns the version that an answer names, or `None` if it names no version. The scores are not
/// decoded.
pub(crate) fn named_version(bytes: &Bytes) -> Option<String> {
    let answer = ModelInferResponse::decode(bytes.clone()).ok()?;
    (!answer.model_version.is_empty()).then_some(answer.model_version)
}

#[cfg(test)]
mod tests {
    use zillion_feature::{RawColumn, RawValue, RawValues};
    use zillion_serving::proto::inference::model_infer_response::InferOutputTensor;

    use super::*;

    #[test]
    fn columns_become_raw_tensors() {
        let text = |t: &'static str| RawValue::Text(t.into());
        let column = |values, lengths| RawColumn { values, lengths, is_shared: false };
        let columns = RawColumns::from([
            ("item".into(), column(RawValues::Ints(vec![5, -6]), None)),
            ("tags".into(), column(RawValues::Any(vec![text("a"), text("b")]), Some(vec![2, 0]))),
        ]);
        let framed = encode_request("m", Some(VersionId(3)), &columns).unwrap();
        let message = ModelInferRequest::decode(unframe(framed).unwrap()).unwrap();
        assert_eq!((message.model_name.as_str(), message.model_version.as_str()), ("m", "3"));
        let inputs: Vec<(&str, &str, i64)> = message
            .inputs
            .iter()
            .map(|input| (input.name.as_str(), input.datatype.as_str(), input.shape[0]))
            .collect();
        assert_eq!(
            inputs,
            [("item", "INT64", 2), ("tags", "BYTES", 2), ("tags__lengths", "UINT64", 2)]
        );
        assert!(message.inputs.iter().all(|input| input.parameters.is_empty()));
        assert_eq!(message.raw_input_contents[1], &b"\x01\0\0\0a\x01\0\0\0b"[..]);
        let user = RawColumn { is_shared: true, ..column(RawValues::Ints(vec![7]), None) };
        let framed = encode_request("m", None, &RawColumns::from([("user".into(), user)])).unwrap();
        let message = ModelInferRequest::decode(unframe(framed).unwrap()).unwrap();
        assert!(message.inputs[0].parameters.contains_key("shared"));
        let mixed = column(RawValues::Any(vec![text("a"), RawValue::Missing]), None);
        let mixed = RawColumns::from([("x".into(), mixed)]);
        let refused = encode_request("m", None, &mixed).unwrap_err();
        assert!(refused.to_string().contains("input `x`"), "{refused}");
    }

    #[test]
    fn answers_are_read_and_cut_ones_refused() {
        let message = ModelInferResponse {
            model_version: "7".to_owned(),
            outputs: vec![InferOutputTensor { name: "p".to_owned(), ..Default::default() }],
            raw_output_contents: vec![Bytes::copy_from_slice(&0.5f32.to_le_bytes())],
            ..ModelInferResponse::default()
        };
        let bytes = Bytes::from(message.encode_to_vec());
        assert_eq!(named_version(&bytes).as_deref(), Some("7"));
        let outputs = vec![("p".to_owned(), vec![0.5])];
        assert_eq!(decode_answer(&bytes).unwrap(), ("7".to_owned(), outputs));
        assert!(decode_answer(&bytes[1..]).is_err() && named_version(&Bytes::new()).is_none());
        for cut in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x02x", b"\x01\0\0\0\x01x"] {
            assert!(unframe(Bytes::copy_from_slice(cut)).is_err(), "{cut:?}");
        }
        assert_eq!(unframe(Bytes::from_static(b"\0\0\0\0\x01x")).unwrap(), "x");
    }
}
