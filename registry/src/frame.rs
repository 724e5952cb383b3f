//! The frame of a version: the contents that are usually the same in all versions of a training.
//!
//! A frame is a file of the model like any other. It is written once, and manifests name it by its
//! hash. So the manifest of a version every second does not repeat the schema, the settings of the
//! tables and the statistics, and neither the graph nor the side tables are written again.

use serde::{Deserialize, Serialize};
use zillion_feature::Statistics;
use zillion_rows::TableSpec;

use crate::manifest_scan::Scan;
use crate::reference::{
    MAX_JSON_BYTES, MAX_ONNX_BYTES, ONNX, PARAMETERS, VersionFile, describe_large_file,
};

/// The contents that are usually the same in all versions of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frame {
    /// The BLAKE3 hash of the schema, in hexadecimal. All versions of a chain have the same schema.
    pub schema_hash: String,
    /// The sections of the job that define features, labels and columns.
    pub schema: toml::Value,
    /// The settings of the version's tables.
    pub tables: Vec<TableSpec>,
    /// The statistics of the first pass over the training data.
    pub statistics: Statistics,
    /// The file of the dense graph, built for inference.
    pub graph: VersionFile,
    /// The settings by which the trainer divides batches when it scores. With the same division, a
    /// server computes the same bits.
    pub settings: ScoreSettings,
    /// The files of the side tables, in the order of the schema.
    pub sides: Vec<VersionFile>,
}

impl Frame {
    /// Yields the files that the frame names.
    pub(crate) fn files(&self) -> impl Iterator<Item = &VersionFile> {
        [&self.graph].into_iter().chain(&self.sides)
    }

    /// Checks the contents on which readers rely.
    ///
    /// # Errors
    /// Returns the problem if the graph is too large, or if a table is not valid.
    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.graph.bytes > MAX_JSON_BYTES {
            return Err(describe_large_file(&self.graph));
        }
        // Readers compute the layouts of rows from the specs, and trust the numbers in them.
        self.tables
            .iter()
            .try_for_each(TableSpec::validate)
            .map_err(|error| format!("a table of the version is not valid: {error}"))
    }

    /// Parses the bytes of a frame's file, whose hash was verified.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        Scan::of(bytes)?;
        let frame: Self = serde_json::from_slice(bytes)
            .map_err(|error| format!("the frame of the version cannot be parsed: {error}"))?;
        frame.validate()?;
        Ok(frame)
    }
}

/// The settings by which scores are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreSettings {
    /// The number of lanes into which the rows of a batch are divided.
    pub lanes: usize,
    /// The number of rows in a tile.
    pub tile_rows: usize,
    /// The number type of fewer bits in which a server computes dense layers if it does not choose
    /// one itself; absent: the f32 of training. The scores of parity rows are those of f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense: Option<RoundedDense>,
    /// Whether the dense model is an ONNX file instead of parameters of the graph. The outputs of
    /// the graph are then the inputs of that model, with the same names.
    #[serde(default, skip_serializing_if = "is_false")]
    pub onnx: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl ScoreSettings {
    /// Returns the kind of the file of the dense model.
    pub(crate) fn dense_kind(self) -> &'static str {
        if self.onnx { ONNX } else { PARAMETERS }
    }

    /// Checks that the file of a dense model has the kind that the settings ask for, and that it
    /// does not take too much memory.
    ///
    /// # Errors
    /// Returns the problem of the file.
    pub(crate) fn check_dense(self, dense: &VersionFile) -> Result<(), String> {
        if (dense.kind == ONNX) != self.onnx {
            return Err(format!(
                "the dense model is the file `{}`, but the settings of the version ask for the \
                 kind {}",
                dense.name(),
                self.dense_kind()
            ));
        }
        if self.onnx && dense.bytes > MAX_ONNX_BYTES {
            return Err(format!(
                "the ONNX model `{}` has {} bytes, but a server takes at most {MAX_ONNX_BYTES}",
                dense.name(),
                dense.bytes
            ));
        }
        Ok(())
    }
}

/// The number types of dense layers that have fewer bits than those of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoundedDense {
    /// Factors of bf16 and sums of f32.
    Bf16,
    /// 8-bit integers with scales.
    Int8,
}
