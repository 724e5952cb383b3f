//! Publishing: what a run has learned becomes a version, whole, and what changed since becomes the
//! next.
//!
//! A version stands for exactly the state that training was in: its rows are those of the tables,
//! its dense parameters are of the same step, and its parity rows are scored by both. The rows come
//! one of three ways, and nobody can tell from the result which:
//!
//! * a base has them all;
//! * a delta on a version that this process published has those that the tables' lists of changes
//!   name: time in proportion to the changes;
//! * any other delta, after a resume, after a rollback, from a checkpoint, is found by comparing
//!   all rows with the parent's: time in proportion to the table.
//!
//! # Which version a new one stands on
//! On the one that the same run published last, or, where an operator has rolled the pointer back
//! since, on the one he went back to. Where there is none, where rows mean something else now, or
//! where too many deltas lie on one another, it is a base.
//!
//! # Crash consistency
//! A version is there whole or not at all (see [`zillion_registry::Model::publish`]). A run that is
//! killed between a checkpoint and its version publishes when it is resumed; one that is killed
//! between a version and the move of the pointer moves it then. A step is published once.

mod parent;
mod parity;
mod publisher;
mod run_id;

pub use publisher::{Published, publish_checkpoint};

pub(crate) use publisher::{Moment, Opening, Publisher, REMEMBERED, Wish};
pub(crate) use run_id::RunId;
