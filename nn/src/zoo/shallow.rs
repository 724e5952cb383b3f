//! The models without an MLP. Logistic regression has a weight for each id and each number. The
//! factorisation machine adds the dot products of all pairs of vectors (Rendle 2010).

use super::*;

/// The keys of `lr`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LrSpec(pub ShallowKeys);

/// The keys of `fm`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FmSpec(pub ShallowKeys);

/// The keys of a model without an MLP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShallowKeys {
    /// Whether the model has a global bias. Default: true.
    pub bias: bool,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl Default for ShallowKeys {
    fn default() -> Self {
        Self { bias: true, l2: 0.0 }
    }
}

impl ZooModel for LrSpec {
    fn needs(&self) -> Needs {
        Needs { vector: false, linear: true }
    }

    fn learns_classes(&self) -> bool {
        true
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let numeric = inputs.numerics(b)?;
        Ok(vec![inputs.linear_part(b, numeric, self.0.bias)?])
    }
}

impl ZooModel for FmSpec {
    fn needs(&self) -> Needs {
        Needs { vector: true, linear: true }
    }

    fn learns_classes(&self) -> bool {
        true
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let dim = inputs.common_dim("fm")?;
        let numeric = inputs.numerics(b)?;
        let wide = inputs.linear_part(b, numeric, self.0.bias)?;
        let vectors = inputs.vectors(b)?;
        let fields = b.concat("fields", &vectors)?;
        let pairs = classes::fm(b, (&vectors, fields), dim, inputs.scores())?;
        Ok(vec![b.add("logit", wide, pairs)?])
    }
}
