//! The file format of a graph: JSON that is a part of a version.
//!
//! The content of a file is not trusted: the rule of each operation computes the shape of its node
//! again. A graph that the builder could not have built is refused with the name of the node.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::graph::shape::{NodeId, Shape};
use crate::ops;

/// The version of the format.
const FORMAT: u32 = 1;

/// The maximum number of floats in a parameter. A larger number means that the file is damaged.
const MAX_FLOATS: usize = 1 << 40;

/// The content of a file, with a graph that is owned or borrowed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<G> {
    format: u32,
    graph: G,
}

impl Graph {
    /// Writes the bytes of the file. The same graph gives the same bytes.
    ///
    /// # Errors
    /// Returns an error if the graph has a constant that is not finite, which JSON cannot
    /// represent.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        let bytes = serde_json::to_vec(&File { format: FORMAT, graph: self });
        let bytes = bytes.map_err(|e| refuse_file(e.to_string()))?;
        // JSON writes numbers that are not finite as null, which only a reader would notice, too
        // late.
        match Self::from_json(&bytes) {
            Ok(same) if same == *self => Ok(bytes),
            Ok(_) => Err(refuse_file(
                "the graph has a constant that is not finite, which JSON cannot represent".into(),
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
                "its format is {}, and this program reads format {FORMAT}; use a program of the \
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
                "column `{}` refers to table {}, and there are {} tables; the file is damaged",
                column.name,
                column.table,
                inputs.tables.len()
            )));
        }
        for param in &self.params {
            if param.rows.checked_mul(param.cols).is_none_or(|floats| floats > MAX_FLOATS) {
                let reason = format!(
                    "{} × {} floats are more than the maximum of {MAX_FLOATS}; the file is damaged",
                    param.rows, param.cols
                );
                return Err(Error::Param { name: param.name.clone(), reason });
            }
        }
        let mut shapes: Vec<Shape> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let refuse = |reason: String| Error::Shape { node: node.name.clone(), reason };
            let before = |id: &NodeId| shapes.get(id.0 as usize).copied();
            let inputs: Option<Vec<Shape>> = node.inputs.iter().map(before).collect();
            let inputs = inputs.ok_or_else(|| {
                refuse("an input comes after the node; the file is damaged".into())
            })?;
            let shape = ops::shape(&node.op, &inputs, self).map_err(refuse)?;
            if shape != node.shape {
                let found = node.shape;
                return Err(refuse(format!(
                    "the operation gives the shape {shape}, and the file has {found}; the file is \
                     damaged"
                )));
            }
            shapes.push(shape);
        }
        let named = self.outputs.iter().chain(&self.aliases);
        for (name, id) in named.map(|(name, id)| (name.as_str(), id)) {
            if id.0 as usize >= self.nodes.len() {
                return Err(refuse_file(format!(
                    "`{name}` refers to node {id}, which does not exist; the file is damaged"
                )));
            }
        }
        for (param, id) in &self.updates {
            if param.0 as usize >= self.params.len() || id.0 as usize >= self.nodes.len() {
                return Err(refuse_file(format!(
                    "an update refers to parameter {} or node {id}, which does not exist; the file is \
                     damaged",
                    param.0
                )));
            }
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
    use crate::{GraphBuilder, Mode};

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
}
