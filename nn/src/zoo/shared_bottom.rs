//! The model with a shared MLP, the bottom, and a tower for each label on top of it (Caruana 1997).

use super::*;

use super::model::check_some_label;

/// The default units of the shared hidden layers.
pub(super) const DEFAULT_BOTTOM: [usize; 2] = [128, 64];
/// The default units of the hidden layers of a tower.
pub(super) const DEFAULT_TOWER: [usize; 1] = [32];

/// The keys of `shared_bottom`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharedBottomSpec {
    /// The units of the shared hidden layers. Default: 128, 64.
    #[serde(deserialize_with = "widths")]
    pub bottom: Vec<usize>,
    /// The units of the hidden layers of each label's tower. Default: 32.
    #[serde(deserialize_with = "widths")]
    pub tower: Vec<usize>,
    /// The keys of all MLPs.
    #[serde(flatten)]
    pub mlp: MlpKeys,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl Default for SharedBottomSpec {
    fn default() -> Self {
        let (bottom, tower) = (DEFAULT_BOTTOM.into(), DEFAULT_TOWER.into());
        Self { bottom, tower, mlp: MlpKeys::default(), l2: 0.0 }
    }
}

impl ZooModel for SharedBottomSpec {
    fn check_labels(&self, kind: &str, labels: usize) -> Result<()> {
        check_some_label(kind, labels)
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let x = inputs.deep(b)?;
        let bottom = self.mlp.build(b, "bottom", &self.bottom, x)?;
        let towers = inputs.labels.iter();
        towers.map(|label| self.mlp.build_tower(b, &label.name, &self.tower, bottom)).collect()
    }
}
