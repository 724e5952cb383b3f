//! The state of an export: the written parts, and the inputs and lists that nodes need.

use super::emit::Emitter;
use super::lists::List;
use super::proto::{AttributeProto, DimensionValue, TensorProto, ValueInfoProto, data};
use super::{OnnxColumn, OnnxHolds, OnnxInput};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::graph::op::Gather;
use crate::graph::shape::{Dim, NodeId, ParamId};
use crate::params::Params;

/// The symbolic dimension of the rows of a batch.
pub(super) const BATCH: &str = "batch";

/// A node of the graph, with the names of the values that it reads.
pub(crate) struct OnnxNode<'a> {
    pub(crate) id: NodeId,
    /// The name of the node in the graph.
    pub(crate) layer: &'a str,
    pub(crate) inputs: &'a [&'a str],
    pub(crate) input_cols: &'a [usize],
    /// The number of columns of the result.
    pub(crate) out_cols: usize,
}

impl OnnxNode<'_> {
    /// Returns the number of columns of an input, or 0 if the node has no such input.
    pub(crate) fn cols(&self, index: usize) -> usize {
        self.input_cols.get(index).copied().unwrap_or(0)
    }
}

/// A graph that is being written as ONNX.
pub(crate) struct Writer<'a> {
    pub(super) graph: &'a Graph,
    params: &'a Params,
    columns: &'a [OnnxColumn],
    pub(crate) emitter: Emitter,
    pub(super) is_needed: Vec<bool>,
    /// The name of the value of each node. It is empty until the node is written.
    pub(super) values: Vec<String>,
    lists: Vec<Option<List>>,
    pub(super) inputs: Vec<OnnxInput>,
    pub(super) infos: Vec<ValueInfoProto>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(graph: &'a Graph, params: &'a Params, columns: &'a [OnnxColumn]) -> Self {
        // Nodes that no output depends on are left out.
        let is_needed = graph.live(graph.outputs.iter().map(|&(_, id)| id));
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

    pub(super) fn value(&self, id: NodeId) -> &str {
        &self.values[id.0 as usize]
    }

    /// Declares the input of one segment of a column's rows and returns its name.
    pub(crate) fn rows(&mut self, gather: &Gather, layer: &str) -> Result<String> {
        let Gather { column, offset, dim, .. } = *gather;
        let known = &self.graph.inputs;
        let of = &self.columns[column];
        let found = of.segments.iter().find(|(_, o, d)| (*o, *d) == (offset, dim));
        let Some((segment, ..)) = found else {
            let feature = &known.columns[column].name;
            let reason = format!(
                "it reads the floats {offset}..{} of the rows of `{feature}`, which are not a \
                 segment; read whole segments",
                offset + dim
            );
            return Err(Error::Onnx { node: layer.to_owned(), reason });
        };
        let feature = known.columns[column].name.clone();
        let table = known.tables[known.columns[column].table].name.clone();
        let rows = if of.list { format!("values_{feature}") } else { BATCH.to_owned() };
        let holds = OnnxHolds::Rows { feature: feature.clone(), table, segment: segment.clone() };
        let shape = [DimensionValue::Symbol(rows), DimensionValue::Number(dim as i64)];
        self.input(format!("{feature}.{segment}"), data::FLOAT, &shape, false, holds)
    }

    /// Declares the input with the weights of a list column's values. By default, all weights are
    /// 1.
    pub(crate) fn weights(&mut self, column: usize) -> Result<String> {
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

    /// Returns the values that are computed from a list column. Returns `None` if each row has
    /// exactly one value.
    pub(crate) fn list(&mut self, column: usize) -> Result<Option<List>> {
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
        // The operations that turn lengths into rows do not belong to the current node.
        self.emitter.begin(format!("%list.{column}"), &format!("{feature}.rows"));
        let made = List::new(&mut self.emitter, &lengths);
        self.lists[column] = Some(made.clone());
        Ok(Some(made))
    }

    /// Declares the input of a numeric feature and returns its name.
    pub(crate) fn number(&mut self, column: usize) -> Result<String> {
        let column = self.graph.inputs.numeric[column].as_str();
        let name = format!("{column}.value");
        // The columns of a vector are called `vector[0]`, `vector[1]`, ..
        let place = column.strip_suffix(']').and_then(|column| column.rsplit_once('['));
        let float = place.and_then(|(vector, at)| Some((vector, at.parse().ok()?)));
        let (feature, at) = float.map_or((column, None), |(vector, at)| (vector, Some(at)));
        let feature = feature.to_owned();
        let shape = [DimensionValue::Symbol(BATCH.to_owned()), DimensionValue::Number(1)];
        self.input(name, data::FLOAT, &shape, false, OnnxHolds::Value { feature, at })
    }

    /// Declares an input if it has not been declared yet, and returns its name.
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

    /// Writes a parameter as an initializer and returns its name.
    pub(crate) fn param(&mut self, param: ParamId) -> Result<String> {
        let spec = self.graph.param(param);
        self.emitter.claim(&spec.name)?;
        let values = self.params.value(param);
        let tensor = TensorProto::floats(&spec.name, &[spec.rows, spec.cols], values);
        self.emitter.initializers.push(tensor);
        Ok(spec.name.clone())
    }

    /// Returns whether all inputs of a node are constants.
    pub(crate) fn is_constant(&self, id: NodeId) -> bool {
        let inputs = &self.graph.node(id).inputs;
        inputs.iter().all(|&input| matches!(self.graph.shape(input).rows, Dim::Const(_)))
    }

    /// Writes the concatenation of the columns of values.
    pub(crate) fn concat(&mut self, parts: &[&str]) -> String {
        self.emitter.op("Concat", parts, vec![AttributeProto::int("axis", 1)])
    }

    /// Writes a reduction over one axis. The axis stays, with length one.
    pub(crate) fn reduce(&mut self, op_type: &str, x: &str, axis: i64) -> String {
        let axis = self.emitter.int(axis);
        self.emitter.op(op_type, &[x, &axis], vec![AttributeProto::int("keepdims", 1)])
    }
}
