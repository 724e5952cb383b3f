//! The messages with JSON bodies.

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zillion_embedding::TableStatistics;
use zillion_feature::FeatureKey;
use zillion_rows::layer::{LayerCut, LayerFile, LayerManifest};
use zillion_rows::part::PartsBelow;
use zillion_rows::{ByteSize, ListedParts, PartInfo, TableParts, TableSpec};

use super::{WireError, WireResult};
use crate::client::Pace;

/// The longest piece of another program's text that an error repeats.
const SHOWN: usize = 200;

/// Appends a message to a body.
pub(crate) fn write_json<T: Serialize>(out: &mut Vec<u8>, message: &T) {
    serde_json::to_writer(out, message)
        .expect("a message is plain data with text keys, which JSON can always hold");
}

/// Reads the message in a body.
///
/// # Errors
/// Returns an error if the body is not this message.
pub(crate) fn read_json<T: DeserializeOwned>(body: &[u8]) -> WireResult<T> {
    serde_json::from_slice(body).map_err(|e| {
        let text: String = e.to_string().chars().take(SHOWN).collect();
        WireError::new(format!(
            "the body is not a message of this operation ({text}); use the same version of the \
             program on all hosts"
        ))
    })
}

/// The first message of a connection.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    /// The version of the wire that the client speaks.
    pub(crate) wire: u32,
    /// The version of the client's program.
    pub(crate) program: String,
    /// The name of the run; `None` for a client that only asks for the state of the server.
    #[serde(default)]
    pub(crate) run: Option<String>,
    /// The number of the trainer, counted from 0.
    #[serde(default)]
    pub(crate) trainer: usize,
    /// The token of the cluster; `None` if the client has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
}

impl std::fmt::Debug for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token is a secret.
        f.debug_struct("Hello").field("run", &self.run).field("trainer", &self.trainer).finish()
    }
}

/// The answer to [`Hello`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Welcome {
    /// The number that the server drew when it started.
    pub(crate) boot: u64,
    /// The generation that the server serves now or has served last; 0 if it has served none.
    pub(crate) generation: u64,
    /// Whether the generation goes on, and is not ended or abandoned.
    pub(crate) is_open: bool,
    /// The name of the run of this generation; `None` if the server has served none.
    #[serde(default)]
    pub(crate) run: Option<String>,
    /// The greatest number of a frame of the client's session that the server has accepted; `None`
    /// if the server does not know the session.
    #[serde(default)]
    pub(crate) accepted: Option<u64>,
    /// The step of the checkpoint to which an operator has set the run back; `None` if the newest
    /// checkpoint is the one to continue from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restore: Option<u64>,
    /// The trainers that have not entered the generation yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) missing: Vec<usize>,
    /// The earlier generation whose tables go on in this one; `None` if its tables began empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) continues: Option<u64>,
}

/// The settings of a generation, with which the first trainer opens it on each server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenRun {
    /// The name of the run.
    pub(crate) run: String,
    /// The BLAKE3 of the job.
    pub(crate) job: String,
    /// The number of the new generation.
    pub(crate) generation: u64,
    /// The number that the process of the first trainer drew when it started.
    pub(crate) client: u64,
    /// The number of trainers.
    pub(crate) trainers: usize,
    /// The first slot of the server, and the slot after its last one.
    pub(crate) slots: [usize; 2],
    /// The specs of the tables.
    pub(crate) tables: Vec<TableSpec>,
    /// The largest memory of all tables of all servers together.
    #[serde(default)]
    pub(crate) max_bytes: Option<ByteSize>,
    /// The numbers of the frozen tables.
    #[serde(default)]
    pub(crate) frozen: Vec<u16>,
    /// Whether checkpoints can hold only changes.
    pub(crate) follows_checkpoints: bool,
    /// The pace of the trainers; `None` if every step has a part of every trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pace: Option<Pace>,
    /// The generation whose tables go on, and the clock of the first trainer; `None` if the tables
    /// begin empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) continues: Option<Continues>,
}

/// The wish of a trainer to continue with the tables of an earlier generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Continues {
    /// The number of the earlier generation.
    pub(crate) generation: u64,
    /// The number of steps whose updates the trainer has sent.
    pub(crate) clock: u64,
}

/// The answer of a server to a trainer that enters a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entered {
    /// Whether the server has kept the tables of the earlier generation.
    pub(crate) is_kept: bool,
    /// The number of steps of the trainer whose updates the server had applied before.
    pub(crate) applied: u64,
}

/// The entry of another trainer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JoinRun {
    /// The BLAKE3 of the trainer's job, which must be that of the run.
    pub(crate) job: String,
    /// The number that the trainer's process drew when it started.
    pub(crate) client: u64,
    /// The number of trainers that the trainer expects.
    pub(crate) trainers: usize,
    /// The generation from which the trainer continues, and its clock; `None` if it begins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) continues: Option<Continues>,
}

/// The answer to a failed operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failure {
    /// The number of the error's code.
    pub(crate) code: u16,
    /// The text of the error.
    pub(crate) text: String,
    /// The generation that the server serves now.
    pub(crate) generation: u64,
}

/// A part of the vocabulary of a dense table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prefill {
    pub(crate) table: u16,
    /// The keys in ascending order.
    pub(crate) keys: Vec<u64>,
    /// Whether the server only counts the keys that it does not have.
    pub(crate) only_count: bool,
}

impl Prefill {
    pub(crate) fn keys(&self) -> Vec<FeatureKey> {
        self.keys.iter().map(|&key| FeatureKey(key)).collect()
    }
}

/// The layout of the rows of a version, and some of the rows.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AdoptRows {
    pub(crate) table: u16,
    /// The name and the number of floats of each segment in the version, in the order of its rows.
    pub(crate) segments: Vec<(String, usize)>,
    pub(crate) keys: Vec<u64>,
    /// The numbers of pushes of the rows.
    pub(crate) counts: Vec<u32>,
    /// The bits of the weights of the rows, one row after another.
    pub(crate) weights: Vec<u32>,
}

/// The numbers of rows that were copied and left out.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AdoptedRows {
    pub(crate) rows: u64,
    pub(crate) unknown: u64,
}

/// The beginning of a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BeginCheckpoint {
    /// The folder below the store of the servers.
    pub(crate) folder: String,
    /// The numbers of the mark since which changes are written; `None` for a whole checkpoint.
    #[serde(default)]
    pub(crate) since: Option<[u32; 2]>,
}

/// The number of a checkpoint that has begun.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
}

/// A checkpoint that has begun.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BegunCheckpoint {
    pub(crate) number: u64,
    /// The number of rows of all tables.
    pub(crate) rows: u64,
}

/// The news that a checkpoint is complete.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Committed {
    /// The newest request of an operator that was known when the checkpoint began.
    pub(crate) request: u64,
    /// The steps of the checkpoints that the run keeps, in ascending order.
    pub(crate) kept: Vec<u64>,
}

/// The reason for which a trainer closes its session.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leave {
    /// The number of the error's code: that of a generation that has ended, or any other one.
    pub(crate) code: u16,
    /// The event that has ended the generation, or the error that has ended the trainer.
    pub(crate) cause: String,
}

/// The entries of a checkpoint, and the folders of the checkpoints below it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RestoreTables {
    /// The folder below the store of the servers.
    pub(crate) folder: String,
    pub(crate) tables: Vec<TableParts>,
    /// The files of the checkpoints below, for each table; empty for a whole table.
    pub(crate) below: Vec<Vec<Below>>,
    /// Whether the server only verifies the files.
    #[serde(default)]
    pub(crate) only_check: bool,
}

/// The files of one table in a checkpoint below.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Below {
    pub(crate) folder: String,
    pub(crate) rows: u64,
    pub(crate) parts: Vec<PartInfo>,
    #[serde(default)]
    pub(crate) gone: Option<ListedParts>,
}

impl Below {
    pub(crate) fn into_parts(self, folder: PathBuf) -> PartsBelow {
        let Self { rows, parts, gone, .. } = self;
        PartsBelow { folder, rows, parts, gone }
    }
}

/// A layer that the server writes into its scratch folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteLayer {
    /// The epoch since whose end changes are written; `None` for all rows.
    #[serde(default)]
    pub(crate) since: Option<u32>,
}

/// The layer that the server has written; `None` if the changes are not known.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WrittenLayer {
    pub(crate) layer: Option<LayerManifest>,
}

/// The largest number of bytes of a piece of a layer's file.
pub(crate) const LAYER_PIECE: u64 = 4 << 20;

/// A piece of a file of the layer that the server has written last. The piece has at most
/// [`LAYER_PIECE`] bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadLayer {
    pub(crate) file: LayerFile,
    /// The position of the first byte of the piece.
    pub(crate) offset: u64,
}

/// The parts of a base that the server writes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteBase {
    pub(crate) target: BaseTarget,
    /// The cut of each table into parts.
    pub(crate) cuts: Vec<LayerCut>,
}

/// The place of the files of a base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BaseTarget {
    /// Whether the registry is a bucket.
    pub(crate) is_bucket: bool,
    /// The URL of the bucket, or the folder of the registry below the store of the servers.
    pub(crate) registry: String,
    /// The folder of the files in the registry.
    pub(crate) folder: String,
}

/// The state of a server, for people and for monitoring.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServerStatus {
    pub(crate) id: u32,
    pub(crate) boot: u64,
    pub(crate) program: String,
    pub(crate) generation: u64,
    pub(crate) is_open: bool,
    pub(crate) run: Option<String>,
    /// The event that has ended the generation, if it has ended.
    pub(crate) ended: Option<String>,
    pub(crate) slots: [usize; 2],
    pub(crate) step: u64,
    pub(crate) trainers: Vec<TrainerStatus>,
    pub(crate) tables: Vec<TableStatistics>,
    pub(crate) connections: u64,
    pub(crate) bytes_in_flight: u64,
    pub(crate) frames: u64,
    pub(crate) repeated_frames: u64,
    pub(crate) refused_frames: u64,
    #[serde(default)]
    pub(crate) checkpoints: Vec<u64>,
    #[serde(default)]
    pub(crate) operations: Vec<OperationStatus>,
    /// The clocks of the trainers; `None` if every step has a part of every trainer.
    #[serde(default)]
    pub(crate) pace: Option<PaceStatus>,
}

/// The state of the clocks of trainers that do not wait for each other in each step.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PaceStatus {
    /// The number of steps of each trainer whose updates are applied.
    pub(crate) applied: Vec<u64>,
    /// The number of pulls by the number of steps that their rows lacked, counted from 0.
    pub(crate) stale_pulls: Vec<u64>,
}

/// The frames of one operation, and the seconds of work on them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OperationStatus {
    pub(crate) operation: String,
    pub(crate) frames: u64,
    pub(crate) seconds: f64,
}

/// The state of a trainer on a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TrainerStatus {
    pub(crate) trainer: usize,
    pub(crate) is_connected: bool,
    pub(crate) silent_seconds: f64,
    pub(crate) frames: u64,
}
