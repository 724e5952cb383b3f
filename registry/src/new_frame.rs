//! The frames of a publisher, with the bytes of their files.

use std::sync::Arc;

use bytes::Bytes;
use zillion_feature::{Schema, Statistics};
use zillion_rows::TableSpec;

use crate::error::{Error, Result};
use crate::frame::{Frame, ScoreSettings};
use crate::reference::{MAX_MANIFEST_BYTES, VersionFile};

/// The contents of the frame of versions to publish.
#[derive(Clone, Debug)]
pub struct FrameDraft {
    /// The schema of the rows.
    pub schema: Schema,
    /// The settings of the versions' tables.
    pub tables: Vec<TableSpec>,
    /// The statistics of the first pass over the training data.
    pub statistics: Statistics,
    /// The dense graph, as `Graph::to_json` of `zillion-nn` writes it.
    pub graph: Vec<u8>,
    /// The settings that divide a batch when the trainer computes scores.
    pub settings: ScoreSettings,
    /// The side tables in the schema's order, as [`write_side`](crate::write_side) writes them.
    pub sides: Vec<Vec<u8>>,
}

/// A frame with the bytes of its files, which a publisher makes once for all its versions.
#[derive(Clone, Debug)]
pub struct NewFrame {
    pub(crate) frame: Arc<Frame>,
    pub(crate) file: VersionFile,
    /// The names of the files and their bytes.
    pub(crate) files: Vec<(String, Bytes)>,
}

impl NewFrame {
    /// Makes the files of a frame.
    ///
    /// # Errors
    /// Returns an error if the frame has more bytes than readers take.
    pub fn new(draft: FrameDraft) -> Result<Self> {
        let FrameDraft { schema, tables, statistics, graph, settings, sides } = draft;
        let schema = toml::Value::Table(schema.to_job().into_iter().collect());
        let mut files = Vec::new();
        let mut add = |kind: &str, bytes: Vec<u8>| {
            let file = VersionFile::of(kind, &bytes);
            files.push((file.name(), Bytes::from(bytes)));
            file
        };
        let graph = add("json", graph);
        let sides = sides.into_iter().map(|side| add("arrow", side)).collect();
        let schema_hash = hash_schema(&schema);
        let frame = Frame { schema_hash, schema, tables, statistics, graph, settings, sides };
        let bytes = serde_json::to_vec(&frame)
            .expect("a frame is plain data with text keys, which JSON can always hold");
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(Error::Refused(format!(
                "the frame of the version would have {} bytes, but readers take at most \
                 {MAX_MANIFEST_BYTES}; shorten the texts of the job, or use fewer tables",
                bytes.len()
            )));
        }
        let file = add("json", bytes);
        Ok(Self { frame: Arc::new(frame), file, files })
    }

    /// Returns the hash of the schema, which is the same in all versions of a chain.
    pub fn schema_hash(&self) -> &str {
        &self.frame.schema_hash
    }
}

fn hash_schema(schema: &toml::Value) -> String {
    let text = serde_json::to_vec(schema)
        .expect("a job's section is plain data with text keys, which JSON can always hold");
    blake3::hash(&text).to_hex().to_string()
}
