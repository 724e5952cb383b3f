//! The parameter service: the access of a trainer to its tables.
//!
//! The crate defines the contract [`TrainClient`] and the order of calls in a step, and implements
//! the contract for tables in this process. The tables themselves are in `embedding/`. The dense
//! model is not a part of this crate.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use std::sync::Arc;
//! use zillion_device::Workers;
//! use zillion_embedding::Rates;
//! use zillion_feature::{FeatureKey, RowBuffer, Step};
//! use zillion_ps::{LocalClient, PushMode, StepClient, TableAccess, PullOptions};
//! use zillion_rows::conformance::plan_of;
//! use zillion_rows::{
//!     Admission, Dtype, Eviction, InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec, Unknown,
//! };
//!
//! let initial = InitializerSpec::Constant { value: 0.0 };
//! let linear = SegmentSpec::new("linear", 1, initial, OptimizerSpec::Sgd { lr: 0.5 });
//! let items =
//!     TableSpec { unknown: Unknown::Zero, seed: 1, ..TableSpec::new("items", vec![linear]) };
//! let workers = Arc::new(Workers::new(NonZeroUsize::MIN)?);
//! let mut client = LocalClient::new(vec![items], NonZeroUsize::MIN, workers)?;
//!
//! let plan = Arc::new(plan_of(&[vec![FeatureKey::from_i64(7)]]));
//! client.begin_step(Step(1), Rates::default())?;
//! let mut rows = client.pull(&plan, PullOptions::default(), RowBuffer::default())?;
//! rows.tables[0].values.fill(1.0); // the gradients
//! client.push(&plan, rows, PushMode::Stage)?;
//! let norm = client.grad_sq_norm()?.sqrt();
//! let report = client.apply((0.5 / norm) as f32)?;
//! assert_eq!(report.created, 1);
//!
//! let (rows, _) = client.lookup(&plan, RowBuffer::default())?;
//! assert_eq!(rows.tables[0].row(0)[0], -0.25);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "server")]
pub mod admin;
mod borrowing;
mod client;
mod code;
pub mod conformance;
mod draw;
mod error;
mod etcd;
#[cfg_attr(not(feature = "server"), allow(dead_code, reason = "a part is the server's"))]
mod folder;
mod local;
mod map;
mod mark;
mod merged;
mod options;
mod order;
mod pulled;
mod remote;
#[cfg(feature = "server")]
pub mod server;
mod slots;
mod tls;
mod token;
#[cfg_attr(
    not(feature = "server"),
    allow(dead_code, unused_imports, reason = "a part is the server's")
)]
mod wire;

pub use borrowing::BorrowingClient;
pub use client::{
    Arrival, CheckpointTicket, Checkpointing, Continued, Contribution, Exchanged, Exchanging,
    LayerTarget, Lending, MOST_STALENESS, Pace, Pacing, Publishing, PullOptions, PushMode,
    Residency, ResidentStep, Shared, Since, StepClient, StepReport, TableAccess, TrainClient,
    TrainerPlace,
};
pub use code::ErrorCode;
pub use error::{Error, Result};
pub use etcd::{EtcdOptions, open_etcd};
pub use local::LocalClient;
pub use map::{ClusterMap, Directory, EntryKind, MapEntry, Member, MemberChange, Notice, Upkeep};
pub use mark::CheckpointMark;
pub use merged::{MergedDense, MergedGradients};
pub use options::{SpillOptions, TableOptions};
pub use order::StepOrder;
pub use pulled::PulledRows;
pub use remote::{RegisteredServers, RemoteClient, RemoteOptions, ServerState, Stop, server_state};
pub use tls::ClientTls;
pub use token::Token;
pub use wire::{WireError, read_message, sample_messages};
pub use zillion_access::{ClientTlsFiles, TlsFiles};
