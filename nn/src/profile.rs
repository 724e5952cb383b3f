//! The times of runs by node and by operation, summed over threads. The module
//! [`timeline`](crate::timeline) records when each thread has computed which node.

use std::collections::BTreeMap;

use crate::graph::Graph;
use crate::graph::shape::NodeId;

/// The time of each node, summed over threads and runs. The code of profiling is always compiled.
/// In a run that is not profiled, it costs one branch for each operation and tile.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub(crate) nanos: Vec<u64>,
    /// The number of profiled runs.
    pub runs: u64,
}

/// The time of all nodes with one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTime {
    /// The number of nodes with this operation.
    pub nodes: usize,
    /// The time in nanoseconds, summed over threads and runs.
    pub nanos: u64,
}

impl Profile {
    /// Returns the time of a node in nanoseconds, summed over threads and runs.
    pub fn nanos(&self, id: NodeId) -> u64 {
        self.nanos.get(id.0 as usize).copied().unwrap_or(0)
    }

    /// Returns the name and the time of each operation, with the slowest operation first.
    pub fn by_op(&self, graph: &Graph) -> Vec<(&'static str, OpTime)> {
        let mut times: BTreeMap<&'static str, OpTime> = BTreeMap::new();
        for (node, &nanos) in graph.nodes.iter().zip(&self.nanos) {
            if nanos > 0 {
                let time = times.entry(node.op.name()).or_default();
                time.nodes += 1;
                time.nanos += nanos;
            }
        }
        let mut times: Vec<_> = times.into_iter().collect();
        times.sort_by_key(|&(name, time)| (std::cmp::Reverse(time.nanos), name));
        times
    }

    /// Returns the times of [`Profile::by_op`] as a table in text form, in milliseconds per run.
    pub fn table(&self, graph: &Graph) -> String {
        let runs = self.runs.max(1) as f64;
        let total: u64 = self.nanos.iter().sum();
        let line = |(name, time): (&str, OpTime)| {
            let ms = time.nanos as f64 / 1e6 / runs;
            let share = 100.0 * time.nanos as f64 / total.max(1) as f64;
            format!("{name:24} {:4} nodes {ms:9.3} ms {share:5.1} %\n", time.nodes)
        };
        self.by_op(graph).into_iter().map(line).collect()
    }
}
