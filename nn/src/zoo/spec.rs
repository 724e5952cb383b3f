//! The `[model]` section of a job.
//!
//! Each kind has its own keys, which are defined in the file of the model. A key of another kind is
//! refused. If it were ignored, the result would be wrong without a warning. The defaults are
//! FuxiCTR's.

#[cfg(test)]
mod tests;

use std::result::Result;

use toml::{Table, Value};
use zillion_config::{self as config, ConfigError};

use super::*;

/// A model and its hyper-parameters: `kind = "deepfm"` and the keys of that kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ModelSpec {
    /// A logistic regression over ids and numbers.
    Lr(LrSpec),
    /// A factorisation machine over the vectors.
    Fm(FmSpec),
    /// An MLP over the vectors.
    Dnn(DnnSpec),
    /// A linear part in addition to an MLP.
    WideDeep(WideDeepSpec),
    /// A factorisation machine in addition to an MLP, over the same vectors.
    #[serde(rename = "deepfm")]
    DeepFm(DeepFmSpec),
    /// A deep & cross network with vector crosses.
    Dcn(DcnSpec),
    /// A deep & cross network with matrix crosses, full or of low rank.
    Dcnv2(Dcnv2Spec),
    /// A bottom MLP over numeric features, an interaction of the vectors, and a top MLP.
    Dlrm(DlrmSpec),
    /// An MLP over the vectors and the histories. Attention weights the items of each history and
    /// sums them.
    Din(DinSpec),
    /// A shared MLP, and a tower for each label.
    SharedBottom(SharedBottomSpec),
    /// Experts that all labels share. Each label has a tower, and a gate that mixes the experts.
    Mmoe(MmoeSpec),
    /// One tower for clicks, and one tower for conversions after a click. Both learn from all
    /// impressions.
    Esmm(EsmmSpec),
    /// One tower for the user and one for the item. The score compares their vectors.
    TwoTower(TwoTowerSpec),
    /// A graph whose nodes the job defines.
    Graph(GraphSpec),
}

impl ModelSpec {
    /// Reads a job's `[model]` section.
    ///
    /// # Errors
    /// Returns an error that names the key if a key, a value or a node is unknown. The error
    /// suggests the nearest valid name.
    pub fn from_job(job: &Value) -> Result<Self, ConfigError> {
        let empty = Value::Table(Table::new());
        Self::from_section(job.get("model").unwrap_or(&empty), "model")
    }

    /// Reads the section at `path` of a job.
    pub(super) fn from_section(section: &Value, path: &str) -> Result<Self, ConfigError> {
        let kind = section.get("kind");
        if kind.and_then(Value::as_str) == Some("graph") {
            return GraphSpec::read(section, path).map(Self::Graph);
        }
        if let (Some(kind), Some(keys)) = (kind, section.as_table()) {
            let kind = Value::Table(Table::from_iter([("kind".to_owned(), kind.clone())]));
            let defaults: Self = config::from_value(&kind, path)?;
            defaults.check_keys(keys, path)?;
        }
        config::from_value(section, path)
    }

    /// Checks that every key in `keys` belongs to this kind of model. Serde's own check does not
    /// know the keys of flattened structs, so it could not suggest the nearest key.
    fn check_keys(&self, keys: &Table, path: &str) -> Result<(), ConfigError> {
        let own = Table::try_from(self).map_err(|e| ConfigError::at(path, e.to_string()))?;
        let mut valid: Vec<&str> = own.keys().map(String::as_str).collect();
        valid.retain(|key| *key != "kind");
        valid.extend(self.model().optional_keys());
        let known = |key: &&String| *key == "kind" || valid.contains(&key.as_str());
        match keys.keys().find(|key| !known(key)) {
            None => Ok(()),
            Some(key) => Err(ConfigError::unknown_key(path, key, &valid)),
        }
    }

    /// Returns the model of this kind.
    pub(super) fn model(&self) -> &dyn ZooModel {
        match self {
            Self::Lr(model) => model,
            Self::Fm(model) => model,
            Self::Dnn(model) => model,
            Self::WideDeep(model) => model,
            Self::DeepFm(model) => model,
            Self::Dcn(model) => model,
            Self::Dcnv2(model) => model,
            Self::Dlrm(model) => model,
            Self::Din(model) => model,
            Self::SharedBottom(model) => model,
            Self::Mmoe(model) => model,
            Self::Esmm(model) => model,
            Self::TwoTower(model) => model,
            Self::Graph(model) => model,
        }
    }

    /// Returns the kind, as a job writes it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Lr(_) => "lr",
            Self::Fm(_) => "fm",
            Self::Dnn(_) => "dnn",
            Self::WideDeep(_) => "wide_deep",
            Self::DeepFm(_) => "deepfm",
            Self::Dcn(_) => "dcn",
            Self::Dcnv2(_) => "dcnv2",
            Self::Dlrm(_) => "dlrm",
            Self::Din(_) => "din",
            Self::SharedBottom(_) => "shared_bottom",
            Self::Mmoe(_) => "mmoe",
            Self::Esmm(_) => "esmm",
            Self::TwoTower(_) => "two_tower",
            Self::Graph(_) => "graph",
        }
    }

    /// Returns the segments of a row that the model reads.
    #[must_use]
    pub fn needs(&self) -> Needs {
        self.model().needs()
    }

    /// Returns the λ of the loss term `(λ/2)·|w|²` over the dense parameters.
    #[must_use]
    pub fn l2(&self) -> f64 {
        match self {
            Self::Lr(LrSpec(ShallowKeys { l2, .. }))
            | Self::Fm(FmSpec(ShallowKeys { l2, .. }))
            | Self::Dnn(DnnSpec { l2, .. })
            | Self::WideDeep(WideDeepSpec(WideDeepKeys { l2, .. }))
            | Self::DeepFm(DeepFmSpec(WideDeepKeys { l2, .. }))
            | Self::Dcn(DcnSpec { l2, .. })
            | Self::Dcnv2(Dcnv2Spec { l2, .. })
            | Self::Dlrm(DlrmSpec { l2, .. })
            | Self::Din(DinSpec { l2, .. })
            | Self::SharedBottom(SharedBottomSpec { l2, .. })
            | Self::Mmoe(MmoeSpec { l2, .. })
            | Self::Esmm(EsmmSpec(DnnSpec { l2, .. }))
            | Self::TwoTower(TwoTowerSpec { l2, .. })
            | Self::Graph(GraphSpec { l2, .. }) => *l2,
        }
    }
}
