//! The parts with which a feed is opened: the job, its folders, and the state where it goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::Files;
use zillion_feature::Statistics;
use zillion_reader::SideTables;
use zillion_stream::{
    FolderSettings, FollowedFolder, Framing, LogLock, LongMessages, Position, Source,
};

use super::snapshot::SnapshotLink;
use crate::error::{Error, Result};
use crate::job::{Job, OnlineConfig, StreamConfig, StreamFormat, StreamKind};

/// The parts from which a feed is opened.
#[derive(Clone, Debug)]
pub(crate) struct FeedSetup {
    pub(crate) job: Arc<Job>,
    pub(crate) statistics: Statistics,
    pub(crate) files: Files,
    /// The folder of the run.
    pub(crate) run: PathBuf,
    /// The state of the checkpoint from which the run goes on; `None` at the beginning of the log.
    pub(crate) start: Option<SnapshotLink>,
    /// Whether the feed ends where its log ends, without consuming anything new.
    pub(crate) only_replays: bool,
}

impl FeedSetup {
    /// Returns the settings of the cadence.
    pub(super) fn online(&self) -> OnlineConfig {
        self.job.online.clone().unwrap_or_default()
    }

    /// Returns the folder of everything about the streams of the run.
    pub(super) fn folder(&self) -> PathBuf {
        stream_folder(&self.run)
    }

    /// Returns the folder of the schemas of messages that the log has recorded.
    pub(super) fn schema_folder(&self) -> PathBuf {
        schema_folder(&self.run)
    }

    /// Returns empty side tables, because streams have none.
    pub(super) fn sides(&self) -> Result<SideTables> {
        Ok(SideTables::load(&self.job.data, &self.job.schema)?)
    }
}

/// Returns the folder of everything about the streams of a run.
pub fn stream_folder(run: &Path) -> PathBuf {
    run.join("stream")
}

/// Takes the lock of a run over streams. A process takes it before it changes anything in the
/// folder of the run, and keeps it until its last change.
///
/// # Errors
/// Returns an error if another process has the lock.
pub(crate) fn lock_run(run: &Path, files: &Files) -> Result<LogLock> {
    LogLock::take(files, stream_folder(run).join("log")).map_err(|error| match error {
        zillion_stream::Error::InUse(_) => Error::Refused(error.to_string()),
        error => error.into(),
    })
}

/// Returns the folder of the schemas of messages that the log of a run has recorded.
pub fn schema_folder(run: &Path) -> PathBuf {
    stream_folder(run).join("schemas")
}

/// Opens the source of a stream at a position.
pub(super) fn open_source(
    stream: &StreamConfig,
    number: u16,
    online: &OnlineConfig,
    position: &Position,
) -> Result<Box<dyn Source>> {
    match stream.kind {
        StreamKind::Folder => {
            let path = stream.path.clone().unwrap_or_default();
            let settings = FolderSettings {
                framing: match stream.format {
                    StreamFormat::Json => Framing::Lines,
                    StreamFormat::Arrow | StreamFormat::Avro | StreamFormat::Protobuf => {
                        Framing::Files
                    }
                },
                max_message_bytes: online.max_message_bytes.0 as usize,
                long_messages: LongMessages::Reject,
                scan_interval: std::time::Duration::from_millis(20),
                ..FolderSettings::new(path, number)
            };
            Ok(Box::new(FollowedFolder::open(settings, position)?))
        }
        StreamKind::Kafka => open_kafka(stream, number, online, position),
    }
}

#[cfg(feature = "kafka")]
fn open_kafka(
    stream: &StreamConfig,
    number: u16,
    online: &OnlineConfig,
    position: &Position,
) -> Result<Box<dyn Source>> {
    let table = toml::Value::Table(stream.kafka.clone().unwrap_or_default());
    let path = format!("stream.{}.kafka", stream.name);
    let given: zillion_stream::KafkaSettings = zillion_config::from_value(&table, &path)?;
    let settings = zillion_stream::KafkaSettings {
        stream: number,
        max_message_bytes: online.max_message_bytes.0 as usize,
        long_messages: LongMessages::Reject,
        ..given
    };
    Ok(Box::new(zillion_stream::KafkaSource::open(settings, position)?))
}

#[cfg(not(feature = "kafka"))]
fn open_kafka(
    stream: &StreamConfig,
    _number: u16,
    _online: &OnlineConfig,
    _position: &Position,
) -> Result<Box<dyn Source>> {
    Err(Error::Unsupported(format!(
        "stream `{}` is one of Kafka, but this program was built without Kafka; build it with the \
         cargo feature `kafka`",
        stream.name
    )))
}
