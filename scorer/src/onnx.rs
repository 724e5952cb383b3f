//! Dense models that are ONNX files, which ONNX Runtime computes.
//!
//! The graph of such a version has no scores. It looks up, pools and transforms the features, and
//! its outputs are the inputs of the ONNX model, with the same names: float32 `[rows, columns]`.
//! The outputs of the ONNX model are the log odds, one float for each row: `logits` for the first
//! task and `logits/<task>` for each other one.
//!
//! ONNX Runtime is a library of the system, which the build does not need. It is opened when the
//! first such version is loaded. Only a build with the feature `onnx` can do this; other builds
//! refuse such versions.

#[cfg(feature = "onnx")]
mod contents;
#[cfg(feature = "onnx")]
mod runtime;

use zillion_feature::Schema;
use zillion_nn::zoo::LOGITS;
use zillion_nn::{Graph, NodeId};

#[cfg(not(feature = "onnx"))]
use crate::error::Error;
use crate::error::Result;
use crate::late::LateCheck;

/// The name by which parity rows are marked whose scores ONNX Runtime has computed. Its libraries
/// differ in the last bits, so the scores are compared with a tolerance on every machine.
pub const COMPUTED_WITH: &str = "onnxruntime";

/// The inputs and the outputs that an ONNX model must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxInterface {
    /// The name and the number of columns of each input, in the order of the graph's outputs.
    pub inputs: Vec<(String, usize)>,
    /// The names of the outputs, in the order of the tasks.
    pub outputs: Vec<String>,
}

impl OnnxInterface {
    /// Returns the interface between a graph, whose outputs are the inputs of the model, and the
    /// tasks of a schema.
    pub fn new(graph: &Graph, schema: &Schema) -> Self {
        let input = |(name, id): &(String, NodeId)| (name.clone(), graph.shape(*id).cols);
        let output = |(at, task): (usize, String)| match at {
            0 => LOGITS.to_owned(),
            _ => format!("{LOGITS}/{task}"),
        };
        Self {
            inputs: graph.outputs.iter().map(input).collect(),
            outputs: onnx_tasks(schema).into_iter().enumerate().map(output).collect(),
        }
    }
}

/// Returns the names of the scores of an ONNX model for rows of a schema.
pub fn onnx_tasks(schema: &Schema) -> Vec<String> {
    schema.labels.iter().flat_map(|label| label.task_names()).collect()
}

/// A dense model that ONNX Runtime computes. Several threads can use it at the same time.
#[derive(Debug)]
pub struct OnnxModel {
    interface: OnnxInterface,
    /// The number of bytes of the file.
    bytes: usize,
    #[cfg(feature = "onnx")]
    sessions: runtime::Sessions,
}

impl OnnxModel {
    /// Loads the bytes of an ONNX file, and checks that it has the inputs and the outputs of
    /// `interface`.
    ///
    /// # Errors
    /// Returns an error that says what is missing: the feature `onnx` of this build, the library
    /// ONNX Runtime, or a part of the file.
    #[cfg(feature = "onnx")]
    pub fn load(bytes: &[u8], interface: OnnxInterface) -> Result<Self> {
        contents::check(bytes)?;
        let sessions = runtime::Sessions::open(bytes, &interface)?;
        Ok(Self { interface, bytes: bytes.len(), sessions })
    }

    /// Returns the error of a build that cannot compute ONNX models.
    ///
    /// # Errors
    /// Always returns an error.
    #[cfg(not(feature = "onnx"))]
    pub fn load(_: &[u8], _: OnnxInterface) -> Result<Self> {
        Err(Error::Onnx(
            "this program was built without ONNX (its feature `onnx`); build it with this feature \
             (docs/PYTHON.md), or publish a model whose operations a graph has"
                .to_owned(),
        ))
    }

    /// Returns the number of sessions that no batch uses.
    #[cfg(all(test, feature = "onnx"))]
    fn idle_sessions(&self) -> usize {
        self.sessions.idle_sessions()
    }

    /// Returns the number of scores of a row.
    pub(crate) fn score_count(&self) -> usize {
        self.interface.outputs.len()
    }

    /// Returns an estimate of the floating-point operations of a batch: those of a model that uses
    /// each float of its file once for each row.
    pub(crate) fn flops(&self, rows: usize) -> u64 {
        (rows as u64).saturating_mul(self.bytes as u64 / 2)
    }

    /// Computes the log odds of `rows` rows. `inputs` has the values of each input, and `scores`
    /// gets a list for each output.
    ///
    /// # Errors
    /// Returns [`Late`](crate::Error::Late) if `is_late` has returned `true`, and an error if ONNX
    /// Runtime cannot compute the model.
    pub(crate) fn score(
        &self,
        rows: usize,
        inputs: &[&[f32]],
        scores: &mut Vec<Vec<f32>>,
        is_late: Option<LateCheck<'_>>,
    ) -> Result<()> {
        scores.resize(self.interface.outputs.len(), Vec::new());
        scores.iter_mut().for_each(Vec::clear);
        #[cfg(feature = "onnx")]
        return self.sessions.score(&self.interface, rows, inputs, scores, is_late);
        #[cfg(not(feature = "onnx"))]
        Err(no_scores((rows, inputs.len(), is_late.is_some())))
    }
}

/// Returns the error of a model that this build cannot have loaded.
#[cfg(not(feature = "onnx"))]
fn no_scores(batch: (usize, usize, bool)) -> Error {
    Error::Onnx(format!("a batch {batch:?} cannot be computed in this build; report this defect"))
}

#[cfg(test)]
mod tests;
