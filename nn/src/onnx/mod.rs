//! A graph built for inference as an ONNX model, for runtimes that know nothing of tables.
//!
//! Dense parameters become initializers under their own names. What a batch brings along become inputs, in
//! the form in which somebody who has the rows in a key-value store has them:
//!
//! | input | shape | what it is |
//! |---|---|---|
//! | `<feature>.<segment>` | `[batch, n]` | floats of the segment of the row of each id, of a feature with one id |
//! | `<feature>.<segment>` | `[values_<feature>, n]` | of a list feature the same for each value, list after list |
//! | `<feature>.lengths` | `[batch]`, int64 | values of each list |
//! | `<feature>.weights` | `[values_<feature>]`, or `[1]` for all | weights of the values; absent: 1 |
//! | `<feature>.value` | `[batch, 1]` | a number, transformed as the job says |
//!
//! Pooling, attention over histories and everything behind it are in the graph. Outputs have the names that
//! they have in the graph: `logits`, `probabilities`, and `…/<task>` of further tasks.
//!
//! It is no general converter: operations that training alone knows are refused by name.

mod emit;
mod lists;
mod ops;
mod proto;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use prost::Message;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::graph::{Dim, Graph, NodeId};
use crate::op::{Gather, Op};
use crate::params::Params;
use emit::Emitter;
use lists::List;
use proto::{
    DimensionValue, GraphProto, ModelProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, ValueInfoProto, data,
};

/// The operator set: `ScatterND` has maxima from 18 on.
const OPSET: i64 = 18;
/// The file format of that operator set.
const IR_VERSION: i64 = 8;
/// Protobuf messages end here.
const MAX_BYTES: usize = i32::MAX as usize;
/// The symbolic dimension of the rows of a batch.
const BATCH: &str = "batch";

/// A sparse column as its rows are fed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxColumn {
    /// Whether a row of the batch has a list of values.
    pub list: bool,
    /// The parts of its table's rows: name, first float, floats.
    pub segments: Vec<(String, usize, usize)>,
}

/// What an input is, and what to feed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OnnxInput {
    /// Its name in the model.
    pub name: String,
    /// `float32` or `int64`.
    pub dtype: &'static str,
    /// Its dimensions, symbolic ones by name.
    pub shape: Vec<String>,
    /// Whether it may be left out.
    pub optional: bool,
    /// What it holds.
    #[serde(flatten)]
    pub holds: OnnxHolds,
}

/// What an input holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "holds", rename_all = "snake_case")]
pub enum OnnxHolds {
    /// A segment of the row of each value.
    Rows {
        /// The feature.
        feature: String,
        /// The table.
        table: String,
        /// The segment.
        segment: String,
    },
    /// The number of values of each list.
    Lengths {
        /// The feature.
        feature: String,
    },
    /// The weight of each value.
    Weights {
        /// The feature.
        feature: String,
    },
    /// A number.
    Value {
        /// The feature.
        feature: String,
    },
}

/// A model in ONNX.
#[derive(Clone, Debug, PartialEq)]
pub struct OnnxModel {
    /// The file's bytes. The same model gives the same bytes.
    pub bytes: Vec<u8>,
    /// What to feed it, in the order of the file.
    pub inputs: Vec<OnnxInput>,
    /// Names and columns of what it answers; each is `[batch, columns]`.
    pub outputs: Vec<(String, usize)>,
}

impl Graph {
    /// The graph, which was built for inference, with these parameters. `columns` say how the sparse columns are
    /// fed, `metadata` goes into the file as it is.
    ///
    /// # Errors
    /// [`Error::Onnx`] names the node whose operation has no form in ONNX, or the name that two things have.
    pub fn to_onnx(
        &self,
        params: &Params,
        columns: &[OnnxColumn],
        metadata: &BTreeMap<String, String>,
    ) -> Result<OnnxModel> {
        params.fits(&self.params)?;
        if columns.len() != self.inputs.columns.len() {
            let (have, want) = (columns.len(), self.inputs.columns.len());
            let reason = format!("{have} columns are described and the graph has {want}");
            return Err(Error::Input { input: "the columns".to_owned(), reason });
        }
        if let Some((param, _)) = params.iter().find(|(_, v)| v.iter().any(|x| !x.is_finite())) {
            let reason = "holds a number that is not finite".to_owned();
            return Err(Error::Param { name: param.name.clone(), reason });
        }
        let mut writer = Writer::new(self, params, columns);
        for (name, _) in &self.outputs {
            writer.emitter.claim(name)?;
        }
        for index in 0..self.nodes.len() {
            let id = NodeId(index as u32);
            if writer.is_needed[index] {
                writer.node(id)?;
            }
        }
        writer.finish(metadata)
    }
}

/// A graph on its way to ONNX.
struct Writer<'a> {
    graph: &'a Graph,
    params: &'a Params,
    columns: &'a [OnnxColumn],
    emitter: Emitter,
    is_needed: Vec<bool>,
    /// The value of each node, once it is written.
    values: Vec<String>,
    lists: Vec<Option<List>>,
    inputs: Vec<OnnxInput>,
    infos: Vec<ValueInfoProto>,
}

impl<'a> Writer<'a> {
    fn new(graph: &'a Graph, params: &'a Params, columns: &'a [OnnxColumn]) -> Self {
        // What no output depends on is left out.
        let mut is_needed = vec![false; graph.nodes.len()];
        for (_, id) in &graph.outputs {
            is_needed[id.0 as usize] = true;
        }
        for (index, node) in graph.nodes.iter().enumerate().rev() {
            if is_needed[index] {
                node.inputs.iter().for_each(|input| is_needed[input.0 as usize] = true);
            }
        }
        Self {
            graph,
            params,
            columns,
            emitter: Emitter::default(),
            is_needed,
            values: vec![String::new(); graph.nodes.len()],
            lists: vec![None; columns.len()],
            inputs: Vec::new(),
            infos: Vec::new(),
        }
    }

    fn value(&self, id: NodeId) -> &str {
        &self.values[id.0 as usize]
    }

    /// The input of one segment of a column's rows.
    fn rows(&mut self, gather: &Gather, layer: &str) -> Result<String> {
        let Gather { column, offset, dim, .. } = *gather;
        let known = &self.graph.inputs;
        let of = &self.columns[column];
        let found = of.segments.iter().find(|(_, o, d)| (*o, *d) == (offset, dim));
        let Some((segment, ..)) = found else {
            let feature = &known.columns[column].name;
            let reason = format!(
                "it reads floats {offset}..{} of the rows of `{feature}`, which are no segment of them",
                offset + dim
            );
            return Err(Error::Onnx { node: layer.to_owned(), reason });
        };
        let feature = known.columns[column].name.clone();
        let table = known.tables[known.columns[column].table].name.clone();
        let rows = if of.list { values_of(&feature) } else { BATCH.to_owned() };
        let holds = OnnxHolds::Rows { feature: feature.clone(), table, segment: segment.clone() };
        let shape = [DimensionValue::Symbol(rows), DimensionValue::Number(dim as i64)];
        self.input(format!("{feature}.{segment}"), data::FLOAT, &shape, false, holds)
    }

    /// The weights of a list column's values; all 1 unless they are fed.
    fn weights(&mut self, column: usize) -> Result<String> {
        let feature = self.graph.inputs.columns[column].name.clone();
        let name = format!("{feature}.weights");
        let is_new = !self.inputs.iter().any(|input| input.name == name);
        let shape = [DimensionValue::Symbol(format!("weights_{feature}"))];
        let holds = OnnxHolds::Weights { feature };
        let name = self.input(name, data::FLOAT, &shape, true, holds)?;
        if is_new {
            self.emitter.initializers.push(TensorProto::floats(&name, &[1], &[1.0]));
        }
        Ok(name)
    }

    /// What is known of a list column; `None` where each row has one value.
    fn list(&mut self, column: usize) -> Result<Option<List>> {
        if !self.columns[column].list {
            return Ok(None);
        }
        if let Some(list) = &self.lists[column] {
            return Ok(Some(list.clone()));
        }
        let feature = self.graph.inputs.columns[column].name.clone();
        let shape = [DimensionValue::Symbol(BATCH.to_owned())];
        let holds = OnnxHolds::Lengths { feature: feature.clone() };
        let name = format!("{feature}.lengths");
        let lengths = self.input(name, data::INT64, &shape, false, holds)?;
        let made = self.apart(format!("%list.{column}"), &format!("{feature}.rows"), |e| {
            List::new(e, &lengths)
        });
        self.lists[column] = Some(made.clone());
        Ok(Some(made))
    }

    /// Writes something that is no part of the node at hand.
    fn apart<T>(&mut self, value: String, layer: &str, write: impl FnOnce(&mut Emitter) -> T) -> T {
        self.emitter.begin(value, layer);
        write(&mut self.emitter)
    }

    /// A number of the batch.
    fn number(&mut self, column: usize) -> Result<String> {
        let feature = self.graph.inputs.numeric[column].clone();
        let name = format!("{feature}.value");
        let shape = [DimensionValue::Symbol(BATCH.to_owned()), DimensionValue::Number(1)];
        self.input(name, data::FLOAT, &shape, false, OnnxHolds::Value { feature })
    }

    /// An input, declared once.
    fn input(
        &mut self,
        name: String,
        elem_type: i32,
        shape: &[DimensionValue],
        optional: bool,
        holds: OnnxHolds,
    ) -> Result<String> {
        if let Some(known) = self.inputs.iter().find(|input| input.name == name) {
            if known.holds == holds {
                return Ok(name);
            }
            let reason = "two inputs would have this name; rename one of the features".to_owned();
            return Err(Error::Onnx { node: name, reason });
        }
        self.emitter.claim(&name)?;
        let doc = match &holds {
            OnnxHolds::Rows { table, segment, .. } => {
                format!("segment {segment} of the rows of table {table}")
            }
            OnnxHolds::Lengths { .. } => "values of each list".to_owned(),
            OnnxHolds::Weights { .. } => "weights of the values; one number for all".to_owned(),
            OnnxHolds::Value { .. } => "a number, transformed as the job says".to_owned(),
        };
        self.infos.push(ValueInfoProto::new(&name, elem_type, shape, &doc));
        let text = |d: &DimensionValue| match d {
            DimensionValue::Number(n) => n.to_string(),
            DimensionValue::Symbol(s) => s.clone(),
        };
        self.inputs.push(OnnxInput {
            name: name.clone(),
            dtype: if elem_type == data::INT64 { "int64" } else { "float32" },
            shape: shape.iter().map(text).collect(),
            optional,
            holds,
        });
        Ok(name)
    }

    fn finish(mut self, metadata: &BTreeMap<String, String>) -> Result<OnnxModel> {
        let mut outputs = Vec::new();
        let mut infos = Vec::new();
        for (name, id) in &self.graph.outputs {
            let node = self.graph.node(*id);
            if node.shape.rows != Dim::Batch {
                let reason = format!(
                    "an output has a row for each row of the batch, and this is {}",
                    node.shape
                );
                return Err(Error::Onnx { node: name.clone(), reason });
            }
            let value = self.value(*id).to_owned();
            self.emitter.begin(format!("%output.{name}"), &format!("output.{name}"));
            self.emitter.push("Identity", &[&value], Vec::new(), name.clone());
            let cols = node.shape.cols;
            let shape =
                [DimensionValue::Symbol(BATCH.to_owned()), DimensionValue::Number(cols as i64)];
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
                node: self.emitter.nodes,
                initializer: self.emitter.initializers,
                input: self.infos,
                output: infos,
                doc_string: None,
            }),
            ..ModelProto::default()
        };
        let length = model.encoded_len();
        if length > MAX_BYTES {
            let reason = format!(
                "the dense model has {length} bytes, and a file of ONNX at most {MAX_BYTES}; its \
                 safetensors have no such limit"
            );
            return Err(Error::Onnx { node: "the whole graph".to_owned(), reason });
        }
        Ok(OnnxModel { bytes: model.encode_to_vec(), inputs: self.inputs, outputs })
    }
}

fn values_of(feature: &str) -> String {
    format!("values_{feature}")
}

/// A refusal of an operation.
fn no_form(op: &Op, layer: &str) -> Error {
    let reason = format!("the operation `{}` has no form in ONNX", op.name());
    Error::Onnx { node: layer.to_owned(), reason }
}
