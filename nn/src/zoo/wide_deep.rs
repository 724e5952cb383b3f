//! The models with a linear part in addition to an MLP. They are `wide_deep` (Cheng et al. 2016)
//! and `deepfm`. The latter also has the dot products of all pairs of vectors (Guo et al. 2017).

use super::*;

/// The keys of `wide_deep`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WideDeepSpec(pub WideDeepKeys);

/// The keys of `deepfm`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeepFmSpec(pub WideDeepKeys);

/// The keys of a model with a linear part in addition to an MLP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WideDeepKeys {
    /// The units of the hidden layers. Default: 64, 64, 64.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// The keys of the MLP.
    #[serde(flatten)]
    pub mlp: MlpKeys,
    /// Whether the linear part has a bias, in addition to the bias of the MLP's output. Such a bias
    /// does not let the model express more functions, but an optimizer then updates two biases.
    /// Default: false.
    pub bias: bool,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl Default for WideDeepKeys {
    fn default() -> Self {
        let (hidden, mlp) = (DEFAULT_HIDDEN.into(), MlpKeys::default());
        Self { hidden, mlp, bias: false, l2: 0.0 }
    }
}

impl ZooModel for WideDeepSpec {
    fn needs(&self) -> Needs {
        Needs { vector: true, linear: true }
    }

    fn learns_classes(&self) -> bool {
        true
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let Self(keys) = self;
        let numeric = inputs.numerics(b)?;
        let wide = inputs.linear_part(b, numeric, keys.bias)?;
        let mut parts = inputs.vectors(b)?;
        parts.extend(numeric);
        let x = b.concat("deep", &parts)?;
        let deep = keys.mlp.build_logit(b, &keys.hidden, x, inputs.scores())?;
        Ok(vec![b.add("logit", wide, deep)?])
    }
}

impl ZooModel for DeepFmSpec {
    fn needs(&self) -> Needs {
        Needs { vector: true, linear: true }
    }

    fn learns_classes(&self) -> bool {
        true
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let Self(keys) = self;
        let dim = inputs.common_dim("deepfm")?;
        let numeric = inputs.numerics(b)?;
        let wide = inputs.linear_part(b, numeric, keys.bias)?;
        let vectors = inputs.vectors(b)?;
        let fields = b.concat("fields", &vectors)?;
        let pairs = classes::fm(b, (&vectors, fields), dim, inputs.scores())?;
        let parts: Vec<NodeId> = [fields].into_iter().chain(numeric).collect();
        let x = b.concat("deep", &parts)?;
        let deep = keys.mlp.build_logit(b, &keys.hidden, x, inputs.scores())?;
        let shallow = b.add("shallow", wide, pairs)?;
        Ok(vec![b.add("logit", shallow, deep)?])
    }
}
