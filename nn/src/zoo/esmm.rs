//! ESMM (Ma et al., SIGIR 2018): a model of clicks, and of conversions after a click. It learns
//! from all impressions.
//!
//! Both towers read the same vectors. The first tower computes the log odds `a` of a click, and the
//! second tower computes the log odds `b` of a conversion after a click. Two probabilities are
//! learned from all impressions: the probability of a click, and the product of both probabilities.
//!
//! The product has the log odds `−ln(e^−a + e^−b + e^−(a+b))`, because `1 / (σ(a)·σ(b)) − 1 = (1 +
//! e^−a)(1 + e^−b) − 1`. The model computes this form. It is exact even if the product itself would
//! be rounded to 0 or 1.

use super::*;

use super::heads::calibrate;
use super::model::wrong_labels;

/// The keys of `esmm`. They are the keys of `dnn`, and apply to both towers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EsmmSpec(pub DnnSpec);

impl ZooModel for EsmmSpec {
    fn check_labels(&self, _kind: &str, labels: usize) -> Result<()> {
        match labels {
            2 => Ok(()),
            _ => Err(wrong_labels(format!(
                "esmm learns two labels, the click and then the conversion after it, but the \
                 number of labels of the job is {labels}; name two labels, or choose another model"
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
        let Self(DnnSpec { hidden, mlp, .. }) = self;
        let x = inputs.deep(b)?;
        let labels = &inputs.labels;
        let click = mlp.build_tower(b, &labels[0].name, hidden, x)?;
        // If training left out rows without a click, this changes only the odds of the click. The
        // product changes only through the click.
        let click = calibrate(b, "click.calibrated", click, labels[0].logit_shift)?;
        let given = mlp.build_tower(b, &labels[1].name, hidden, x)?;
        let both = b.add("both", click, given)?;
        let terms = b.concat("both.terms", &[click, given, both])?;
        let terms = b.scale("both.negative", terms, -1.0)?;
        let sum = b.log_sum_exp_columns("both.sum", terms)?;
        let product = b.scale("both.logit", sum, -1.0)?;
        let product = calibrate(b, "both.calibrated", product, labels[1].logit_shift)?;
        Ok(vec![click, product, given])
    }
}
