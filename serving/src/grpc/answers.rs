//! The answer of `ModelInfer`, written by hand into the bytes that leave the server. A generated
//! message would need a copy of each name and of the scores first.

use super::framed::{Framed, bytes_len, text_len};
use crate::score::Answer;
use crate::tensor::Datatype;

/// The numbers of the fields of `ModelInferResponse`.
mod field {
    pub(super) const MODEL: u32 = 1;
    pub(super) const VERSION: u32 = 2;
    pub(super) const ID: u32 = 3;
    pub(super) const OUTPUT: u32 = 5;
    pub(super) const RAW: u32 = 6;
    /// The numbers of the fields of an output.
    pub(super) mod output {
        pub(in super::super) const NAME: u32 = 1;
        pub(in super::super) const DATATYPE: u32 = 2;
        pub(in super::super) const SHAPE: u32 = 3;
    }
}

/// The most bytes of the shape of an output: its key, its length and two numbers.
const SHAPE_BYTES: usize = 22;

/// Writes an answer as a `ModelInferResponse`.
pub(super) fn encode(model: &str, id: &str, answer: &Answer) -> Framed {
    let version = answer.version.to_string();
    let datatype = Datatype::Fp32.name();
    let head = text_len(field::MODEL, model) + text_len(field::VERSION, &version);
    let head = head + text_len(field::ID, id);
    let outputs = answer.outputs.iter().map(|(name, scores)| {
        let tensor = output_len(name, datatype) + SHAPE_BYTES;
        bytes_len(field::OUTPUT, tensor) + bytes_len(field::RAW, size_of_val(scores.as_slice()))
    });
    let mut framed = Framed::with_capacity(head + outputs.sum::<usize>());
    framed.put_text(field::MODEL, model);
    framed.put_text(field::VERSION, &version);
    framed.put_text(field::ID, id);
    for (name, scores) in &answer.outputs {
        let sizes: Vec<u64> =
            answer.shape(scores.len()).into_iter().map(|size| size as u64).collect();
        let numbers = sizes.iter().map(|&size| prost::encoding::encoded_len_varint(size)).sum();
        let shape = bytes_len(field::output::SHAPE, numbers);
        framed.begin(field::OUTPUT, output_len(name, datatype) + shape);
        framed.put_text(field::output::NAME, name);
        framed.put_text(field::output::DATATYPE, datatype);
        framed.put_packed(field::output::SHAPE, &sizes);
    }
    for (_, scores) in &answer.outputs {
        framed.put_floats(field::RAW, scores);
    }
    framed
}

/// Returns the number of bytes of the texts of an output.
fn output_len(name: &str, datatype: &str) -> usize {
    text_len(field::output::NAME, name) + text_len(field::output::DATATYPE, datatype)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;
    use zillion_registry::VersionId;

    use super::super::framed::PREFIX;
    use super::*;
    use crate::proto::inference::ModelInferResponse;
    use crate::proto::inference::model_infer_response::InferOutputTensor;
    use crate::tensor::encode_scores;

    proptest! {
        #[test]
        fn an_answer_has_the_bytes_of_the_generated_message(
            model in "[a-z]{0,20}",
            id in "\\PC{0,200}",
            version in any::<u64>(),
            outputs in prop::collection::vec(
                ("[a-z/]{0,12}", prop::collection::vec(any::<f32>(), 0..200)), 0..4),
            classes in prop::option::of(2usize..5),
        ) {
            let classes = classes.and_then(std::num::NonZeroUsize::new);
            let columns = classes.map_or(1, std::num::NonZeroUsize::get);
            let whole = |(name, mut scores): (String, Vec<f32>)| {
                scores.truncate(scores.len() / columns * columns);
                (name, scores)
            };
            let outputs: Vec<(String, Vec<f32>)> = outputs.into_iter().map(whole).collect();
            let tensor = |(name, scores): &(String, Vec<f32>)| InferOutputTensor {
                name: name.clone(),
                datatype: "FP32".to_owned(),
                shape: std::iter::once(scores.len() / columns)
                    .chain(classes.map(std::num::NonZeroUsize::get))
                    .map(|size| size as i64)
                    .collect(),
                ..InferOutputTensor::default()
            };
            let message = ModelInferResponse {
                model_name: model.clone(),
                model_version: version.to_string(),
                id: id.clone(),
                outputs: outputs.iter().map(tensor).collect(),
                raw_output_contents:
                    outputs.iter().map(|(_, scores)| encode_scores(scores).into()).collect(),
                ..ModelInferResponse::default()
            };
            let answer = Answer { classes, ..Answer::of(VersionId(version), outputs) };
            let framed = encode(&model, &id, &answer);
            prop_assert_eq!(&framed, &Framed::of(&message));
            let (length, bytes) = (framed.len(), framed.finish());
            prop_assert_eq!(bytes.len(), PREFIX + length);
            prop_assert_eq!(&bytes[..PREFIX], &[&[0][..], &(length as u32).to_be_bytes()].concat());
            prop_assert_eq!(&bytes[PREFIX..], message.encode_to_vec());
        }
    }
}
