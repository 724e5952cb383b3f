//! The setting `train.fake_quantize`: quantisation-aware training for versions whose dense layers
//! are served in fewer bits. It is in `[train]`, because it changes the result.

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;
use zillion_nn::Graph;

use super::Job;
use crate::error::Result;

/// The number type whose rounding training imitates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FakeQuantize {
    /// 8-bit integers with a scale for each row of an input and each column of a weight.
    Int8,
}

impl Job {
    /// Checks that no other setting rounds the factors of products.
    pub(super) fn check_fake_quantize(&self) -> Result<()> {
        if self.train.fake_quantize.is_some() && !self.train.precision.is_f32() {
            let message = format!(
                "cannot be combined with `train.precision` = \"{}\", because products of rounded \
                 factors would be rounded again; remove one of them",
                self.train.precision.name()
            );
            return Err(ConfigError::at("train.fake_quantize", message).into());
        }
        Ok(())
    }

    /// Returns the graph of training with rounded inputs and weights, if the job asks for them.
    ///
    /// # Errors
    /// Returns an error if no layer of the model is large enough to be rounded.
    pub(crate) fn quantize_layers(&self, graph: Graph) -> Result<Graph> {
        let Some(FakeQuantize::Int8) = self.train.fake_quantize else { return Ok(graph) };
        let Some(rounded) = zillion_nn::fake_quantize(&graph)? else {
            let message = "needs a layer that servers compute in 8-bit integers, whose weight has \
                           at least 32 rows and 16 columns, and the model has none; remove it, or \
                           train larger layers";
            return Err(ConfigError::at("train.fake_quantize", message).into());
        };
        Ok(rounded)
    }
}

#[cfg(test)]
mod tests {
    use zillion_nn::Mode;

    use super::*;

    fn job(model: &str, more: &str) -> Result<Job> {
        let text = format!(
            "[data]\ntrain = ['x.csv']\n[features.user]\nkind = 'id'\n[labels.click]\n\
             [tables.'*']\ndim = 32\n[model]\n{model}\n[train]\n{more}"
        );
        Job::from_value(toml::from_str::<toml::Table>(&text).expect("TOML").into())
    }

    #[test]
    fn large_layers_are_rounded_and_others_refused() {
        let large = "kind = 'dnn'\nhidden = [40, 16, 8]";
        let count = |more: &str| {
            let job = job(large, more).unwrap();
            let graph = job.quantize_layers(job.graph(Mode::Train).unwrap()).unwrap();
            graph.nodes.iter().filter(|node| node.op.name() == "fake_quantize").count()
        };
        // Two of the four layers are large enough.
        assert_eq!((count(""), count("fake_quantize = 'int8'")), (0, 4));
        let small = job("kind = 'dnn'\nhidden = [8]", "fake_quantize = 'int8'").unwrap();
        let said = small.quantize_layers(small.graph(Mode::Train).unwrap()).unwrap_err();
        assert!(said.to_string().contains("train.fake_quantize"), "{said}");
    }

    #[test]
    fn wrong_settings_are_refused_by_name() {
        let model = "kind = 'dnn'\nhidden = [40]";
        let said = job(model, "fake_quantize = 'int4'").unwrap_err().to_string();
        assert!(said.contains("train.fake_quantize") && said.contains("int8"), "{said}");
        for precision in ["bf16", "tf32"] {
            let more = format!("fake_quantize = 'int8'\nprecision = '{precision}'");
            let said = job(model, &more).unwrap_err().to_string();
            assert!(said.contains("train.fake_quantize") && said.contains(precision), "{said}");
        }
        let job = job(model, "fake_quantize = 'int8'").unwrap();
        assert!(job.problem_on_gpu().unwrap().contains("`train.fake_quantize`"));
        assert!(job.in_force().unwrap().contains("fake_quantize = \"int8\""));
    }
}
