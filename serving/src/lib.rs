//! Serving of published versions: hot loading, limits, HTTP and gRPC.
//!
//! A [`Domain`] holds the models: it follows the registry, loads versions beside those that
//! answer, and publishes each version to requests as a whole. Protocols are thin adapters over
//! the domain, and [`serve`] runs all of them. A request is one task on the pool, and one
//! version answers it from its first byte to its last.
//!
//! Training and files of data are outside of this crate. [`Servable`](zillion_scorer::Servable)
//! turns raw values into scores, here as in `predict --version`.

mod access;
mod admission;
mod audit;
mod budget;
mod config;
mod control;
mod describe;
mod device_metrics;
mod domain;
mod error;
mod gathering;
mod grpc;
mod host;
mod http;
mod loader;
mod metrics;
mod network;
mod problem;
pub mod proto;
mod queue;
mod refused_version;
mod repository;
mod request_log;
mod retrieve;
mod score;
mod scored;
mod statistics;
mod store_metrics;
pub mod tensor;
mod text;
mod trace;
mod traffic;

pub use access::Actor;
pub use config::{Follow, Limits, ServeConfig, Share, TrafficSettings};
pub use domain::Domain;
pub use error::{Kind, Result, ServeError};
pub use grpc::{http_status, read_message};
pub use host::{Host, OpenVersions, Resolved, Selector};
pub use http::read_body;
pub use metrics::{Metrics, Stage};
pub use network::{Api, Beats, InMemoryServer, Listener, Proof, serve};
pub use problem::ProblemKind;
pub use repository::{Indexed, ModelState};
pub use request_log::{ModelLogSettings, RequestLogSettings};
pub use score::{Answer, LOGITS, Output, PREDICTIONS, PROBABILITIES, SCORES, output_names};
pub use scored::{RowsRequest, Scored};
pub use statistics::{Total, Totals, VersionStatistics};
pub use trace::request_span;
