//! The export of an inference graph as an ONNX model, for runtimes without Zillion's tables.
//!
//! Dense parameters become initializers under their own names. The values of a batch become inputs,
//! in the form in which a key-value store returns rows:
//!
//! | input | shape | content |
//! |---|---|---|
//! | `<feature>.<segment>` | `[batch, n]` | the segment of the row of each id (one id a row) |
//! | `<feature>.<segment>` | `[values_<feature>, n]` | the same for each value of a list feature |
//! | `<feature>.lengths` | `[batch]`, int64 | values of each list |
//! | `<feature>.weights` | `[values_<feature>]` or `[1]` | weights of the values; 1 if absent |
//! | `<feature>.value` | `[batch, 1]` | a number, transformed as the job says |
//!
//! Pooling, attention over histories and all later layers are in the graph. Outputs have the same
//! names as in the graph. For the first task, they are `logits` and `probabilities`. For every
//! other task, `/<task>` follows these names.
//!
//! The module is not a general converter. It refuses operations that exist only in training, and
//! its error names them.

pub(crate) mod emit;
pub(crate) mod lists;
pub(crate) mod proto;
#[cfg(test)]
mod tests;
pub(crate) mod writer;

use std::collections::BTreeMap;

use prost::Message;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::graph::shape::{Dim, NodeId};
use crate::ops;
use crate::params::Params;
use proto::{
    DimensionValue, GraphProto, ModelProto, OperatorSetIdProto, StringStringEntryProto,
    ValueInfoProto, data,
};
use writer::{BATCH, OnnxNode, Writer};

/// The version of the operator set. From version 18 on, `ScatterND` supports maxima.
const OPSET: i64 = 18;
/// The version of the file format that belongs to this operator set.
const IR_VERSION: i64 = 8;
/// The maximum number of bytes of a protobuf message.
const MAX_BYTES: usize = i32::MAX as usize;

/// The form in which the model receives the values of a sparse column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxColumn {
    /// Whether a row of the batch has a list of values.
    pub list: bool,
    /// The segments of a row in the column's table. Each has a name, the index of its first float,
    /// and its number of floats.
    pub segments: Vec<(String, usize, usize)>,
}

/// An input of the model, and the values to feed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OnnxInput {
    /// The name of the input in the model.
    pub name: String,
    /// The element type, `float32` or `int64`.
    pub dtype: &'static str,
    /// The dimensions, as numbers or as the names of symbolic dimensions.
    pub shape: Vec<String>,
    /// Whether the input may be left out.
    pub optional: bool,
    /// The values that the input holds.
    #[serde(flatten)]
    pub holds: OnnxHolds,
}

/// The kind of values that an input holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "holds", rename_all = "snake_case")]
pub enum OnnxHolds {
    /// A segment of the row of each value.
    Rows {
        /// The name of the feature.
        feature: String,
        /// The name of the table.
        table: String,
        /// The name of the segment.
        segment: String,
    },
    /// The number of values of each list.
    Lengths {
        /// The name of the feature.
        feature: String,
    },
    /// The weight of each value.
    Weights {
        /// The name of the feature.
        feature: String,
    },
    /// The transformed value of a numeric feature in each row, or one float of a vector.
    Value {
        /// The name of the feature.
        feature: String,
        /// The index of the float, or `None` if the feature is no vector.
        #[serde(skip_serializing_if = "Option::is_none")]
        at: Option<usize>,
    },
}

/// A model in the ONNX format.
#[derive(Clone, Debug, PartialEq)]
pub struct OnnxModel {
    /// The bytes of the file. The same model always gives the same bytes.
    pub bytes: Vec<u8>,
    /// The inputs to feed, in the order of the file.
    pub inputs: Vec<OnnxInput>,
    /// The name and the number of columns of each result. A result has the shape `[batch,
    /// columns]`.
    pub outputs: Vec<(String, usize)>,
}

impl Graph {
    /// Exports a graph that was built for inference, with these parameters. `columns` describes the
    /// form in which the model receives the values of the sparse columns. `metadata` is written to
    /// the file unchanged.
    ///
    /// # Errors
    /// Returns [`Error::Onnx`] if ONNX cannot represent an operation, or if two values share a
    /// name.
    pub fn to_onnx(
        &self,
        params: &Params,
        columns: &[OnnxColumn],
        metadata: &BTreeMap<String, String>,
    ) -> Result<OnnxModel> {
        params.fits(&self.params)?;
        if columns.len() != self.inputs.columns.len() {
            let (have, want) = (columns.len(), self.inputs.columns.len());
            let reason = format!(
                "found descriptions of {have} columns, but the graph has {want}; describe each \
                 column"
            );
            return Err(Error::Input { input: "the columns".to_owned(), reason });
        }
        if let Some((param, _)) = params.iter().find(|(_, v)| v.iter().any(|x| !x.is_finite())) {
            let reason =
                "it has a number that is not finite; train the model again with a lower learning \
                 rate"
                    .to_owned();
            return Err(Error::Param { name: param.name.clone(), reason });
        }
        let mut writer = Writer::new(self, params, columns);
        for (name, _) in &self.outputs {
            writer.emitter.claim(name)?;
        }
        for index in 0..self.nodes.len() {
            let id = NodeId(index as u32);
            if writer.is_needed[index] {
                write_node(&mut writer, id)?;
            }
        }
        finish(writer, metadata)
    }
}

/// Writes one node. The inputs of the node must have been written before it.
fn write_node(writer: &mut Writer<'_>, id: NodeId) -> Result<()> {
    let graph = writer.graph;
    let node = graph.node(id);
    writer.emitter.enter(id, &node.name);
    let values: Vec<String> = node.inputs.iter().map(|&i| writer.value(i).to_owned()).collect();
    let inputs: Vec<&str> = values.iter().map(String::as_str).collect();
    let cols: Vec<usize> = node.inputs.iter().map(|&i| graph.shape(i).cols).collect();
    let (layer, out_cols) = (node.name.as_str(), node.shape.cols);
    let around = OnnxNode { id, layer, inputs: &inputs, input_cols: &cols, out_cols };
    let value = ops::onnx(&node.op, &around, writer)?;
    writer.values[id.0 as usize] = value.ok_or_else(|| {
        let reason = format!("ONNX has no operation for `{}`; replace the layer", node.op.name());
        Error::Onnx { node: layer.to_owned(), reason }
    })?;
    Ok(())
}

/// Completes the file of a graph after all its nodes have been written.
fn finish(mut writer: Writer<'_>, metadata: &BTreeMap<String, String>) -> Result<OnnxModel> {
    let mut outputs = Vec::new();
    let mut infos = Vec::new();
    for (name, id) in &writer.graph.outputs {
        let node = writer.graph.node(*id);
        if node.shape.rows != Dim::Batch {
            let reason = format!(
                "an output must have a row for each row of the batch, found {}; export other \
                 outputs",
                node.shape
            );
            return Err(Error::Onnx { node: name.clone(), reason });
        }
        let value = writer.value(*id).to_owned();
        writer.emitter.begin(format!("%output.{name}"), &format!("output.{name}"));
        writer.emitter.push("Identity", &[&value], Vec::new(), name.clone());
        let cols = node.shape.cols;
        let shape = [DimensionValue::Symbol(BATCH.to_owned()), DimensionValue::Number(cols as i64)];
        infos.push(ValueInfoProto::new(name, data::FLOAT, &shape, ""));
        outputs.push((name.clone(), cols));
    }
    let property = |(key, value): (&String, &String)| StringStringEntryProto {
        key: Some(key.clone()),
        value: Some(value.clone()),
    };
    let model = ModelProto {
        ir_version: Some(IR_VERSION),
        producer_name: Some("zillion".to_owned()),
        producer_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        opset_import: vec![OperatorSetIdProto {
            domain: Some(String::new()),
            version: Some(OPSET),
        }],
        metadata_props: metadata.iter().map(property).collect(),
        graph: Some(GraphProto {
            name: Some("zillion".to_owned()),
            node: writer.emitter.nodes,
            initializer: writer.emitter.initializers,
            input: writer.infos,
            output: infos,
        }),
    };
    let length = model.encoded_len();
    if length > MAX_BYTES {
        let reason = format!(
            "the dense model has {length} bytes, but an ONNX file has at most {MAX_BYTES}; use \
             the safetensors file, which has no such limit"
        );
        return Err(Error::Onnx { node: "the whole graph".to_owned(), reason });
    }
    Ok(OnnxModel { bytes: model.encode_to_vec(), inputs: writer.inputs, outputs })
}
