//! The names of partitions, and the time of events.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A partition of a stream of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// The number of the stream in the job, counted from 0.
    pub stream: u16,
    /// The number of the partition in the stream, counted from 0.
    pub number: u32,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {} of stream {}", self.number, self.stream)
    }
}

/// The time of an event: milliseconds since 1970-01-01 UTC.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct EventTime(pub i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_names_its_stream() {
        let partition = Partition { stream: 1, number: 7 };
        assert_eq!(partition.to_string(), "partition 7 of stream 1");
    }
}
