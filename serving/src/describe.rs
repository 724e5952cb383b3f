//! The descriptions of a version's inputs and outputs, which all protocols share.

use std::borrow::Cow;
use std::collections::BTreeSet;

use zillion_feature::{Encoder, InputKind, InputSpec, RawColumn, RawColumns, RawType, RawValues};
use zillion_scorer::Servable;

use crate::error::Result;
use crate::score::{Output, output_names};
use crate::tensor::{Datatype, LENGTHS};

/// The extensions of the Open Inference Protocol that this server supports, by Triton's names.
pub(crate) const EXTENSIONS: [&str; 4] =
    ["binary_tensor_data", "model_configuration", "model_repository", "statistics"];

/// Checks that a model reads an input of this name. Lengths belong to another input, whose own name
/// is checked.
///
/// # Errors
/// Returns the error of the encoder if the model has no such input.
pub(crate) fn check_input(encoder: &Encoder, name: &str) -> Result<()> {
    if name.ends_with(LENGTHS) || encoder.reads(name) {
        return Ok(());
    }
    let values = RawValues::Any(Vec::new());
    let column = RawColumn { values, lengths: None, is_shared: false };
    encoder.encode(0, &RawColumns::from([(Cow::Borrowed(name), column)]))?;
    Ok(())
}

/// The description of an input or output, whose first dimension has any size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) datatype: Datatype,
    /// Whether a request may leave the input out. Lengths are optional if every row has as many
    /// values as the shape says.
    pub(crate) is_optional: bool,
    /// The number of values of a row in an output of classes; 0: the shape is one dimension.
    pub(crate) classes: usize,
}

impl Described {
    /// Returns the sizes of the dimensions. The size -1 means any size.
    pub(crate) fn shape(&self) -> Vec<i64> {
        match self.classes {
            0 => vec![-1],
            classes => vec![-1, classes as i64],
        }
    }
}

/// Lists the inputs of a version. An input of lists is followed by the input of their lengths.
pub(crate) fn inputs(servable: &Servable) -> Vec<Described> {
    let mut inputs = Vec::new();
    for input in unique_inputs(servable.encoder()) {
        let (name, datatype) = (input.name.clone(), datatype(input));
        inputs.push(Described { name, datatype, is_optional: false, classes: 0 });
        if input.is_list {
            let name = format!("{}{LENGTHS}", input.name);
            let datatype = Datatype::Int64;
            inputs.push(Described { name, datatype, is_optional: true, classes: 0 });
        }
    }
    inputs
}

/// Lists the outputs of a version.
pub(crate) fn outputs(servable: &Servable) -> Vec<Described> {
    let output = |output: Output| Described {
        name: output.name,
        datatype: Datatype::Fp32,
        is_optional: false,
        classes: output.classes.len(),
    };
    output_names(servable).into_iter().map(output).collect()
}

/// Lists the inputs of an encoder without repeated names.
pub(crate) fn unique_inputs(encoder: &Encoder) -> impl Iterator<Item = &InputSpec> {
    let mut seen = BTreeSet::new();
    encoder.inputs().filter(move |input| seen.insert(input.name.as_str()))
}

/// Returns the datatype that fits an input best. Other datatypes with the same meaning are accepted
/// too.
pub(crate) fn datatype(input: &InputSpec) -> Datatype {
    match input.kind {
        InputKind::Id(RawType::I64) => Datatype::Int64,
        InputKind::Id(RawType::U64) => Datatype::Uint64,
        InputKind::Id(RawType::String) => Datatype::Bytes,
        InputKind::Number => Datatype::Fp32,
        InputKind::Time => Datatype::Bytes,
    }
}

#[cfg(test)]
mod tests {
    use zillion_feature::{Schema, Statistics};

    use super::*;

    #[test]
    fn an_unknown_input_has_the_error_of_the_encoder() {
        let job = "[features.user]\nkind = 'id'\ncolumn = 'user_id'\n[labels.y]";
        let schema = Schema::from_job(&job.parse::<toml::Table>().unwrap().into()).unwrap();
        let encoder = Encoder::new(&schema, &Statistics::default(), &[]).unwrap();
        for known in ["user", "user_id", "user__lengths"] {
            check_input(&encoder, known).unwrap();
        }
        let refused = check_input(&encoder, "usr").unwrap_err().to_string();
        assert!(refused.contains("input `usr`: the model has no input of this name"), "{refused}");
        assert!(refused.contains("did you mean `user`?"), "{refused}");
    }
}
