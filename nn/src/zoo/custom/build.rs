//! The conversion of the nodes of a job to nodes of the graph.

mod refusals;

use std::collections::HashMap;

use zillion_config::ConfigError;

use super::GraphSpec;
use super::attributes::{Features, Init, MlpNode, Wide};
use super::nodes::{NodeOp, NodeSpec};
use crate::error::{Error, Result};
use crate::graph::builder::GraphBuilder;
use crate::graph::op::{Binary, Unary};
use crate::graph::shape::{Dim, NodeId, Shape};
use crate::zoo::inputs::{ModelInputs, SparseInput, add_linear};
use crate::zoo::mlp::MlpKeys;

/// The maximum number of columns of a value. A larger row (more than 64 MiB) is probably a mistake.
const MAX_COLS: usize = 1 << 24;
/// The maximum number of floats of one parameter, which take 8 GiB.
const MAX_PARAM: usize = 1 << 31;

/// The result of a node in the job.
#[derive(Clone, Copy)]
struct Value {
    id: NodeId,
    /// The length of the vectors that the value consists of, or `None` if it does not consist of
    /// vectors of one length.
    field: Option<usize>,
}

/// Builds the nodes. Returns the node with the log odds of each label, in the order of the labels.
pub(super) fn build(
    b: &mut GraphBuilder,
    spec: &GraphSpec,
    inputs: &ModelInputs,
) -> Result<Vec<NodeId>> {
    let mut built: HashMap<&str, Value> = HashMap::with_capacity(spec.nodes.len());
    for (name, node) in &spec.nodes {
        let x: Vec<Value> = node.inputs.iter().filter_map(|i| built.get(&**i)).copied().collect();
        let mut layer = Layer { b, name, inputs, x: &x };
        let value = layer.build(node).map_err(|error| layer.name_node(error))?;
        layer.check(value)?;
        b.alias(name, value.id)?;
        built.insert(name, value);
    }
    let labels: Vec<&str> = inputs.labels.iter().map(|l| l.name.as_str()).collect();
    let nodes = spec.outputs_of(&labels)?;
    let mut log_odds = Vec::with_capacity(nodes.len());
    for (key, node) in nodes {
        let Some(value) = built.get(node) else {
            return Err(ConfigError::at(
                &key,
                format!("there is no node `{node}`; name a node of [model.nodes]"),
            )
            .into());
        };
        check_log_odds(&key, node, b.shape(value.id))?;
        log_odds.push(value.id);
    }
    Ok(log_odds)
}

fn check_log_odds(key: &str, node: &str, shape: Shape) -> Result<()> {
    let why = match shape {
        Shape { rows: Dim::Batch, cols: 1 } => return Ok(()),
        Shape { rows: Dim::Batch, .. } => {
            "add a linear node of width 1, which computes one number for each row"
        }
        Shape { rows: Dim::Values(_), .. } => {
            "add a segment_sum, which computes one row for each list"
        }
        _ => "name a node that depends on the rows of the batch",
    };
    let message = format!("log odds have the shape [B, 1], but node `{node}` has {shape}; {why}");
    Err(ConfigError::at(key, message).into())
}

impl GraphSpec {
    /// Returns the key and the name of the node with the log odds of each label, in the order of
    /// the labels.
    fn outputs_of(&self, labels: &[&str]) -> Result<Vec<(String, &str)>> {
        if let Some(node) = &self.logits {
            if labels.len() <= 1 {
                return Ok(vec![("model.logits".to_owned(), node)]);
            }
            let names = labels.join(", ");
            let why = format!(
                "the job has several labels ({names}); name a node for each label in \
                 [model.outputs]"
            );
            return Err(ConfigError::at("model.logits", why).into());
        }
        if let Some(label) = self.outputs.keys().find(|l| !labels.contains(&l.as_str())) {
            return Err(ConfigError::unknown_key("model.outputs", label, labels).into());
        }
        let of_label = |&label: &&str| match self.outputs.get(label) {
            Some(node) => Ok((format!("model.outputs.{label}"), node.as_str())),
            None => {
                let why = format!("no node for the label `{label}`; add a key `{label}`");
                Err(ConfigError::at("model.outputs", why).into())
            }
        };
        labels.iter().map(of_label).collect()
    }
}

/// The builder of one node, with the node's inputs.
struct Layer<'a> {
    b: &'a mut GraphBuilder,
    name: &'a str,
    inputs: &'a ModelInputs,
    x: &'a [Value],
}

impl<'a> Layer<'a> {
    fn build(&mut self, node: &NodeSpec) -> Result<Value> {
        let name = self.name;
        let id = match &node.op {
            NodeOp::Embedding(spec) => return self.embedding(spec),
            NodeOp::Wide(spec) => self.wide(spec)?,
            NodeOp::Values(spec) => return self.values(&spec.feature),
            NodeOp::Repeat(_) => match self.b.shape(self.x[1].id).rows {
                Dim::Values(column) => {
                    let id = self.b.repeat(name, self.x[0].id, column)?;
                    return Ok(Value { id, field: self.x[0].field });
                }
                _ => return Err(self.not_values(self.x[1].id)),
            },
            NodeOp::SegmentSum(_) => return self.segment(GraphBuilder::segment_sum),
            NodeOp::SegmentMean(_) => return self.segment(GraphBuilder::segment_mean),
            NodeOp::SegmentSoftmax(_) => return self.segment(GraphBuilder::segment_softmax),
            NodeOp::Numeric(spec) => self.numeric(spec)?,
            NodeOp::Param(spec) => {
                let [rows, cols] = spec.shape;
                self.b.param(name, (rows, cols), spec.init.into(), true)?.1
            }
            NodeOp::Constant(spec) => {
                let [rows, cols] = spec.shape;
                self.b.fill(name, rows, cols, spec.value)?
            }
            NodeOp::Prelu(_) => self.b.prelu(name, self.x[0].id)?,
            NodeOp::Bias(_) => self.b.bias(name, self.x[0].id)?,
            NodeOp::LayerNorm(_) => self.b.layer_norm(name, self.x[0].id)?,
            NodeOp::BatchNorm(_) => {
                self.needs_batch()?;
                self.b.batch_norm(name, self.x[0].id)?
            }
            NodeOp::Dropout(spec) => {
                self.needs_batch()?;
                self.b.dropout(name, self.x[0].id, spec.rate)?
            }
            NodeOp::MulAdd(_) => self.b.mul_add(name, self.x[0].id, self.x[1].id, self.x[2].id)?,
            NodeOp::Linear(spec) => {
                let x = self.x[0].id;
                self.with_init(spec.init, |b| match spec.bias {
                    true => b.linear(name, x, spec.width),
                    false => b.linear_no_bias(name, x, spec.width),
                })?
            }
            NodeOp::Matmul(_) => self.b.matmul(name, self.x[0].id, self.x[1].id)?,
            NodeOp::Concat(_) => return self.concat(),
            NodeOp::Slice(spec) => {
                let id = self.b.slice(name, self.x[0].id, spec.start, spec.len)?;
                let whole = |dim: &usize| spec.start % dim == 0 && spec.len % dim == 0;
                return Ok(Value { id, field: self.x[0].field.filter(whole) });
            }
            NodeOp::SumColumns(_) => self.b.sum_columns(name, self.x[0].id)?,
            NodeOp::MeanColumns(_) => self.b.mean_columns(name, self.x[0].id)?,
            NodeOp::SumRows(_) => {
                self.needs_constant()?;
                self.b.sum_rows(name, self.x[0].id)?
            }
            NodeOp::MeanRows(_) => {
                self.needs_constant()?;
                self.b.mean_rows(name, self.x[0].id)?
            }
            NodeOp::Softmax(_) => self.b.softmax_columns(name, self.x[0].id)?,
            NodeOp::RowDot(_) => self.b.row_dot(name, self.x[0].id, self.x[1].id)?,
            NodeOp::Fm(spec) => {
                let dim = self.field(spec.dim)?;
                self.b.fm(name, self.x[0].id, dim)?
            }
            NodeOp::DotInteraction(spec) => {
                let dim = self.field(spec.dim)?;
                self.b.dot_interaction(name, self.x[0].id, dim)?
            }
            NodeOp::Mlp(spec) => {
                if spec.batch_norm || spec.dropout > 0.0 {
                    self.needs_batch()?;
                }
                let MlpNode { activation, batch_norm, dropout, .. } = *spec;
                let keys = MlpKeys { activation, batch_norm, dropout };
                keys.build(self.b, name, &spec.hidden, self.x[0].id)?
            }
            NodeOp::Cross(spec) => {
                self.crosses(spec.layers, |b, layer, x0, x| b.cross(layer, x0, x))?
            }
            NodeOp::CrossV2(spec) => {
                self.crosses(spec.layers, |b, layer, x0, x| match spec.low_rank {
                    None => b.cross_v2(layer, x0, x),
                    Some(rank) => b.cross_v2_low_rank(layer, x0, x, rank),
                })?
            }
            op => match (op.unary(), op.binary()) {
                (Some(function), _) => return self.unary(function),
                (None, Some(function)) => self.binaries(function)?,
                (None, None) => return Err(self.refuse(format!("{} cannot be built", op.name()))),
            },
        };
        Ok(Value { id, field: self.kept_field(&node.op, id) })
    }

    /// Builds the concatenation of the inputs.
    fn concat(&mut self) -> Result<Value> {
        let parts: Vec<NodeId> = self.x.iter().map(|x| x.id).collect();
        let field = self.x[0].field.filter(|_| self.x.iter().all(|x| x.field == self.x[0].field));
        Ok(Value { id: self.b.concat(self.name, &parts)?, field })
    }

    /// Returns the length of the vectors in the result, or `None` if the result does not have the
    /// vectors of the input in the same places.
    fn kept_field(&self, op: &NodeOp, id: NodeId) -> Option<usize> {
        let elementwise = matches!(
            op,
            NodeOp::Prelu(_)
                | NodeOp::Bias(_)
                | NodeOp::LayerNorm(_)
                | NodeOp::BatchNorm(_)
                | NodeOp::Dropout(_)
                | NodeOp::Add(_)
                | NodeOp::Sub(_)
                | NodeOp::Mul(_)
                | NodeOp::Div(_)
                | NodeOp::SafeDiv(_)
                | NodeOp::MulAdd(_)
                | NodeOp::Cross(_)
                | NodeOp::CrossV2(_)
        );
        let cols = self.b.cols(id);
        let of_its_width = self.x.iter().find(|x| elementwise && self.b.cols(x.id) == cols)?;
        of_its_width.field
    }

    fn unary(&mut self, function: Unary) -> Result<Value> {
        let Value { id, field } = self.x[0];
        Ok(Value { id: self.b.unary(self.name, function, id)?, field })
    }

    /// Applies a function of two operands to all inputs, from left to right. The name of an
    /// intermediate value consists of the name of the node and a number.
    fn binaries(&mut self, function: Binary) -> Result<NodeId> {
        let mut result = self.x[0].id;
        let last = self.x.len() - 1;
        for at in 1..=last {
            let name =
                if at == last { self.name.to_owned() } else { format!("{}.{}", self.name, at - 1) };
            result = self.b.binary(&name, function, result, self.x[at].id)?;
        }
        Ok(result)
    }

    fn crosses(
        &mut self,
        layers: usize,
        layer: impl Fn(&mut GraphBuilder, &str, NodeId, NodeId) -> Result<NodeId>,
    ) -> Result<NodeId> {
        let x0 = self.x[0].id;
        let mut x = self.x[self.x.len() - 1].id;
        for index in 0..layers {
            x = layer(self.b, &format!("{}.{index}", self.name), x0, x)?;
        }
        Ok(x)
    }

    fn with_init(
        &mut self,
        init: Init,
        make: impl FnOnce(&mut GraphBuilder) -> Result<NodeId>,
    ) -> Result<NodeId> {
        self.b.set_linear_init(init.into());
        let made = make(self.b);
        self.b.set_linear_init(Init::default().into());
        made
    }

    fn values(&mut self, feature: &str) -> Result<Value> {
        let (index, column) = self.column("feature", feature, false)?;
        let Some(segment) = column.vector else {
            return Err(self.refuse_missing_segment("feature", column, "vector"));
        };
        let id = self.b.gather_values(self.name, index, segment.offset, segment.dim)?;
        Ok(Value { id, field: Some(segment.dim) })
    }

    /// Builds an operation over lists. The rows of the input must be the values of the lists.
    fn segment(
        &mut self,
        over: impl FnOnce(&mut GraphBuilder, &str, NodeId) -> Result<NodeId>,
    ) -> Result<Value> {
        let Value { id, field } = self.x[0];
        match self.b.shape(id).rows {
            Dim::Values(_) => Ok(Value { id: over(self.b, self.name, id)?, field }),
            _ => Err(self.not_values(id)),
        }
    }

    fn not_values(&self, id: NodeId) -> Error {
        let shape = self.b.shape(id);
        self.refuse(format!(
            "the input {shape} has no lists; use op = \"values\", which has a row for each value"
        ))
    }

    /// Returns the number of floats of a field: `dim` if it is given, and otherwise the length of
    /// the vectors in the input.
    fn field(&self, dim: Option<usize>) -> Result<usize> {
        dim.or(self.x[0].field).ok_or_else(|| {
            let why =
                "the input does not consist of vectors of one length; set `dim` to the number of \
                 floats of a field";
            ConfigError::at(&self.key("dim"), why).into()
        })
    }

    fn needs_batch(&self) -> Result<()> {
        match self.b.shape(self.x[0].id) {
            Shape { rows: Dim::Batch | Dim::Values(_), .. } => Ok(()),
            shape => Err(self.refuse(format!(
                "the input has the shape {shape}, but must have one row for each row of the batch or \
                 for each value; name a node that is computed from features, not a constant"
            ))),
        }
    }

    fn needs_constant(&self) -> Result<()> {
        match self.b.shape(self.x[0].id) {
            Shape { rows: Dim::Const(_), .. } => Ok(()),
            shape => Err(self.refuse(format!(
                "its input has the shape {shape}, and a sum over the rows of a batch would make the \
                 score of a row depend on other rows; use sum_columns, which sums inside a row"
            ))),
        }
    }

    fn embedding(&mut self, spec: &Features) -> Result<Value> {
        let columns = self.columns(spec.features.as_deref())?;
        let mut parts = Vec::with_capacity(columns.len());
        let mut dims = Vec::with_capacity(columns.len());
        for &(index, column) in &columns {
            let Some(segment) = column.vector else {
                return Err(self.refuse_missing_segment("features", column, "vector"));
            };
            let name = match columns.len() {
                1 => self.name.to_owned(),
                _ => format!("{}.{}", self.name, column.name),
            };
            parts.push(self.b.gather(&name, index, segment.offset, segment.dim, column.pooling)?);
            dims.push(segment.dim);
        }
        let field = dims.first().copied().filter(|dim| dims.iter().all(|other| other == dim));
        Ok(Value { id: self.b.concat(self.name, &parts)?, field })
    }

    fn wide(&mut self, spec: &Wide) -> Result<NodeId> {
        let (mut ids, mut numbers) = (Vec::new(), Vec::new());
        match &spec.features {
            None => {
                ids.extend(self.inputs.columns.iter().enumerate());
                numbers.extend(0..self.inputs.numeric.len());
            }
            Some(features) => {
                for name in features {
                    match self.inputs.numbers_of(name) {
                        found if found.is_empty() => {
                            ids.push(self.column("features", name, true)?);
                        }
                        found => numbers.extend(found),
                    }
                }
            }
        }
        let name = self.name;
        let mut weights = Vec::with_capacity(ids.len());
        for (index, column) in ids {
            let Some(offset) = column.linear else {
                return Err(self.refuse_missing_segment("features", column, "linear weight"));
            };
            let gather = format!("{name}.ids.{}", column.name);
            weights.push(self.b.gather(&gather, index, offset, 1, column.pooling)?);
        }
        if weights.is_empty() && numbers.is_empty() {
            return Err(
                self.refuse("there is no feature to sum over; add a feature to the job".into())
            );
        }
        let numeric = match numbers.is_empty() {
            true => None,
            false => Some(self.b.numeric(&format!("{name}.numbers"), &numbers)?),
        };
        add_linear(self.b, name, (&format!("{name}.ids"), &weights), numeric, spec.bias, 1)
    }

    fn numeric(&mut self, spec: &Features) -> Result<NodeId> {
        let all = &self.inputs.numeric;
        let columns: Vec<usize> = match &spec.features {
            None => (0..all.len()).collect(),
            Some(features) => {
                let find = |name: &String| match self.inputs.numbers_of(name) {
                    found if !found.is_empty() => Ok(found),
                    _ if self.inputs.columns.iter().any(|c| c.name == *name) => Err(self
                        .refuse_key(
                            "features",
                            format!("`{name}` is a feature of ids; name numeric features only"),
                        )),
                    _ => {
                        let names: Vec<&str> = all.iter().map(String::as_str).collect();
                        Err(ConfigError::unknown_value(&self.key("features"), name, &names).into())
                    }
                };
                let found: Vec<Vec<usize>> = features.iter().map(find).collect::<Result<_>>()?;
                found.concat()
            }
        };
        if columns.is_empty() {
            return Err(self.refuse("the job has no numeric feature; remove the node".to_owned()));
        }
        self.b.numeric(self.name, &columns)
    }

    /// Returns the sparse features with the names `features`, or all sparse features if no names
    /// are given.
    fn columns(&self, features: Option<&[String]>) -> Result<Vec<(usize, &'a SparseInput)>> {
        let columns: Vec<(usize, &'a SparseInput)> = match features {
            None => self.inputs.columns.iter().enumerate().collect(),
            Some(names) => {
                names.iter().map(|n| self.column("features", n, false)).collect::<Result<_>>()?
            }
        };
        if columns.is_empty() {
            return Err(self.refuse("the job has no feature of ids; remove the node".to_owned()));
        }
        Ok(columns)
    }

    fn column(&self, key: &str, name: &str, or_number: bool) -> Result<(usize, &'a SparseInput)> {
        let columns = &self.inputs.columns;
        if let Some(index) = columns.iter().position(|c| c.name == name) {
            return Ok((index, &columns[index]));
        }
        if !self.inputs.numbers_of(name).is_empty() {
            let why =
                format!("`{name}` is a number and has no vector; read it with op = \"numeric\"");
            return Err(self.refuse_key(key, why));
        }
        let mut names: Vec<&str> = columns.iter().map(|c| c.name.as_str()).collect();
        if or_number {
            names.extend(self.inputs.numeric.iter().map(String::as_str));
        }
        Err(ConfigError::unknown_value(&self.key(key), name, &names).into())
    }

    fn check(&self, value: Value) -> Result<()> {
        let cols = self.b.cols(value.id);
        if cols > MAX_COLS {
            return Err(self.refuse(format!(
                "the result has {cols} columns, but at most {MAX_COLS} are allowed; make the \
                     node narrower"
            )));
        }
        let large = |p: &&crate::graph::ParamSpec| p.rows.saturating_mul(p.cols) > MAX_PARAM;
        match self.b.params().iter().rev().find(large) {
            None => Ok(()),
            Some(p) => {
                let (name, rows, cols) = (&p.name, p.rows, p.cols);
                Err(self.refuse(format!(
                    "parameter `{name}` would have {rows} × {cols} floats, but at most \
                     {MAX_PARAM} are allowed; make the node narrower"
                )))
            }
        }
    }
}
