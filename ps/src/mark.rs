//! The marks of checkpoints, as a trainer holds them.

use zillion_embedding::SnapshotMark;

/// The moment at which a finished or restored checkpoint of all servers began. A trainer holds the
/// mark and does not read it. A server that was started again does not know the marks from before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointMark {
    /// The mark of each server, in the order of the servers.
    pub(crate) servers: Vec<ServerMark>,
}

/// The mark of a checkpoint on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerMark {
    /// The number that the server drew when it started; 0 for tables in this process.
    pub(crate) boot: u64,
    /// The mark of the server's tables.
    pub(crate) tables: SnapshotMark,
}

impl CheckpointMark {
    /// Returns the mark of tables in this process.
    pub(crate) fn local(tables: SnapshotMark) -> Self {
        Self { servers: vec![ServerMark { boot: 0, tables }] }
    }

    /// Returns the mark of the tables if they are in this process.
    pub(crate) fn as_local(&self) -> Option<SnapshotMark> {
        match self.servers.as_slice() {
            [ServerMark { boot: 0, tables }] => Some(*tables),
            _ => None,
        }
    }
}
