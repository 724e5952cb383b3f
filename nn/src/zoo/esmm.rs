//! ESMM: clicks, and conversions after a click, learned over all impressions (Ma et al., SIGIR
//! 2018).
//!
//! Two towers share the vectors. The first gives the log odds `a` of a click, and the second the
//! log odds `b` of a conversion after a click. The model learns the first probability, and the
//! product of both, over all impressions.
//!
//! The product has log odds `−ln(e^−a + e^−b + e^−(a+b))`, because
//! `1 / (σ(a)·σ(b)) − 1 = (1 + e^−a)(1 + e^−b) − 1`; it is computed in that form, which is exact
//! where the product itself would round to 0 or 1.

use serde::{Deserialize, Serialize};

use super::heads::calibrate;
use super::inputs::ModelInputs;
use super::keys::widths;
use super::mlp::{DEFAULT_HIDDEN, MlpKeys};
use super::model::{ZooModel, wrong_labels};
use super::task::{Task, TaskLabel};
use crate::error::Result;
use crate::graph::builder::GraphBuilder;
use crate::graph::shape::NodeId;
use crate::optim::not_negative;

/// The keys of `esmm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EsmmSpec {
    /// The units of the hidden layers of each of the two towers. Default: 64, 64, 64.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// The keys of both towers.
    #[serde(flatten)]
    pub mlp: MlpKeys,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl Default for EsmmSpec {
    fn default() -> Self {
        let (hidden, mlp) = (DEFAULT_HIDDEN.into(), MlpKeys::default());
        Self { hidden, mlp, l2: 0.0 }
    }
}

impl ZooModel for EsmmSpec {
    fn kind(&self) -> &'static str {
        "esmm"
    }

    fn l2(&self) -> f64 {
        self.l2
    }

    fn check_labels(&self, labels: usize) -> Result<()> {
        match labels {
            2 => Ok(()),
            _ => Err(wrong_labels(format!(
                "esmm learns two labels, the click and then the conversion after it, and the job has \
                 {labels}; name two labels, or choose another model"
            ))),
        }
    }

    fn tasks(&self, labels: &[&str]) -> Vec<Task> {
        let [click, conversion, ..] = labels else {
            return labels.iter().enumerate().map(|(at, name)| Task::own(name, at)).collect();
        };
        let (first, second) = (0, 1);
        vec![
            Task::own(click, 0),
            Task { name: (*conversion).to_owned(), label: TaskLabel::Both { first, second } },
            Task {
                name: format!("{conversion}_given_{click}"),
                label: TaskLabel::Given { first, second },
            },
        ]
    }

    fn calibrates_itself(&self) -> bool {
        true
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let x = inputs.deep(b)?;
        let labels = &inputs.labels;
        let click = self.mlp.build_tower(b, &labels[0].name, &self.hidden, x)?;
        // Rows left out because they have no click change the odds of the click only, and the
        // product through the click.
        let click = calibrate(b, "click.calibrated", click, labels[0].logit_shift)?;
        let given = self.mlp.build_tower(b, &labels[1].name, &self.hidden, x)?;
        let both = b.add("both", click, given)?;
        let terms = b.concat("both.terms", &[click, given, both])?;
        let terms = b.scale("both.negative", terms, -1.0)?;
        let sum = b.log_sum_exp_columns("both.sum", terms)?;
        let product = b.scale("both.logit", sum, -1.0)?;
        let product = calibrate(b, "both.calibrated", product, labels[1].logit_shift)?;
        Ok(vec![click, product, given])
    }
}
