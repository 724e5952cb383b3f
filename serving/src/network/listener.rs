//! Listeners: an address, the calls that it answers, and the proof of identity that it asks for.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::num::NonZeroUsize;
use std::sync::Arc;

use rustls::ServerConfig;
use serde::{Deserialize, Serialize};
use zillion_access::{Identities, Reloading};

/// A group of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// The calls that score rows.
    Infer,
    /// The calls that describe the server, its models and their versions.
    Meta,
    /// The calls of health and readiness.
    Health,
    /// The metrics of the server.
    Metrics,
    /// The calls that list, load and unload the models of the registry.
    Control,
}

impl Api {
    /// All groups of calls.
    pub const ALL: [Self; 5] =
        [Self::Infer, Self::Meta, Self::Health, Self::Metrics, Self::Control];
}

/// A kind of proof of identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// A token of the access file.
    Token,
    /// A JSON Web Token.
    Jwt,
    /// A certificate that the client shows in TLS.
    Mtls,
}

/// A value that is read again when its files change.
pub(super) type FromFiles<T> = Arc<Reloading<T, zillion_access::Error>>;

/// A listener of a server.
#[derive(Debug)]
pub struct Listener {
    /// The socket of the address.
    pub socket: TcpListener,
    /// The number of network threads, to which the connections are dealt.
    pub threads: NonZeroUsize,
    /// The groups of calls that are answered. All other paths are unknown here.
    pub apis: BTreeSet<Api>,
    /// The TLS settings. Without them, bytes are sent as they are.
    pub tls: Option<FromFiles<Arc<ServerConfig>>>,
    /// The kinds of proof that are taken. If there are none, every caller may make every call.
    pub proofs: BTreeSet<Proof>,
    /// The identities that the proofs are checked against.
    pub identities: Option<FromFiles<Identities>>,
}

impl Listener {
    /// Creates a listener with one thread that answers all calls of every caller, without TLS.
    pub fn open(socket: TcpListener) -> Self {
        Self {
            socket,
            threads: NonZeroUsize::MIN,
            apis: Api::ALL.into(),
            tls: None,
            proofs: BTreeSet::new(),
            identities: None,
        }
    }
}
