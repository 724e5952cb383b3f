//! The predictions of `zillion predict` and the outputs of an exported model, for tests of the
//! kinds of labels.

use serde_json::Value;

use crate::harness::{Workplace, stderr, stdout, zillion};
use crate::server::operate;

/// Returns what `zillion predict` prints with these arguments.
pub(crate) fn predicted(arguments: &[&str]) -> String {
    let mut all = vec!["predict"];
    all.extend_from_slice(arguments);
    let output = zillion(&all).output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// Returns the object of each row that `zillion predict --json` prints with these arguments.
pub(crate) fn predicted_lines(arguments: &[&str]) -> Vec<Value> {
    let mut all = arguments.to_vec();
    all.push("--json");
    predicted(&all).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The bytes of an exported model, which contain the names of its outputs.
pub(crate) struct ExportedNames(Vec<u8>);

impl ExportedNames {
    /// Exports the published model of a workplace.
    pub(crate) fn of(place: &Workplace) -> Self {
        let folder = place.text("exported");
        operate(place, &["model", "export", "--output", &folder, "--json"]);
        Self(std::fs::read(place.path("exported").join("graph.onnx")).expect("a model"))
    }

    /// Returns whether the model names an output or a column so.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.windows(name.len()).any(|bytes| bytes == name.as_bytes())
    }
}
