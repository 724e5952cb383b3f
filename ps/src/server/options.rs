//! The settings of a server.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use zillion_access::TlsFiles;
use zillion_device::Files;

use crate::error::{Result, start_error};
use crate::token::Token;

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The number of the server among the servers of the cluster, counted from 0.
    pub id: u32,
    /// The address to listen on, for example `127.0.0.1:7100`. Port 0 takes a free port.
    pub listen: String,
    /// The token that clients must show. Without a token, the server listens only on a loopback
    /// address.
    pub token: Option<Token>,
    /// The files of the server's certificate and of the authority of client certificates; `None` if
    /// the server does not speak TLS.
    pub tls: Option<TlsFiles>,
    /// The folder that servers and trainers share, or the URL of a bucket. Checkpoints are written
    /// below it.
    pub store: PathBuf,
    /// The folder in which the server makes its scratch folder; `None` for the folder of the system
    /// for temporary files.
    pub scratch: Option<PathBuf>,
    /// The number of threads that work on the tables.
    pub threads: NonZeroUsize,
    /// The number of shards of each table, among which the threads share the work. It changes no
    /// result.
    pub shards: NonZeroUsize,
    /// The largest number of bytes of one frame.
    pub max_frame_bytes: u64,
    /// The largest number of bytes of the frames of one connection that wait for the tables. The
    /// server then reads no further frame of this connection. A single frame may be larger.
    pub in_flight_bytes: u64,
    /// The largest number of bytes of the frames of all connections that wait for the tables.
    pub total_in_flight_bytes: u64,
    /// The largest number of open connections. Further connections are closed at once.
    pub max_connections: usize,
    /// The time after which a trainer that sends nothing is lost. The generation then ends.
    pub lease: Duration,
    /// Whether a frame that arrives twice has its effect once. Only the test that shows that this
    /// matters switches it off.
    pub deduplicates: bool,
    /// The writer of durable files.
    pub files: Files,
}

impl ServerOptions {
    /// Returns the default settings of a server.
    pub fn new(listen: impl Into<String>, store: impl Into<PathBuf>) -> Self {
        Self {
            id: 0,
            listen: listen.into(),
            token: None,
            tls: None,
            store: store.into(),
            scratch: None,
            threads: NonZeroUsize::MIN,
            shards: NonZeroUsize::new(8).unwrap_or(NonZeroUsize::MIN),
            max_frame_bytes: 256 << 20,
            in_flight_bytes: 64 << 20,
            total_in_flight_bytes: 1 << 30,
            max_connections: 16_384,
            lease: Duration::from_secs(10),
            deduplicates: true,
            files: Files::new(),
        }
    }

    /// Returns whether clients must prove who they are, by a token or a certificate.
    pub(super) fn proves_clients(&self) -> bool {
        self.token.is_some() || self.tls.as_ref().is_some_and(|tls| tls.require_client)
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Returns an error that names the first wrong setting.
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |text: String| Err(start_error(text));
        if self.max_frame_bytes < 1 << 16 || self.max_frame_bytes > u64::from(u32::MAX) {
            return refuse(format!(
                "`ps.max_frame_bytes` is {}; give 64 KiB to 4 GiB",
                self.max_frame_bytes
            ));
        }
        if self.total_in_flight_bytes < self.max_frame_bytes {
            return refuse(format!(
                "`ps.total_in_flight_bytes` is {}, which is less than one frame \
                 (`ps.max_frame_bytes` is {}); raise it",
                self.total_in_flight_bytes, self.max_frame_bytes
            ));
        }
        if self.lease < Duration::from_millis(100) {
            return refuse(format!(
                "`ps.lease` is {:?}; give at least 100 ms, because trainers must send a sign of \
                 life within it",
                self.lease
            ));
        }
        Ok(())
    }
}
