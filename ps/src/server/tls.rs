//! The TLS settings of a server, which are read again when their files have changed.

use std::sync::Arc;

use rustls::ServerConfig;
use zillion_access::{Reloading, TlsFiles};

use crate::error::{Result, start_error};

/// The TLS settings of a server.
#[derive(Debug)]
pub(super) struct ServerTls(Reloading<Arc<ServerConfig>, zillion_access::Error>);

impl ServerTls {
    /// Reads the settings from their files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if the key does not belong to the certificate.
    pub(super) fn open(files: TlsFiles) -> Result<Self> {
        let load = move || Ok((files.load()?, files.paths()));
        Reloading::new(load).map(Self).map_err(|e: zillion_access::Error| {
            start_error(format!("the TLS settings of the server: {e}"))
        })
    }

    /// Returns the settings of the files as they are now. Settings that cannot be read leave those
    /// from before.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        match self.0.refresh() {
            Ok(false) => {}
            Ok(true) => tracing::info!("the certificates of the server were read again"),
            Err(error) => tracing::warn!("the certificates stay as they were: {error}"),
        }
        Arc::clone(&*self.0.get())
    }
}
