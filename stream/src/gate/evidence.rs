//! The evidence on which a gate judges a version.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::GateError;
use crate::validation::ClosedWindow;

/// The evidence about a version.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The newest closed windows, in the order of time, usually of one length. The live model of
    /// their comparisons is the model that became the candidate, the stable version is the promoted
    /// one. The bands are judged on the last window.
    pub windows: &'a [ClosedWindow],
    /// The scores of both versions on the anchor rows, in the order of their places. `None` is an
    /// error if there are enough anchor rows.
    pub anchor: Option<AnchorScores<'a>>,
    /// The figures of the data and of the update since the last version.
    pub inputs: &'a Inputs,
}

/// The scores of versions on the anchor rows, in log-odds.
#[derive(Clone, Copy, Debug)]
pub struct AnchorScores<'a> {
    /// The scores of the version that is judged.
    pub candidate: &'a [f32],
    /// The scores of the promoted version.
    pub promoted: &'a [f32],
    /// The scores of the baseline: a version that was promoted longer ago. It is absent if the run
    /// is too young, or has no baseline.
    pub baseline: Option<&'a [f32]>,
}

/// The figures of the data and of the update. A figure that is absent is not judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Inputs {
    /// The share of rows without a value, for each column.
    pub missing: BTreeMap<String, f64>,
    /// The share of looked-up keys that had no row.
    pub new_keys: Option<f64>,
    /// The norm of the change of the parameters since the last version.
    pub update_norm: Option<f64>,
    /// The number of parameters and gradients that are not finite.
    pub not_finite: u64,
}

impl Inputs {
    /// Checks that shares lie between 0 and 1. A norm may be infinite or not a number, and fails
    /// the check of finite values then.
    pub(super) fn check(&self) -> Result<(), GateError> {
        let missing = self.missing.iter().map(|(name, share)| (format!("missing.{name}"), *share));
        let new_keys = self.new_keys.map(|share| ("new_keys".to_owned(), share));
        for (name, share) in missing.chain(new_keys) {
            if !(0.0..=1.0).contains(&share) {
                let remedy = "a share from 0 to 1";
                return Err(GateError::Input { name, value: share.to_string(), remedy });
            }
        }
        match self.update_norm {
            Some(norm) if norm < 0.0 => Err(GateError::Input {
                name: "update_norm".to_owned(),
                value: norm.to_string(),
                remedy: "a norm of at least 0",
            }),
            _ => Ok(()),
        }
    }
}
