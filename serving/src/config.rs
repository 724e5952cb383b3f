//! How a server is set up: what it serves, and what it takes.

use std::path::PathBuf;
use std::time::Duration;

/// Which versions a server follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Where a pointer stands.
    Pointer(String),
    /// The newest.
    Latest,
}

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// Folder that files are fetched to.
    pub cache: PathBuf,
    /// Time between two looks at the registry.
    pub poll: Duration,
    /// Versions that were current before and stay open: going back to one is a swap of a pointer.
    pub retain: usize,
    /// Versions that were current before and whose files stay in the cache: going back to one is opening
    /// them.
    pub retain_cached: usize,
    /// How long the registry keeps files of open versions for this server without hearing of it again.
    pub lease: Duration,
    /// The server's name in the registry.
    pub server: String,
}

/// A server's settings.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The models, by name, each with the version that answers by default.
    pub models: Vec<(String, Follow)>,
    /// Folder that versions are fetched to and merged in.
    pub cache: PathBuf,
    /// Threads that score.
    pub threads: usize,
    /// Time between two looks at the registry.
    pub poll: Duration,
    /// See [`LoadConfig::retain`](crate::LoadConfig).
    pub retain: usize,
    /// See [`LoadConfig::retain_cached`](crate::LoadConfig).
    pub retain_cached: usize,
    /// The server's name in the registry's leases.
    pub server: String,
    /// Whether clients may load and unload models.
    pub model_control: bool,
    /// What it takes.
    pub limits: Limits,
}

/// What a server takes, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Rows of a request.
    pub rows: usize,
    /// Values of a request, over all inputs.
    pub values: usize,
    /// Requests that wait or are being worked on.
    pub waiting: usize,
    /// Connections.
    pub connections: usize,
    /// Time from a request's body to its answer.
    pub request_time: Duration,
    /// Time for a request's head.
    pub head_time: Duration,
    /// Time for a request's body.
    pub body_time: Duration,
    /// Time that open requests have when the server stops.
    pub drain_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            rows: 16_384,
            values: 4 << 20,
            waiting: 1024,
            connections: 1024,
            request_time: Duration::from_secs(1),
            head_time: Duration::from_secs(10),
            body_time: Duration::from_secs(10),
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
            server: "server".to_owned(),
            model_control: false,
            limits: Limits::default(),
        }
    }
}
