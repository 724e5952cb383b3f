//! The deep interest network. Attention weights the items of a history by their relevance to the
//! candidate item, and sums them (Zhou et al., KDD 2018).

use super::*;

/// The default units of the hidden layers.
const DEFAULT_HIDDEN: [usize; 2] = [200, 80];
/// The default units of the hidden layers of an activation unit.
const DEFAULT_UNIT_HIDDEN: [usize; 2] = [80, 40];

/// The keys of `din`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DinSpec {
    /// The attention units. Each one has an id and a history, and weights the history for the id.
    /// At least one unit is needed.
    pub attention: Vec<Attention>,
    /// The units of the hidden layers that compute the weight of an item. Default: 80, 40.
    #[serde(deserialize_with = "widths")]
    pub attention_hidden: Vec<usize>,
    /// The function after each of these layers. Default: sigmoid, as in the authors' code.
    pub attention_activation: Activation,
    /// Whether the weights of a list sum to 1. Default: false, as in the paper.
    pub softmax: bool,
    /// The units of the hidden layers. Default: 200, 80.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// The keys of the MLP.
    #[serde(flatten)]
    pub mlp: MlpKeys,
    /// Whether the model has a linear part in addition to the MLP, as in `wide_deep`. Default:
    /// false.
    pub wide: bool,
    /// Whether the model has a factorisation machine in addition to the MLP, as in `deepfm`. It is
    /// computed over the vectors and the weighted histories, so all vectors must have the same
    /// length. Default: false.
    pub fm: bool,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

/// An attention unit of `din`, which weights the items of a history for an id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// The feature with the id for which the history is weighted.
    pub query: String,
    /// The feature with the history, which must be of kind sequence and read the same table.
    pub history: String,
}

impl Default for DinSpec {
    fn default() -> Self {
        Self {
            attention: Vec::new(),
            attention_hidden: DEFAULT_UNIT_HIDDEN.into(),
            attention_activation: Activation::Sigmoid,
            softmax: false,
            hidden: DEFAULT_HIDDEN.into(),
            mlp: MlpKeys::default(),
            wide: false,
            fm: false,
            l2: 0.0,
        }
    }
}

impl ZooModel for DinSpec {
    fn needs(&self) -> Needs {
        Needs { vector: true, linear: self.wide }
    }

    fn learns_classes(&self) -> bool {
        true
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let pairs = pairs(self, inputs)?;
        let dim = if self.fm { Some(inputs.common_dim("din with fm")?) } else { None };
        let numeric = inputs.numerics(b)?;
        // The vector of each feature that is not a history. The parts of a history are the results
        // of attention for its queries.
        let mut vectors = vec![None; inputs.columns.len()];
        for (index, vector) in vectors.iter_mut().enumerate() {
            if pairs.iter().all(|pair| pair.history != index) {
                *vector = Some(inputs.vector(b, index)?);
            }
        }
        let mut histories = vec![None; inputs.columns.len()];
        let mut parts = Vec::new();
        for (index, column) in inputs.columns.iter().enumerate() {
            parts.extend(vectors[index]);
            for pair in pairs.iter().filter(|pair| pair.history == index) {
                let history = match histories[index] {
                    Some(history) => history,
                    None => inputs.values(b, index)?,
                };
                histories[index] = Some(history);
                let query = &inputs.columns[pair.query];
                // A query is never a history, because `pairs` has checked this.
                let Some(vector) = vectors[pair.query] else { return Err(refuse_list(query)) };
                let name = format!("attention.{}.{}", query.name, column.name);
                parts.push(attend(b, self, &name, vector, history, index)?);
            }
        }
        let fields = b.concat("fields", &parts)?;
        let vectors = parts;
        let parts: Vec<NodeId> = [fields].into_iter().chain(numeric).collect();
        let x = b.concat("deep", &parts)?;
        let mut logit = self.mlp.build_logit(b, &self.hidden, x, inputs.scores())?;
        if let Some(dim) = dim {
            let pairs = classes::fm(b, (&vectors, fields), dim, inputs.scores())?;
            logit = b.add("logit.fm", pairs, logit)?;
        }
        if self.wide {
            let wide = inputs.linear_part(b, numeric, false)?;
            logit = b.add("logit.wide", wide, logit)?;
        }
        Ok(vec![logit])
    }
}

/// Builds an attention unit. An MLP computes the weight of each item of the history `[V, d]`. It
/// reads the query, the item, their difference and their product. Then the weighted items of each
/// list are summed. Without softmax, the weights of a list need not sum to 1, and the length of the
/// sum shows the strength of the interest (section 4.3 of the paper).
fn attend(
    b: &mut GraphBuilder,
    spec: &DinSpec,
    name: &str,
    query: NodeId,
    history: NodeId,
    column: usize,
) -> Result<NodeId> {
    let query = b.repeat(&format!("{name}.query"), query, column)?;
    let difference = b.sub(&format!("{name}.difference"), query, history)?;
    let product = b.mul(&format!("{name}.product"), query, history)?;
    let x = b.concat(&format!("{name}.input"), &[query, history, difference, product])?;
    let unit = MlpKeys { activation: spec.attention_activation, batch_norm: false, dropout: 0.0 };
    let x = unit.build(b, name, &spec.attention_hidden, x)?;
    let mut weight = b.linear(&format!("{name}.weight_of"), x, 1)?;
    if spec.softmax {
        weight = b.segment_softmax(&format!("{name}.softmax"), weight)?;
    }
    let weighted = b.mul(&format!("{name}.weighted"), history, weight)?;
    b.segment_sum(&format!("{name}.sum"), weighted)
}

/// The positions of a query and of its history among the columns.
struct Pair {
    query: usize,
    history: usize,
}

fn pairs(spec: &DinSpec, inputs: &ModelInputs) -> Result<Vec<Pair>> {
    if spec.attention.is_empty() {
        let reason =
            "has no pair; name at least one: [{ query = \"item\", history = \"watched\" }]";
        return Err(refuse(reason.to_owned()));
    }
    let mut pairs: Vec<Pair> = Vec::with_capacity(spec.attention.len());
    for Attention { query, history } in &spec.attention {
        let find = |name: &str| {
            let at = inputs.columns.iter().position(|column| column.name == name);
            at.ok_or_else(|| refuse(format!("unknown feature {name:?}; name a feature of ids")))
        };
        let pair = Pair { query: find(query)?, history: find(history)? };
        let (q, h) = (&inputs.columns[pair.query], &inputs.columns[pair.history]);
        if !h.sequence {
            let reason = format!("{history:?} is not a history; set kind = \"sequence\" for it");
            return Err(refuse(reason));
        }
        if q.list {
            return Err(refuse_list(q));
        }
        if q.table != h.table || q.vector != h.vector {
            let reason = format!(
                "{query:?} and {history:?} are compared, so they must share a table: set table = {:?} in both",
                inputs.tables.get(q.table).map_or("items", |table| &table.name)
            );
            return Err(refuse(reason));
        }
        if pairs.iter().any(|p| (p.query, p.history) == (pair.query, pair.history)) {
            return Err(refuse(format!(
                "{query:?} and {history:?} are paired twice; remove one pair"
            )));
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

fn refuse_list(query: &SparseInput) -> Error {
    refuse(format!("the query {:?} is a list; name a feature with one id for each row", query.name))
}

fn refuse(reason: String) -> Error {
    Error::Setting { name: "model.attention", reason }
}
