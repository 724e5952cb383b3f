//! Publishing: writes the state of a run into a registry as a version.
//!
//! A version is exactly the state of the training at one step. Its rows and its dense parameters
//! are the rows and parameters of that step, and its parity rows were scored with them. With
//! `publish.dense_every`, a version can have the dense parameters of its parent instead, with which
//! its parity rows are scored then ([`dense`]). The publisher finds the rows in one of these ways:
//!
//! * a base has all rows;
//! * a delta on a version that this process published has the rows that the tables list as changed;
//!   its time is proportional to the number of changes;
//! * any other delta (after a resume, after a rollback, from a checkpoint) is found by comparing
//!   all rows with the rows of the parent; its time is proportional to the size of the table.
//!
//! If the rows are on servers that reach the registry, each server writes its part of a base
//! straight there, and a version whose changes are not listed is a base: no file of the publisher
//! grows with the tables.
//!
//! # The parent of a new version
//! The parent is the version that the same run published last or, if an operator has rolled the
//! pointer back since, the version to which the pointer was rolled back. The new version is a base
//! if there is no such version, if its files are missing, if it has another schema or another
//! number type of rows, or if its chain has too many deltas. A publisher remembers its versions,
//! so that it does not read the whole chain each time.
//!
//! If the rows are in the process of the run, the layers of a long chain are merged to a new base
//! beside the publications ([`compactor`]). The next delta then stands on this base, and the
//! publication itself never writes all rows.
//!
//! # Crash consistency
//! A version exists whole or not at all (see [`zillion_registry::Model::publish`]). A run that is
//! killed between a checkpoint and its version publishes the version when it is resumed. A run that
//! is killed between a version and the move of the pointer moves the pointer when it is resumed. A
//! step is published once: a run over streams that repeats its log finds the versions of the first
//! time, however many they are ([`earlier`]).

mod branch;
mod catalogue;
mod checkpoint;
mod checkpoint_rows;
mod collector;
mod compactor;
mod dense;
mod earlier;
mod item_files;
mod onnx;
mod owner;
mod parent;
mod parity;
mod places;
mod pruning_cost;
mod published;
mod publisher;
mod recent;
mod registry;
mod rounding;
mod rounding_cost;
mod run_id;
mod schedule;
mod tables;

pub use checkpoint::{CheckpointWish, publish_checkpoint};
pub use compactor::CompactionCounts;
pub use published::{InputChange, Published};
pub use rounding_cost::RoundingCost;
pub use tables::{DenseModel, ExpectedScores, TablesPublisher, fill_params, make_run_id};

pub(crate) use pruning_cost::PruningCost;
pub(crate) use publisher::{Opening, Publisher, REMEMBERED, Repeated, Wish};
pub(crate) use rounding_cost::AS_PUBLISHED;
pub(crate) use run_id::RunId;
