//! The nodes and initializers of an ONNX graph, and the names that connect them.
//!
//! An intermediate value is called `%n`, or `%n.k` for the k-th of several steps, where n is the
//! number of the node in the printed form of the graph. An ONNX node has the name of the layer that
//! it belongs to.

use std::collections::{BTreeMap, BTreeSet};

use super::proto::{AttributeProto, NodeProto, TensorProto};
use crate::error::{Error, Result};
use crate::graph::shape::NodeId;

/// A writer of ONNX nodes. It keeps the nodes, the constants and the names that it has written so
/// far.
#[derive(Default)]
pub(crate) struct Emitter {
    pub(crate) nodes: Vec<NodeProto>,
    pub(crate) initializers: Vec<TensorProto>,
    constants: BTreeMap<String, String>,
    names: BTreeSet<String>,
    /// The prefix of the names of values, the name of the layer, and the number of operations that
    /// have been written for the layer.
    value: String,
    layer: String,
    steps: usize,
}

impl Emitter {
    /// Sets the graph node to which the next operations belong. Their names begin with the name of
    /// this node.
    pub(crate) fn enter(&mut self, id: NodeId, layer: &str) {
        self.begin(id.to_string(), layer);
    }

    /// Sets the value to which the next operations belong. The value is not a node of the graph.
    pub(crate) fn begin(&mut self, value: String, layer: &str) {
        self.value = value;
        self.layer = layer.to_owned();
        self.steps = 0;
    }

    /// Reserves the name of an input, an output or a parameter.
    pub(crate) fn claim(&mut self, name: &str) -> Result<()> {
        if name.is_empty() || name.starts_with('%') || !self.names.insert(name.to_owned()) {
            let reason = "the name is taken or begins with `%`, and ONNX has one list of names for inputs, \
                          outputs and parameters; rename the feature or the layer";
            return Err(Error::Onnx { node: name.to_owned(), reason: reason.to_owned() });
        }
        Ok(())
    }

    /// Writes one operation and returns the name of its result.
    pub(crate) fn op(
        &mut self,
        op_type: &str,
        inputs: &[&str],
        attributes: Vec<AttributeProto>,
    ) -> String {
        let output = match self.steps {
            0 => self.value.clone(),
            step => format!("{}.{step}", self.value),
        };
        self.push(op_type, inputs, attributes, output.clone());
        output
    }

    /// Writes one operation whose result has the given name.
    pub(crate) fn push(
        &mut self,
        op_type: &str,
        inputs: &[&str],
        attribute: Vec<AttributeProto>,
        output: String,
    ) {
        let name = match self.steps {
            0 => self.layer.clone(),
            step => format!("{}#{step}", self.layer),
        };
        self.steps += 1;
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|&i| i.to_owned()).collect(),
            output: vec![output],
            name: Some(name),
            op_type: Some(op_type.to_owned()),
            attribute,
        });
    }

    /// Returns the name of a constant float.
    pub(crate) fn float(&mut self, value: f32) -> String {
        self.constant(&format!("%f32 {value:?}"), |name| TensorProto::floats(name, &[], &[value]))
    }

    /// Returns the name of a constant vector that consists of one integer.
    pub(crate) fn int(&mut self, value: i64) -> String {
        self.ints(&[value])
    }

    /// Returns the name of a constant vector of integers, for shapes, axes and indices.
    pub(crate) fn ints(&mut self, values: &[i64]) -> String {
        let of = |name: &str| TensorProto::ints(name, &[values.len()], values);
        self.constant(&format!("%i64 {values:?}"), of)
    }

    /// Returns the name of the constant with this key. The constant is written only once, by the
    /// first call with the key.
    fn constant(&mut self, key: &str, make: impl FnOnce(&str) -> TensorProto) -> String {
        if let Some(name) = self.constants.get(key) {
            return name.clone();
        }
        let name = format!("%constant.{}", self.constants.len());
        self.initializers.push(make(&name));
        self.constants.insert(key.to_owned(), name.clone());
        name
    }

    /// Writes a tensor with the same value in every element. `shape` is the name of a vector of
    /// integers.
    pub(crate) fn filled(&mut self, shape: &str, value: TensorProto) -> String {
        self.op("ConstantOfShape", &[shape], vec![AttributeProto::tensor("value", value)])
    }
}
