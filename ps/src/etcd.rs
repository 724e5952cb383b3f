//! The map of a cluster in etcd.
//!
//! | key | value |
//! |---|---|
//! | `PREFIX/generations/RUN/NUMBER` | an entry of the log |
//! | `PREFIX/servers/ID` | a living server, under a lease |
//!
//! RUN is a part of the BLAKE3 of the run's name.
//!
//! The messages and calls are those of etcd's version 3, written down here for the few that are
//! needed. The crate `etcd-client` was considered: it needs the program `protoc` to be built, which
//! no other part of Zillion does.
//!
//! # Concurrency
//! One thread sends all requests ([`zillion_store::Network`]). Callers wait for the results. The
//! map is needed when a generation begins and when a checkpoint ends, and no other step of a
//! training waits for etcd. The watching of servers runs beside the training.

mod options;

#[cfg(feature = "etcd")]
mod calls;
#[cfg(feature = "etcd")]
mod directory;
#[cfg(feature = "etcd")]
mod messages;
#[cfg(feature = "etcd")]
mod registration;
#[cfg(feature = "etcd")]
mod watching;

use std::sync::Arc;

pub use options::EtcdOptions;

use crate::error::Result;
use crate::map::Directory;

/// Opens a directory in etcd. The call does not wait for etcd.
///
/// # Errors
/// Returns an error if a setting is wrong, if a file cannot be read, or if the program was built
/// without etcd.
#[cfg(feature = "etcd")]
pub fn open_etcd(options: &EtcdOptions) -> Result<Arc<dyn Directory>> {
    options.check()?;
    Ok(Arc::new(directory::EtcdDirectory::open(options)?))
}

/// Refuses the settings, because the program was built without etcd.
///
/// # Errors
/// Returns an error always.
#[cfg(not(feature = "etcd"))]
pub fn open_etcd(options: &EtcdOptions) -> Result<Arc<dyn Directory>> {
    options.check()?;
    Err(crate::error::start_error(
        "`ps.etcd` is set, but the program was built without etcd; build it with the feature `etcd`",
    ))
}
