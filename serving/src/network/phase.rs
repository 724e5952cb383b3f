//! The phases of a server, from its start to its end.

/// The state of the server that its connections follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Connections are accepted and kept.
    Serving,
    /// Connections are accepted, and each is closed after its open requests.
    LameDuck,
    /// No connection is accepted, and open requests end.
    Draining,
}
