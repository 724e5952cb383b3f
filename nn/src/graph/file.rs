//! The file format of a graph: JSON, which is a part of every published version.
//!
//! The content of a file is not trusted. So the rule of each operation computes the shape of its
//! node again. A graph that the builder could not have built is refused, and the error names the
//! node.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId, Shape};
use crate::ops;

/// The version of the format.
const FORMAT: u32 = 1;

/// The maximum number of floats in a parameter. A larger number means that the file is damaged.
const MAX_FLOATS: usize = 1 << 40;

/// The maximum number of floats of all nodes together, for one row of a batch. Real models have
/// thousands of floats. With a larger number, a server would use up its memory when it scores.
const MAX_ROW_FLOATS: usize = 1 << 20;

/// The maximum number of floats of all nodes with a constant shape together. Four times the floats
/// of the parameters are allowed in addition. An executor allocates all of them before its first
/// batch.
const MAX_CONSTANT_FLOATS: usize = 1 << 22;

/// The content of a file, with a graph that is owned or borrowed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<G> {
    format: u32,
    graph: G,
}

impl Graph {
    /// Returns the graph as the bytes of a JSON file. The same graph always gives the same bytes.
    ///
    /// # Errors
    /// Returns an error if the graph has a constant that is not finite, which JSON cannot
    /// represent.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        let bytes = serde_json::to_vec(&File { format: FORMAT, graph: self });
        let bytes = bytes.map_err(|e| refuse_file(e.to_string()))?;
        // JSON writes a number that is not finite as null. Only the reader would notice this, which
        // is too late.
        match Self::from_json(&bytes) {
            Ok(same) if same == *self => Ok(bytes),
            Ok(_) => Err(refuse_file(
                "the graph has a constant that is not finite, which JSON cannot represent; use \
                 finite constants"
                    .into(),
            )),
            Err(error) => Err(error),
        }
    }

    /// Reads the file that [`Graph::to_json`] wrote.
    ///
    /// # Errors
    /// Returns an error if the bytes are not such a file, or if the builder could not have built
    /// one of its nodes.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        let read: File<Self> =
            serde_json::from_slice(bytes).map_err(|e| refuse_file(e.to_string()))?;
        if read.format != FORMAT {
            let reason = format!(
                "its format is {}, but this program reads format {FORMAT}; use a program of the \
                 version that wrote the file",
                read.format
            );
            return Err(refuse_file(reason));
        }
        read.graph.validate()?;
        Ok(read.graph)
    }

    /// Checks that the builder could have built every node from the nodes before it, and that every
    /// reference exists.
    fn validate(&self) -> Result<()> {
        let known = &self.inputs;
        if let Some(column) = known.columns.iter().find(|c| c.table >= known.tables.len()) {
            let Self { inputs, .. } = self;
            return Err(refuse_file(format!(
                "column `{}` refers to table {}, but there are {} tables; restore the damaged file",
                column.name,
                column.table,
                inputs.tables.len()
            )));
        }
        for param in &self.params {
            if param.rows.checked_mul(param.cols).is_none_or(|floats| floats > MAX_FLOATS) {
                let reason = format!(
                    "{} × {} floats are more than the maximum of {MAX_FLOATS}; restore the \
                     damaged file",
                    param.rows, param.cols
                );
                return Err(Error::Param { name: param.name.clone(), reason });
            }
        }
        let mut shapes: Vec<Shape> = Vec::with_capacity(self.nodes.len());
        let mut sizes = Sizes::new(self);
        for node in &self.nodes {
            let refuse = |reason: String| Error::Shape { node: node.name.clone(), reason };
            let before = |id: &NodeId| shapes.get(id.0 as usize).copied();
            let inputs: Option<Vec<Shape>> = node.inputs.iter().map(before).collect();
            let inputs = inputs.ok_or_else(|| {
                refuse("an input comes after the node; restore the damaged file".into())
            })?;
            let shape = ops::shape(&node.op, &inputs, self).map_err(refuse)?;
            if shape != node.shape {
                let found = node.shape;
                return Err(refuse(format!(
                    "the operation gives the shape {shape}, but the file has {found}; restore the \
                     damaged file"
                )));
            }
            sizes.add(&node.op, shape).map_err(refuse)?;
            shapes.push(shape);
        }
        let named = self.outputs.iter().chain(&self.aliases);
        for (name, id) in named.map(|(name, id)| (name.as_str(), id)) {
            if id.0 as usize >= self.nodes.len() {
                return Err(refuse_file(format!(
                    "`{name}` refers to node {id}, which does not exist; restore the damaged file"
                )));
            }
        }
        for (param, id) in &self.updates {
            if param.0 as usize >= self.params.len() || id.0 as usize >= self.nodes.len() {
                return Err(refuse_file(format!(
                    "an update refers to parameter {} or node {id}, which does not exist; restore \
                     the damaged file",
                    param.0
                )));
            }
        }
        Ok(())
    }
}

/// The number of floats that the nodes of a graph need so far.
struct Sizes {
    row: usize,
    constant: usize,
    most_constant: usize,
}

impl Sizes {
    fn new(graph: &Graph) -> Self {
        let floats = graph.params.iter().map(|param| param.rows.saturating_mul(param.cols));
        let params = floats.fold(0, usize::saturating_add);
        let most_constant = params.saturating_mul(4).saturating_add(MAX_CONSTANT_FLOATS);
        Self { row: 0, constant: 0, most_constant }
    }

    /// Adds the floats of a node, and checks the sums. After this check, arithmetic with the shapes
    /// of the nodes cannot overflow.
    fn add(&mut self, op: &Op, shape: Shape) -> std::result::Result<(), String> {
        match shape.rows {
            Dim::Const(_) if matches!(op, Op::Param { .. }) => {}
            Dim::Const(_) => {
                let floats = shape.const_len().unwrap_or(usize::MAX);
                self.constant = self.constant.saturating_add(floats);
            }
            _ => self.row = self.row.saturating_add(shape.cols),
        }
        if self.row > MAX_ROW_FLOATS {
            return Err(format!(
                "the nodes up to this one have {} floats for each row of a batch, but at most \
                 {MAX_ROW_FLOATS} are allowed; make the model narrower",
                self.row
            ));
        }
        if self.constant > self.most_constant {
            return Err(format!(
                "the constants up to this one have {} floats, but a file with these parameters \
                 has at most {}; restore the damaged file",
                self.constant, self.most_constant
            ));
        }
        Ok(())
    }
}

fn refuse_file(reason: String) -> Error {
    Error::Input { input: "the graph file".to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fused, GraphBuilder, Link, Mode, Unary};

    fn graph() -> Graph {
        let mut builder = GraphBuilder::new(crate::GraphInputs::default(), Mode::Infer);
        let half = builder.fill("half", 1, 1, 0.5).unwrap();
        builder.output("half", half).unwrap();
        builder.finish()
    }

    #[test]
    fn a_graph_reads_back_and_a_damaged_one_does_not() {
        let graph = graph();
        let bytes = graph.to_json().unwrap();
        assert_eq!(Graph::from_json(&bytes).unwrap(), graph);
        for (good, bad) in [("\"format\":1", "\"format\":2"), ("\"cols\":1", "\"cols\":2")] {
            let text = String::from_utf8(bytes.clone()).unwrap();
            assert!(text.contains(good), "{text}");
            assert!(Graph::from_json(text.replacen(good, bad, 1).as_bytes()).is_err());
        }
    }

    #[test]
    fn sizes_that_would_take_the_memory_are_refused() {
        let one = "\"cols\":1";
        let refused = |graph: &Graph, changes: &[(&str, &str)]| {
            let mut text = String::from_utf8(graph.to_json().unwrap()).unwrap();
            for (good, bad) in changes {
                assert!(text.contains(good), "{text}");
                text = text.replace(good, bad);
            }
            Graph::from_json(text.as_bytes()).unwrap_err().to_string()
        };
        let error = refused(&graph(), &[(one, "\"cols\":99999999")]);
        assert!(error.contains("constants up to this one"), "{error}");
        // A product that is too large for a number is not a valid shape.
        let most = format!("\"cols\":{}", usize::MAX);
        let error = refused(&graph(), &[(one, &most), ("{\"const\":1}", "{\"const\":3}")]);
        assert!(error.contains("half"), "{error}");
        let columns = format!("[{}]", vec!["0"; MAX_ROW_FLOATS + 1].join(","));
        let wide = format!("\"cols\":{}", MAX_ROW_FLOATS + 1);
        let error = refused(&numbers(), &[("[0]", &columns), (one, &wide)]);
        assert!(error.contains("make the model narrower"), "{error}");
    }

    #[test]
    fn a_fused_chain_with_a_wrapped_count_is_refused() {
        let mut graph = numbers();
        let fused = Fused {
            head: Op::Unary(Unary::Relu),
            head_inputs: 0usize.wrapping_sub(1),
            chain: vec![Link::MulAdd],
        };
        let mut node = graph.nodes[0].clone();
        (node.op, node.inputs) = (Op::Fused(Box::new(fused)), vec![NodeId(0)]);
        graph.nodes.push(node);
        let file = serde_json::to_vec(&File { format: FORMAT, graph: &graph }).unwrap();
        let error = Graph::from_json(&file).unwrap_err().to_string();
        assert!(error.contains("found 1 inputs"), "{error}");
    }

    fn numbers() -> Graph {
        let inputs = crate::GraphInputs { numeric: vec!["x".into()], ..Default::default() };
        let mut builder = GraphBuilder::new(inputs, Mode::Infer);
        builder.numeric("x", &[0]).unwrap();
        builder.finish()
    }
}
