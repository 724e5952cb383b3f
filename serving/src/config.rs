//! The settings of a server: the models that it serves, and its limits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zillion_access::AuditLog;
use zillion_scorer::{DenseType, ScoringDevice};

use crate::request_log::RequestLogSettings;

/// The version of a model that a server follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The version that this pointer points to.
    Pointer(String),
    /// The newest version of the model.
    Latest,
}

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The models by name, each with the version that answers by default.
    pub models: Vec<(String, Follow)>,
    /// The folder for files that are fetched and merged.
    pub cache: PathBuf,
    /// The number of threads that score.
    pub threads: usize,
    /// The interval between two reads of the registry.
    pub poll: Duration,
    /// The number of former current versions that stay loaded. A rollback to one of them swaps a
    /// pointer.
    pub retain: usize,
    /// The number of former current versions whose files stay in the cache. A rollback to one of
    /// them opens its files.
    pub retain_cached: usize,
    /// The largest number of bytes of a model's cache. Files of loaded versions are kept in any
    /// case. Without a value, [`ServeConfig::retain_cached`] is the only limit.
    pub cache_bytes: Option<u64>,
    /// Whether the rows of versions are copied into memory instead of being mapped. A copy survives
    /// a disk that fails and a file that is truncated, and no other process shares it.
    pub load_into_memory: bool,
    /// Whether lookups read records in memory on huge pages instead of the mapped files. They take
    /// about the memory of the files, and no other process shares them.
    pub row_records: bool,
    /// The number type in which dense layers are computed. Without one, each version chooses it.
    pub dense: Option<DenseType>,
    /// The device that computes the scores of all models; `None` for processors.
    pub device: Option<Arc<ScoringDevice>>,
    /// The age of the registry's last answer above which the server is not ready. Without a value,
    /// the server answers from its versions for as long as it runs.
    pub max_stale: Option<Duration>,
    /// The time that the registry has to answer before a starting server serves the versions of its
    /// cache.
    pub registry_wait: Duration,
    /// The longest time that the server leaves a new version, of the followed pointer or of another
    /// one, to other servers, so that one of them proves it first. Each server and version have a
    /// wait of their own below this time. After its wait the server loads the version in any case.
    /// A server without a version does not wait. The default is 0: all servers load a new version
    /// at once.
    pub stagger: Duration,
    /// The name of the server in the leases of the registry.
    pub server: String,
    /// Whether clients may load and unload models.
    pub model_control: bool,
    /// The traffic of models whose requests are split, by the name of the model.
    pub traffic: BTreeMap<String, TrafficSettings>,
    /// The log of requests for training.
    pub request_log: RequestLogSettings,
    /// The audit log of control actions and refused callers, if there is one.
    pub audit: Option<Arc<AuditLog>>,
    /// The limits of requests.
    pub limits: Limits,
}

/// The settings of the traffic of one model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrafficSettings {
    /// The pointer to the version that answers a share of the requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<Share>,
    /// The pointer to the version that scores a share of the requests beside the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Share>,
    /// The name of the header that holds the key of a request. Absent: `x-request-key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_header: Option<String>,
}

/// A share of the requests of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The name of the pointer.
    pub label: String,
    /// The share of the requests, from 0 to 1.
    pub share: f64,
}

impl TrafficSettings {
    /// Checks the settings of a model.
    ///
    /// # Errors
    /// Returns the problem if a share is not between 0 and 1, or the header has no valid name.
    pub fn check(&self) -> Result<(), String> {
        for (name, share) in [("canary", &self.canary), ("shadow", &self.shadow)] {
            if let Some(share) = share.as_ref().filter(|share| !(0.0..=1.0).contains(&share.share))
            {
                return Err(format!(
                    "the share of `{name}` is {}; choose a number from 0 to 1",
                    share.share
                ));
            }
        }
        let header = self.key_header.as_deref().unwrap_or(KEY_HEADER);
        match axum::http::HeaderName::try_from(header) {
            Ok(_) => Ok(()),
            Err(_) => Err(format!(
                "`{header}` is not a valid name of an HTTP header; choose another name"
            )),
        }
    }
}

/// The header that holds the key of a request if the settings name none.
pub(crate) const KEY_HEADER: &str = "x-request-key";

/// The limits of requests in size, number and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest number of bytes of a request's body.
    pub body_bytes: usize,
    /// The largest number of rows of a request.
    pub rows: usize,
    /// The largest number of values of a request, over all inputs.
    pub values: usize,
    /// The largest number of items that a request may retrieve.
    pub retrieved: usize,
    /// The largest number of requests that wait or are being processed.
    pub waiting: usize,
    /// The largest estimated time until the work of a request begins. A request that comes when
    /// more work waits is refused.
    pub queue_time: Duration,
    /// The largest average work of requests that are scored on the network thread that read them,
    /// if no request waits. 0 leaves all work to the threads that score.
    pub inline_time: Duration,
    /// The largest number of bytes in flight: bodies, their unpacked forms, and answers. One
    /// principal has at most half of them, and so has an address whose callers need no proof.
    pub bytes_in_flight: usize,
    /// The largest number of bytes of an answer.
    pub answer_bytes: usize,
    /// The largest number of open connections of a listener.
    pub connections: usize,
    /// The largest number of open connections of a listener from one address.
    pub connections_per_address: usize,
    /// The longest time from the arrival of a request's body to the answer.
    pub request_time: Duration,
    /// The longest time in which the head of a request must arrive.
    pub head_time: Duration,
    /// The longest time in which the body of a request must arrive.
    pub body_time: Duration,
    /// The time after which a connection without requests is closed.
    pub idle_time: Duration,
    /// The longest time in which a client must take the next 64 KiB of an answer.
    pub write_time: Duration,
    /// The longest time that open requests have to end when the server stops.
    pub drain_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            rows: 16_384,
            values: 4 << 20,
            retrieved: 1000,
            waiting: 1024,
            queue_time: Duration::from_millis(30),
            inline_time: Duration::from_micros(200),
            bytes_in_flight: 512 << 20,
            answer_bytes: 64 << 20,
            connections: 1024,
            connections_per_address: 1024,
            request_time: Duration::from_secs(1),
            head_time: Duration::from_secs(10),
            body_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(300),
            write_time: Duration::from_secs(10),
            drain_time: Duration::from_secs(10),
        }
    }
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            models: Vec::new(),
            cache: PathBuf::from("cache"),
            threads: 1,
            poll: Duration::from_millis(200),
            retain: 8,
            retain_cached: 128,
            cache_bytes: None,
            load_into_memory: false,
            row_records: false,
            dense: None,
            device: None,
            max_stale: None,
            registry_wait: Duration::from_millis(150),
            stagger: Duration::ZERO,
            server: "server".to_owned(),
            model_control: false,
            traffic: BTreeMap::new(),
            request_log: RequestLogSettings::default(),
            audit: None,
            limits: Limits::default(),
        }
    }
}
