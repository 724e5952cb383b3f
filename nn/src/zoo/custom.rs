//! The model that a job file defines node by node. Each node has a name and an operation, which
//! reads other nodes.
//!
//! ```toml
//! [model]
//! kind = "graph"
//! logits = "score"                     # or [model.outputs], one node a label
//!
//! [model.nodes.fields]
//! op = "embedding"                     # the vectors of all features, side by side
//! [model.nodes.deep]
//! op = "mlp"
//! inputs = ["fields"]
//! hidden = [64, 32]
//! [model.nodes.score]
//! op = "linear"
//! inputs = ["deep"]
//! width = 1
//! ```
//!
//! Nodes may be in any order in the file. They are built depth first from the outputs, with the
//! inputs of each node in the listed order. The outputs are in the order of their labels' names. So
//! parameters, dropout masks and sums depend on the graph, and not on the order in the file. If no
//! output depends on a node, the graph is refused, because this is probably a mistake.

mod attributes;
mod build;
mod nodes;
mod order;

use std::collections::BTreeMap;

use serde::de::{Error as _, IgnoredAny};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::{Table, Value};
use zillion_config::ConfigError;

use super::inputs::ModelInputs;
use super::model::{Needs, ZooModel, check_some_label};
use crate::checks::not_negative;
use crate::error::Result as BuildResult;
use crate::graph::builder::GraphBuilder;
use crate::graph::shape::NodeId;

use nodes::{NodeOp, NodeSpec};

/// The keys of `kind = "graph"`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphSpec {
    /// The name of the node with the log odds, if the job has one label.
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<String>,
    /// The name of the node with the log odds of each label, if the job has several labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    outputs: BTreeMap<String, String>,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    pub(super) l2: f64,
    /// The nodes with their names, depth first from the outputs. Each node comes after its inputs.
    #[serde(serialize_with = "by_name")]
    nodes: Vec<(String, NodeSpec)>,
}

fn by_name<S: Serializer>(nodes: &[(String, NodeSpec)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(nodes.len()))?;
    for (name, node) in nodes {
        map.serialize_entry(name, node)?;
    }
    map.end()
}

/// The keys of the section, without the nodes.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Root {
    #[serde(rename = "kind")]
    _kind: String,
    logits: Option<String>,
    outputs: BTreeMap<String, String>,
    #[serde(deserialize_with = "not_negative")]
    l2: f64,
    #[serde(rename = "nodes")]
    _nodes: Option<IgnoredAny>,
}

impl GraphSpec {
    /// Reads the section at `path` of a job.
    ///
    /// # Errors
    /// Returns an error that names the key if the name or an attribute of a node is wrong, if nodes
    /// form a cycle, or if no output depends on a node.
    pub fn read(section: &Value, path: &str) -> Result<Self, ConfigError> {
        let root: Root = zillion_config::from_value(section, path)?;
        let nodes_path = format!("{path}.nodes");
        let empty = Table::new();
        let sections = match section.get("nodes") {
            None => &empty,
            Some(Value::Table(nodes)) => nodes,
            Some(other) => {
                let message = format!("expected a table of nodes, found {}", other.type_str());
                return Err(ConfigError::at(&nodes_path, message));
            }
        };
        let mut nodes = Vec::with_capacity(sections.len());
        for (name, section) in sections {
            nodes::check_name(name).map_err(|why| ConfigError::at(&nodes_path, why))?;
            let node = NodeSpec::read(section, &format!("{nodes_path}.{name}"))?;
            nodes.push((name.clone(), node));
        }
        let Root { logits, outputs, l2, .. } = root;
        let roots: Vec<(String, &str)> = match (&logits, outputs.is_empty()) {
            (Some(node), true) => vec![("logits".to_owned(), node.as_str())],
            (None, false) => outputs.iter().map(|(l, n)| (format!("outputs.{l}"), &**n)).collect(),
            (Some(_), false) => {
                let why = "give `logits` for one label or [model.outputs] for several, not both";
                return Err(ConfigError::at(path, why));
            }
            (None, true) => {
                let why = "no node is named as the result; set logits = \"NODE\" to the node of the log odds";
                return Err(ConfigError::at(path, why));
            }
        };
        let nodes = order::sort_nodes(nodes, &roots, path)?;
        Ok(Self { logits, outputs, l2, nodes })
    }
}

impl ZooModel for GraphSpec {
    fn needs(&self) -> Needs {
        let has = |kind: fn(&NodeOp) -> bool| self.nodes.iter().any(|(_, node)| kind(&node.op));
        Needs {
            vector: has(|op| matches!(op, NodeOp::Embedding(_) | NodeOp::Values(_))),
            linear: has(|op| matches!(op, NodeOp::Wide(_))),
        }
    }

    /// Returns an error if the job has no labels, or if the graph does not name a node for each
    /// label. The error contains the name of a label without a node.
    fn check_labels(&self, kind: &str, labels: usize) -> BuildResult<()> {
        check_some_label(kind, labels)
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> BuildResult<Vec<NodeId>> {
        build::build(b, self, inputs)
    }
}

/// Reads a graph whose place in the job is not known. The errors of [`GraphSpec::read`] contain
/// more precise keys.
impl<'de> Deserialize<'de> for GraphSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::read(&value, "model").map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
