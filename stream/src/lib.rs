//! Endless data for online training: events that arrive in partitions.
//!
//! A *stream* is a followed folder or a topic. It consists of partitions, and each partition is a
//! sequence of messages at growing offsets. Whatever depends on time or on arrival is a *decision*,
//! which is written to a log before it takes effect. Everything else is a function of this log and
//! of the messages, so that a run can be repeated byte for byte.

pub mod joiner;
mod partition;
pub mod watermark;

pub use joiner::Joiner;
pub use partition::{EventTime, Partition};
pub use watermark::Watermarks;
