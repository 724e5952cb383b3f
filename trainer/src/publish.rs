//! Publishing: the learned state of a run becomes a whole version, and later changes become the
//! next one.
//!
//! A version stands for exactly the state of the training: its rows are those of the tables, its
//! dense parameters are of the same step, and its parity rows are scored by both. The rows come in
//! one of three ways, and the result does not show which:
//!
//! * a base has all rows;
//! * a delta on a version that this process published has the rows that the tables' lists of
//!   changes name: time in proportion to the changes;
//! * any other delta (after a resume, after a rollback, from a checkpoint) is found by comparing
//!   all rows with the parent's: time in proportion to the table.
//!
//! # The parent of a new version
//! The parent is the version that the same run published last or, where an operator has rolled the
//! pointer back since, the version that the pointer was rolled back to. Where there is none, where
//! rows have another meaning now, or where too many deltas lie on one another, the new version is a
//! base.
//!
//! # Crash consistency
//! A version exists whole or not at all (see [`zillion_registry::Model::publish`]). A run that is
//! killed between a checkpoint and its version publishes it when it is resumed. A run that is
//! killed between a version and the move of the pointer moves it then. A step is published once.

mod parent;
mod parity;
mod publisher;
mod run_id;

pub use publisher::{Published, publish_checkpoint};

pub(crate) use publisher::{Moment, Opening, Publisher, REMEMBERED, Wish};
pub(crate) use run_id::RunId;
