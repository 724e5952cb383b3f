//! The sections `[online]` and `[[stream]]`: the endless data of a resident run. The section
//! `[join]` has its own file.
//!
//! `[online]` decides when batches end and when versions and checkpoints are made. These decisions
//! are in the log of the run, so the section may change between two starts of the run, and a
//! checkpoint does not store it. `[[stream]]` and `[join]` decide what the rows are.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;
use zillion_nn::zoo::{Task, TaskLabel};
use zillion_reader::{AvroSchemas, MessageFormat, ProtobufSchemas};
use zillion_rows::ByteSize;
use zillion_stream::RegistrySettings;
use zillion_stream::watermark::TimeRules;

use super::Job;
use crate::error::Result;

/// The `[online]` section: the cadence of a resident run, and the rules of event times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OnlineConfig {
    /// The longest time that a row waits for its batch to fill, in seconds.
    pub linger_seconds: f64,
    /// The time between two versions in seconds.
    pub publish_seconds: f64,
    /// The number of rows after which a version is published, even if less time has passed; absent:
    /// only time counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish_rows: Option<NonZeroU64>,
    /// The time between two checkpoints in seconds.
    pub checkpoint_seconds: f64,
    /// The time without a message after which the watermark does not wait for a partition, in
    /// seconds.
    pub idle_seconds: f64,
    /// The time by which the events of a partition may be out of order, in seconds.
    pub disorder_seconds: f64,
    /// The time by which an event may be ahead of the latest accepted event, in seconds.
    pub max_ahead_seconds: f64,
    /// The number of refused events in a row, close to each other, after which a jump of a
    /// partition to a later time is accepted.
    pub accept_jump_after: NonZeroU32,
    /// The event time after which the stable version, with which the model is compared, is chosen
    /// anew, in seconds.
    pub stable_seconds: f64,
    /// The largest number of rejected messages among 10,000 messages.
    pub max_rejected: u64,
    /// The largest size of a message. Longer messages are rejected.
    pub max_message_bytes: ByteSize,
}

impl Default for OnlineConfig {
    fn default() -> Self {
        Self {
            linger_seconds: 0.2,
            publish_seconds: 1.0,
            publish_rows: None,
            checkpoint_seconds: 30.0,
            idle_seconds: 10.0,
            disorder_seconds: 5.0,
            max_ahead_seconds: 3600.0,
            accept_jump_after: NonZeroU32::new(1000).expect("a literal above zero"),
            stable_seconds: 60.0,
            max_rejected: 100,
            max_message_bytes: ByteSize(16 << 20),
        }
    }
}

/// One `[[stream]]`: the place of its messages, their format, and their role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// The name of the stream in messages and metrics.
    pub name: String,
    /// The kind of the stream.
    #[serde(default)]
    pub kind: StreamKind,
    /// The followed folder, whose sub-folders are the partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The brokers and topics of a stream of Kafka, with its other settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka: Option<toml::Table>,
    /// The schemas of messages in Avro.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avro: Option<AvroConfig>,
    /// The types of messages in Protobuf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protobuf: Option<ProtobufConfig>,
    /// The registry of the schemas of messages in Avro or Protobuf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<RegistrySettings>,
    /// The format of the messages.
    #[serde(default)]
    pub format: StreamFormat,
    /// The role of the messages.
    #[serde(default)]
    pub role: StreamRole,
    /// The label that feedback sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// The kinds of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamKind {
    /// A folder whose sub-folders receive new files.
    #[default]
    Folder,
    /// One or more topics of Kafka.
    Kafka,
}

/// The formats of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamFormat {
    /// One JSON object for each message. In a folder, each line of a file is a message.
    #[default]
    Json,
    /// An Arrow IPC stream or file for each message. In a folder, each file is a message.
    Arrow,
    /// One record in Avro for each message, behind the key of its schema. In a folder, each file is
    /// a message.
    Avro,
    /// One message of Protobuf for each message. In a folder, each file is a message.
    Protobuf,
}

/// The schemas of messages in Avro. A message begins with the id of its schema (Confluent) or with
/// its fingerprint (single object).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AvroConfig {
    /// The files of the schemas by their ids, for messages with ids.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ids: BTreeMap<String, PathBuf>,
    /// The files of the schemas, for messages with fingerprints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PathBuf>,
}

/// The types of messages in Protobuf. A message has nothing before it, or it begins with the id of
/// its schema (Confluent).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProtobufConfig {
    /// The file with the type of the messages: a text (`.proto`), or a `FileDescriptorSet`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The full name of the type of the messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The files of the schemas by their ids, for messages with ids.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ids: BTreeMap<String, PathBuf>,
    /// The folders of imports; empty: the folder of the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub includes: Vec<PathBuf>,
}

impl StreamFormat {
    /// Returns whether a message holds one row and has no column names. Such messages need schemas,
    /// and the reader of files cannot read them.
    pub(crate) fn needs_schemas(self) -> bool {
        matches!(self, Self::Avro | Self::Protobuf)
    }
}

impl StreamConfig {
    /// Returns the format as the decoder names it. Reads the files of schemas.
    ///
    /// # Errors
    /// Returns an error if a schema cannot be read or is not supported.
    pub(crate) fn decoder_format(&self) -> Result<MessageFormat> {
        Ok(match self.format {
            StreamFormat::Json => MessageFormat::Json,
            StreamFormat::Arrow => MessageFormat::Arrow,
            StreamFormat::Avro if self.registry.is_some() => {
                MessageFormat::Avro(AvroSchemas::registered())
            }
            StreamFormat::Avro => MessageFormat::Avro(self.load_avro_schemas()?),
            StreamFormat::Protobuf if self.registry.is_some() => {
                MessageFormat::Protobuf(ProtobufSchemas::registered())
            }
            StreamFormat::Protobuf => MessageFormat::Protobuf(self.load_protobuf_schemas()?),
        })
    }

    fn load_protobuf_schemas(&self) -> Result<ProtobufSchemas> {
        let path = format!("stream.{}.protobuf", self.name);
        let protobuf = self.protobuf.clone().unwrap_or_default();
        let ids = parse_ids(&protobuf.ids, &path)?;
        match (&protobuf.file, &protobuf.message, ids.is_empty()) {
            (Some(file), Some(message), true) => {
                Ok(ProtobufSchemas::load(file, &protobuf.includes, message)?)
            }
            (None, None, false) => Ok(ProtobufSchemas::load_confluent(ids, &protobuf.includes)?),
            _ => {
                let message = "needs either `file` and `message` (messages with nothing before \
                               them) or `ids` (messages with the ids of schemas); set one of them";
                Err(ConfigError::at(&path, message).into())
            }
        }
    }

    fn load_avro_schemas(&self) -> Result<AvroSchemas> {
        let path = format!("stream.{}.avro", self.name);
        let avro = self.avro.clone().unwrap_or_default();
        let ids = parse_ids(&avro.ids, &path)?;
        match (ids.is_empty(), avro.files.is_empty()) {
            (false, true) => Ok(AvroSchemas::load_confluent(ids)?),
            (true, false) => Ok(AvroSchemas::load_single_object(&avro.files)?),
            _ => {
                let message = "needs either `ids` (messages with the ids of schemas) or `files` \
                               (messages with fingerprints); set one of the two";
                Err(ConfigError::at(&path, message).into())
            }
        }
    }

    /// Checks that the settings of the kind of the stream are there, and no others.
    fn check_kind(&self) -> Result<(), ConfigError> {
        let path = |key: &str| format!("stream.{}.{key}", self.name);
        match (self.kind, &self.path, &self.kafka) {
            (StreamKind::Folder, None, _) => {
                Err(ConfigError::missing_key(&format!("stream.{}", self.name), "path"))
            }
            (StreamKind::Kafka, _, None) => {
                let message = "a stream of Kafka needs its brokers and topics; add them";
                Err(ConfigError::at(&path("kafka"), message))
            }
            (StreamKind::Folder, _, Some(_)) => {
                let message = "a followed folder has no settings of Kafka; remove them, or set \
                               `kind = \"kafka\"`";
                Err(ConfigError::at(&path("kafka"), message))
            }
            (StreamKind::Kafka, Some(_), _) => {
                let message = "a stream of Kafka has no folder; remove it";
                Err(ConfigError::at(&path("path"), message))
            }
            _ => self.check_schemas(),
        }
    }

    /// Checks that the schemas of the format are there, and no others.
    fn check_schemas(&self) -> Result<(), ConfigError> {
        let refuse = |key: &str, message: &str| {
            Err(ConfigError::at(&format!("stream.{}.{key}", self.name), message))
        };
        let has_registry = self.registry.is_some();
        if has_registry && !self.format.needs_schemas() {
            let message = "a registry has the schemas of Avro and Protobuf; remove it, or set \
                           `format`";
            return refuse("registry", message);
        }
        for (key, is_set, format) in [
            ("avro", self.avro.is_some(), StreamFormat::Avro),
            ("protobuf", self.protobuf.is_some(), StreamFormat::Protobuf),
        ] {
            let needs = self.format == format && !has_registry;
            if is_set && !needs {
                let message = format!(
                    "these schemas belong to `format = \"{key}\"` without a registry; remove them, \
                     or change `format` or `registry`"
                );
                return refuse(key, &message);
            }
            if needs && !is_set {
                let message = format!(
                    "messages in this format need schemas; add them, or the address of their \
                     registry (`stream.{}.registry`)",
                    self.name
                );
                return refuse(key, &message);
            }
        }
        match self.registry.as_ref().map(RegistrySettings::check) {
            Some(Err(error)) => refuse("registry", &error.to_string()),
            _ => Ok(()),
        }
    }
}

/// Returns the files of schemas with their ids as numbers.
fn parse_ids<'a>(
    files: &'a BTreeMap<String, PathBuf>,
    path: &str,
) -> Result<Vec<(u32, &'a PathBuf)>, ConfigError> {
    let parse = |(id, file): (&'a String, &'a PathBuf)| {
        let refused =
            |_| ConfigError::at(&format!("{path}.ids"), format!("`{id}` is no id; write a number"));
        Ok((id.parse().map_err(refused)?, file))
    };
    files.iter().map(parse).collect()
}

/// The roles of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamRole {
    /// Complete rows with their labels.
    #[default]
    Rows,
    /// Rows without labels, which wait for feedback.
    Impressions,
    /// Events that set a label of an impression.
    Feedback,
}

impl OnlineConfig {
    fn check(&self) -> Result<(), ConfigError> {
        for (key, seconds, least) in [
            ("linger_seconds", self.linger_seconds, 0.001),
            ("publish_seconds", self.publish_seconds, 0.01),
            ("checkpoint_seconds", self.checkpoint_seconds, 0.1),
            ("idle_seconds", self.idle_seconds, 0.1),
            ("disorder_seconds", self.disorder_seconds, 0.0),
            ("max_ahead_seconds", self.max_ahead_seconds, 1.0),
            ("stable_seconds", self.stable_seconds, 1.0),
        ] {
            if !(least..=1e9).contains(&seconds) {
                return Err(ConfigError::at(
                    &format!("online.{key}"),
                    format!("must be a number of seconds from {least} to 10^9, found {seconds}"),
                ));
            }
        }
        if !(1..=1 << 30).contains(&self.max_message_bytes.0) {
            let message = "must be from 1 byte to 1 GiB";
            return Err(ConfigError::at("online.max_message_bytes", message));
        }
        Ok(())
    }

    /// Returns the rules of event times.
    pub(crate) fn time_rules(&self) -> TimeRules {
        TimeRules {
            disorder: milliseconds(self.disorder_seconds),
            max_ahead: milliseconds(self.max_ahead_seconds),
            accept_jump_after: self.accept_jump_after,
            start: None,
        }
    }
}

/// Returns the error of a section whose settings another crate checks.
fn refuse_section(section: &str, error: &dyn std::error::Error) -> ConfigError {
    ConfigError::at(section, error.to_string())
}

/// Converts seconds to milliseconds.
pub(super) fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

impl Job {
    /// Returns whether the newest messages of the streams can be the parity rows of versions. For
    /// messages in Avro and Protobuf, the parity rows come from the files of the job.
    pub(crate) fn has_parity_in_streams(&self) -> bool {
        let has_rows = |stream: &&StreamConfig| stream.role != StreamRole::Feedback;
        let mut rows = self.streams.iter().filter(has_rows);
        !self.streams.is_empty() && rows.all(|stream| !stream.format.needs_schemas())
    }

    /// Checks the sections of endless data against each other and against the other sections. The
    /// places of streams are checked if the job has them.
    pub(super) fn check_online(&self, has_places: bool) -> Result<()> {
        if self.streams.is_empty() {
            let stray = [
                ("online", self.online.is_some()),
                ("join", self.join.is_some()),
                ("validation", self.validation.is_some()),
                ("gate", self.gate.is_some()),
            ];
            if let Some((section, _)) = stray.into_iter().find(|(_, is_there)| *is_there) {
                let message = "has no effect without a stream; add a section `[[stream]]`";
                return Err(ConfigError::at(section, message).into());
            }
            if self.publish.as_ref().is_some_and(|publish| publish.take_over) {
                let message = "has no effect without a stream: a run over files always moves the \
                               pointer; remove it";
                return Err(ConfigError::at("publish.take_over", message).into());
            }
            return Ok(());
        }
        let online = self.online.clone().unwrap_or_default();
        online.check()?;
        self.check_streams(has_places)?;
        if let Some(validation) = &self.validation {
            validation.check().map_err(|error| refuse_section("validation", &error))?;
        }
        if let Some(gate) = &self.gate {
            gate.check().map_err(|error| refuse_section("gate", &error))?;
            if self.publish.is_none() {
                let message = "judges versions before they are published; add `[publish]`";
                return Err(ConfigError::at("gate", message).into());
            }
        }
        if let Some(join) = &self.join {
            join.check(&online)?;
        }
        let columns = "columns.event_time";
        if self.schema.event_time.is_none() || self.schema.event_time_unit.is_none() {
            let message = "a stream needs the times of its events; set `columns.event_time` and \
                           `columns.event_time_unit`";
            return Err(ConfigError::at(columns, message).into());
        }
        if let Some(side) = self.schema.sides.first() {
            let message = "a side table is read once, so the attributes of new items would never \
                           reach a prediction; put the attributes into the messages of the stream";
            return Err(ConfigError::at(&format!("side.{}", side.name), message).into());
        }
        if self.ps.as_ref().is_some_and(|ps| ps.bucket().is_some()) {
            let message = "a run over streams keeps the state of its streams in a folder, and cannot \
                           keep its checkpoints in a bucket yet; name a folder";
            return Err(ConfigError::at("ps.store", message).into());
        }
        let is_judged = self.gate.is_some() || self.validation.is_some();
        let has_own = |task: &Task| matches!(task.label, TaskLabel::Own { .. });
        if is_judged && !self.tasks().first().is_some_and(has_own) {
            let section = if self.gate.is_some() { "gate" } else { "validation" };
            let message = "judges the first task by a label of its own, which this model does not \
                           have; remove the section";
            return Err(ConfigError::at(section, message).into());
        }
        if self.schema.labels.is_empty() {
            let message = "a stream is learned from by its labels; add a section `[labels.NAME]`";
            return Err(ConfigError::at("labels", message).into());
        }
        self.check_keys_of_files(has_places)
    }

    fn check_streams(&self, has_places: bool) -> Result<()> {
        let is_joined = self.join.is_some();
        for (index, stream) in self.streams.iter().enumerate() {
            let path = |key: &str| format!("stream.{}.{key}", stream.name);
            if self.streams[..index].iter().any(|other| other.name == stream.name) {
                let message = "two streams have this name; give each stream its own name";
                return Err(ConfigError::at(&path("name"), message).into());
            }
            if has_places {
                stream.check_kind()?;
            }
            let role_problem = match (stream.role, is_joined) {
                (StreamRole::Rows, true) => Some(
                    "a job with `[join]` has streams of impressions and feedback; choose one of \
                     these roles, or remove `[join]`",
                ),
                (StreamRole::Impressions | StreamRole::Feedback, false) => {
                    Some("impressions and feedback need a section `[join]`; add it")
                }
                _ => None,
            };
            if let Some(message) = role_problem {
                return Err(ConfigError::at(&path("role"), message).into());
            }
            self.check_label(stream, &path("label"))?;
        }
        for (role, what) in
            [(StreamRole::Impressions, "impressions"), (StreamRole::Feedback, "feedback")]
        {
            if is_joined && !self.streams.iter().any(|stream| stream.role == role) {
                let message = format!("a join needs a stream with `role = \"{what}\"`; add one");
                return Err(ConfigError::at("join", message).into());
            }
        }
        Ok(())
    }

    fn check_label(&self, stream: &StreamConfig, path: &str) -> Result<()> {
        let labels: Vec<&str> = self.schema.labels.iter().map(|l| l.name.as_str()).collect();
        match (stream.role, &stream.label) {
            (StreamRole::Feedback, None) => {
                let message = "feedback sets a label; name the label";
                Err(ConfigError::at(path, message).into())
            }
            (StreamRole::Feedback, Some(label)) if !labels.contains(&label.as_str()) => {
                Err(ConfigError::unknown_value(path, label, &labels).into())
            }
            (StreamRole::Rows | StreamRole::Impressions, Some(_)) => {
                let message = "only feedback names a label; remove it";
                Err(ConfigError::at(path, message).into())
            }
            _ => Ok(()),
        }
    }
}
