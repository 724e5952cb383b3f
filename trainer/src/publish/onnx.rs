//! The publication of a dense model that is an ONNX file.
//!
//! The graph of such a version has an output for each feature, which is the input of the ONNX model
//! with the same name: `features.<name>`. For a feature of ids, it is the pooled row; for a number
//! or a vector, the transformed values.

use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::Schema;
use zillion_nn::{ColumnInput, Graph, GraphBuilder, GraphInputs, Mode, Settings};
use zillion_scorer::{OnnxInterface, OnnxModel, Scorer, onnx_tasks, task_names};

use crate::error::{Error, Result};
use crate::graph_inputs::model_inputs;
use crate::job::Job;

/// The beginning of the names of the inputs of an ONNX model.
const FEATURES: &str = "features.";

/// A graph with its scorer and with the names of its scores.
pub(super) struct Scored {
    pub(super) graph: Graph,
    pub(super) scorer: Scorer,
    pub(super) tasks: Vec<String>,
}

impl Scored {
    /// Builds the graph of a job for inference, or the one before an ONNX model.
    pub(super) fn of(
        job: &Job,
        has_onnx: bool,
        settings: Settings,
        workers: &Arc<Workers>,
    ) -> Result<Self> {
        let workers = workers.clone();
        if !has_onnx {
            let graph = job.graph(Mode::Infer)?;
            let scorer = Scorer::new(&graph, settings, workers)?;
            let tasks = task_names(&graph, &job.schema);
            return Ok(Self { graph, scorer, tasks });
        }
        let graph = build_lookups(job)?;
        let names: Vec<&str> = graph.outputs.iter().map(|(name, _)| name.as_str()).collect();
        let scorer = Scorer::with_outputs(&graph, &names, settings, workers)?;
        Ok(Self { scorer, tasks: onnx_tasks(&job.schema), graph })
    }
}

/// Loads an ONNX model that continues the graph of a job.
///
/// # Errors
/// Returns an error if this build or this machine cannot compute ONNX models, or if the file does
/// not have the inputs and the outputs that the job asks for.
pub(super) fn load_onnx(job_graph: &Graph, schema: &Schema, bytes: &[u8]) -> Result<OnnxModel> {
    Ok(OnnxModel::load(bytes, OnnxInterface::new(job_graph, schema))?)
}

/// Builds the graph that looks up and pools each feature of a job.
fn build_lookups(job: &Job) -> Result<Graph> {
    let inputs = model_inputs(&job.schema, &job.tables, |label| job.loss_of(label));
    let column =
        |of: &zillion_nn::zoo::SparseInput| ColumnInput { name: of.name.clone(), table: of.table };
    let mut b = GraphBuilder::new(
        GraphInputs {
            tables: inputs.tables.clone(),
            columns: inputs.columns.iter().map(column).collect(),
            numeric: inputs.numeric.clone(),
            labels: Vec::new(),
        },
        Mode::Infer,
    );
    for (at, of) in inputs.columns.iter().enumerate() {
        let name = format!("{FEATURES}{}", of.name);
        let Some(vector) = of.vector else {
            return Err(Error::Unsupported(format!(
                "the feature `{}` has no vector in its table, which an ONNX model needs; give the \
                 table a `dim`",
                of.name
            )));
        };
        let pooled = b.gather(&name, at, vector.offset, vector.dim, of.pooling)?;
        b.output(&name, pooled)?;
    }
    let mut first = 0;
    for feature in job.schema.numeric() {
        let columns: Vec<usize> = (first..first + feature.numeric_width()).collect();
        first += columns.len();
        let name = format!("{FEATURES}{}", feature.name);
        let values = b.numeric(&name, &columns)?;
        b.output(&name, values)?;
    }
    Ok(b.finish())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    #[test]
    fn each_feature_is_an_input_of_the_onnx_model() {
        let text = "[data]\nroot = '/nowhere'\ntrain = ['rows.csv']\n\
                    [features.user]\nkind = 'id'\n[features.tags]\nkind = 'ids'\n\
                    [features.price]\nkind = 'numeric'\n\
                    [features.spot]\nkind = 'vector'\nsize = 3\n\
                    [labels.click]\n[labels.buy]\n[tables.'*']\ndim = 4\n\
                    [model]\nkind = 'esmm'\nhidden = [2]\n";
        let value: toml::Table = toml::from_str(text).unwrap();
        let job = Job::from_value(value.into()).unwrap_or_else(|error| panic!("{error}"));
        let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
        let scored = Scored::of(&job, true, Settings::default(), &workers).unwrap();
        let interface = OnnxInterface::new(&scored.graph, &job.schema);
        let expect = [("user", 4), ("tags", 4), ("price", 1), ("spot", 3)];
        let expect = expect.map(|(name, columns)| (format!("features.{name}"), columns));
        assert_eq!(interface.inputs, expect);
        assert_eq!(interface.outputs, ["logits", "logits/buy"]);
        assert_eq!(scored.tasks, ["click", "buy"]);
        assert!(scored.graph.params.is_empty());
        let said = load_onnx(&scored.graph, &job.schema, b"").unwrap_err().to_string();
        assert!(said.contains("ONNX") || said.contains("`onnx`"), "{said}");
    }
}
